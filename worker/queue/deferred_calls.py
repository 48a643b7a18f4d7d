"""Deferred calls: what a door leaves to the clock, which alone may read the chain or take its time.

A deferred call is durable and may be run twice; its outcome goes to the operator's journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import redis
import structlog

from worker.core.errors import Problem
from worker.core.ids import new_id
from worker.store.client import as_mapping, as_texts
from worker.store.data_model import Keys
from worker.store.operator_journal import OperatorJournal
from worker.store.task_pool import TaskPool

log = structlog.get_logger()

_LIFE_SECONDS = 86_400
_MOST = 20
_THREADS = 2
CLOCK = "clock"
# The deferred calls: the two decisions about an unknown payment, and the doctor's examination.
SETTLED, REFUSED, DOCTOR = "settle payment", "refuse payment", "doctor"


@dataclass(frozen=True, slots=True)
class DeferredCall:
    """`arguments` are the handler's; `who` asked for it about `subject`."""

    id: str
    kind: str
    who: str
    subject: str
    arguments: Mapping[str, str]


class DeferredCalls:
    """Deferred calls in the store."""

    def __init__(self, client: redis.Redis, keys: Keys, now: Callable[[], int]) -> None:
        self._client = client
        self._keys = keys
        self._now = now

    def ask(self, kind: str, who: str, subject: str, **arguments: str) -> str:
        """Leaves a deferred call to the next tick of a clock; returns its id."""
        id = new_id()
        fields: list[str] = ["kind", kind, "who", who, "subject", subject]
        fields += [part for name, value in arguments.items() for part in (f"argument {name}", value)]
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self._keys.deferred_call(id), items=fields)
            pipe.expire(self._keys.deferred_call(id), _LIFE_SECONDS)
            pipe.zadd(self._keys.deferred_calls, {id: self._now()})
            pipe.execute()
        return id

    def schedule(self, kind: str, at: int, *, anew: bool = False) -> None:
        """Schedules a regular call; `anew` replaces the time that it has."""
        self._client.zadd(self._keys.deferred_calls, {kind: at}, nx=not anew)

    def due(self, at: int) -> list[str]:
        """Ids of deferred calls, and kinds of regular ones."""
        return as_texts(self._client.zrangebyscore(self._keys.deferred_calls, "-inf", at, start=0, num=_MOST))

    def waiting(self) -> list[DeferredCall]:
        """DeferredCalls asked for and not done."""
        ids = as_texts(self._client.zrange(self._keys.deferred_calls, 0, _MOST - 1))
        return [call for id in ids if (call := self.get(id)) is not None]

    def get(self, id: str) -> DeferredCall | None:
        """None for a regular call, and for one that is done."""
        raw = {name: value.decode() for name, value in self._fields(id).items()}
        if not raw:
            return None
        named = {name.removeprefix("argument "): raw[name] for name in raw if name.startswith("argument ")}
        return DeferredCall(id, raw["kind"], raw["who"], raw["subject"], named)

    def done(self, id: str) -> None:
        with self._client.pipeline(transaction=True) as pipe:
            pipe.zrem(self._keys.deferred_calls, id)
            pipe.delete(self._keys.deferred_call(id))
            pipe.execute()

    def _fields(self, id: str) -> dict[str, bytes]:
        return as_mapping(self._client.hgetall(self._keys.deferred_call(id)))


Handler = Callable[[DeferredCall], str]


@dataclass(frozen=True, slots=True)
class Regular:
    """A call that nobody has to ask for."""

    run: Callable[[], object]
    first_us: int
    every_us: int


class DeferredCallRunner:
    """The clock's side: runs due deferred calls beside its ticks."""

    def __init__(
        self,
        calls: DeferredCalls,
        journal: OperatorJournal,
        handlers: Mapping[str, Handler],
        regular: Mapping[str, Regular],
    ) -> None:
        self._deferred_calls = calls
        self._journal = journal
        self._handlers = handlers
        self._regular = regular
        self._scheduled = False
        self._pool = TaskPool("deferred_calls", _THREADS, most=_MOST)

    def chore(self, at: int) -> None:
        """Called by one clock for all, about once a second, with the store's time."""
        if not self._scheduled:
            for kind, regular in self._regular.items():
                self._deferred_calls.schedule(kind, at + regular.first_us)
            self._scheduled = True
        for name in self._deferred_calls.due(at):
            work = partial(self._run_regular, name, at) if name in self._regular else partial(self._run, name)
            self._pool.begin(name, work)

    def close(self) -> None:
        self._pool.close(0)

    def _run_regular(self, kind: str, at: int) -> None:
        regular = self._regular[kind]
        # First, so that one that fails is not repeated before its time.
        self._deferred_calls.schedule(kind, at + regular.every_us, anew=True)
        regular.run()

    def _run(self, id: str) -> None:
        call = self._deferred_calls.get(id)
        if call is None:
            self._deferred_calls.done(id)
            return
        try:
            with self._journal.change(CLOCK, "", f"{call.kind}, for {call.who}", call.subject) as change:
                change.outcome = f"done: {self._handlers[call.kind](call)}"
        except Problem as problem:
            log.info("deferred_call.refused", kind=call.kind, code=problem.code)
        self._deferred_calls.done(id)
