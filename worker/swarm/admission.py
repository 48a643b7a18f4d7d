"""Admission control for swarm work: daily and concurrent limits per kernel; one place per lane stays free.

One script reserves a place when a request is admitted, and the place is held until the work has ended. Any
process that observes the end releases it; places held by dead processes are reclaimed when they are missed.

A request without a free place waits without an answer, oldest first, for as long as its kernel waits for the
task: a refusal would end the task. Work that cannot finish in that time is refused at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.core.errors import BadRequest, Unavailable
from worker.core.ids import new_id
from worker.core.states import Lane, Phase, State
from worker.engine.load import CLOCK_STOPPED_US, LoadMeter
from worker.engine.transitions import PRESENT_US, ExecutionStore
from worker.queue.rq import QUEUE
from worker.store.scripts import Reply, Scripts
from worker.swarm.kernels import Kernel
from worker.swarm.scripts import ADMIT, AdmitAnswer

_LUA = Path(__file__).parent / "lua"

DOOR = "swarm"
# An admitted request must create its record within this time.
_LOST_US = 60_000_000
# How long a task's latest execution is remembered: far longer than one may run.
_TASK_MS = 24 * 3600 * 1000
# Far longer than a kernel keeps re-posting a request.
_ALIAS_SECONDS = 3600
_ASK_AGAIN = 0.1
_LOOK_AGAIN = 1.0
_MOST_RUNNING = 500


@dataclass(frozen=True, slots=True)
class AdmittedExecution:
    """The execution for a request. `known`: it has a record; otherwise `at` is the store's time."""

    id: str
    known: bool
    at: int = 0


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """What admission needs to know about a request; `counted` requests use up the kernel's daily limit.

    `task` stays the same when a task is re-sent under new ids; `agent` does the work.
    """

    kernel: Kernel
    lane: Lane
    scope: str
    key: str
    agent: str
    task: str = ""
    expires_us: int = 0
    counted: bool = True


@dataclass(frozen=True, slots=True)
class _Full:
    """No free place now. `asked`: when this request was first told so; `held`: the places in use."""

    at: int
    asked: int
    held: int


@dataclass(slots=True)
class _PlaceQueue:
    """Requests of one kernel waiting for a place in one lane: by key, with the time they first asked."""

    asked: dict[str, int] = field(default_factory=dict)
    copies: Counter[str] = field(default_factory=Counter)

    def ahead(self, key: str) -> int:
        """The number of requests that have waited longer."""
        mine = (self.asked[key], key)
        return sum((asked, other) < mine for other, asked in self.asked.items())


class NoPlaceFree(Unavailable):
    """No place became free in time. The kernel takes the 503 as: run the task again as a new one."""

    code = "OVERLOADED"
    message = "the runtime is busy"
    advice = "Try again; the task was not run."


class StillWaiting(Unavailable):
    """Raised for clients that wait longer than a kernel does."""

    code = "STILL_WAITING"
    message = "the task is still waiting for a free place"
    advice = "Post the same request again to keep its place in the queue."


class DailyLimitReached(Unavailable):
    """The kernel has used up today's executions."""

    code = "DAILY_LIMIT"
    message = "the kernel has used up its executions for today"
    advice = "Try again tomorrow (UTC), or ask the operator for a higher limit; the task was not run."


class TaskExpired(BadRequest):
    """The task has expired."""

    code, status = "TASK_EXPIRED", 422
    message = "the task has expired"
    advice = "Create a new task with a later expiry_ms; this one was not run."


class Admission:
    """Admits requests and releases their places. `patience`: seconds a kernel waits for a task."""

    def __init__(self, store: ExecutionStore, load: LoadMeter, *, patience: float) -> None:
        self._store = store
        self._load = load
        self._scripts = Scripts(store.client, store.keys, _LUA, test_clock=store.test_clock)
        self._patience = patience
        self._freed = threading.Condition()
        self._queues: dict[tuple[str, Lane], _PlaceQueue] = {}

    def known(self, scope: str, key: str) -> str | None:
        """The execution already created for this key, if any."""
        found: Any = self._store.client.get(self._store.keys.idempotency(scope, key))
        return found.decode() if found else None

    def take(self, request: AdmissionRequest, *, until: float) -> AdmittedExecution:
        """Reserve a place, or return the existing execution; waits until `until` (monotonic) at most."""
        answer = self._ask(request, heal=True)
        if isinstance(answer, AdmittedExecution):
            return answer
        return self._wait(request, answer, until)

    def _wait(self, request: AdmissionRequest, full: _Full, until: float) -> AdmittedExecution:
        ends = full.asked + int(self._patience * 1e6)
        ends = min(ends, request.expires_us) if request.expires_us else ends
        served_by = time.monotonic() + (ends - full.at) / 1e6
        takes = self._load.read(request.agent, request.lane).mean_us / 1e6
        look = 0.0
        with self._queued(request, full.asked) as queue:
            while True:
                now = time.monotonic()
                with self._freed:
                    ahead = queue.ahead(request.key)
                # Requests ahead take turns on the places; do not start work that could not finish in time.
                if now + (ahead // max(1, full.held) + 1) * takes > served_by:
                    raise NoPlaceFree(retry_after=2)
                if now >= until:
                    raise StillWaiting(retry_after=1)
                if ahead == 0:
                    answer = self._ask(request, heal=now >= look)
                    if isinstance(answer, AdmittedExecution):
                        return answer
                    look = now + _LOOK_AGAIN if now >= look else look
                with self._freed:
                    self._freed.wait(min(_ASK_AGAIN if ahead == 0 else _LOOK_AGAIN, until - now))

    @contextmanager
    def _queued(self, request: AdmissionRequest, asked: int) -> Iterator[_PlaceQueue]:
        name, key = (request.kernel.name, request.lane), request.key
        with self._freed:
            queue = self._queues.setdefault(name, _PlaceQueue())
            queue.copies[key] += 1
            queue.asked[key] = asked
        try:
            yield queue
        finally:
            with self._freed:
                queue.copies[key] -= 1
                if not queue.copies[key]:
                    del queue.copies[key], queue.asked[key]
                self._freed.notify_all()

    def release(self, lane: Lane, id: str, kernel: str) -> None:
        """Release the place of an execution that has ended."""
        self._forget(lane, [_place(id, kernel)])
        with self._freed:
            self._freed.notify_all()

    def _ask(self, request: AdmissionRequest, *, heal: bool, over: str = "") -> AdmittedExecution | _Full:
        """Try once. `over` is an earlier execution of the task that has ended."""
        if self._load.memory_full():
            raise NoPlaceFree("the runtime has no memory for new work", retry_after=60)
        reply = self._admit(request, over)
        match reply.answer:
            case AdmitAnswer.KNOWN:
                return AdmittedExecution(reply.text(), True)
            case AdmitAnswer.ADMITTED:
                return AdmittedExecution(reply.text(), False, int(reply.text(1)))
            case AdmitAnswer.OPEN:
                return self._join(request, reply.text(), int(reply.text(1)), heal=heal)
            case AdmitAnswer.FULL:
                at, told_at, *held = reply.values
                if heal and self._forget_ended(request.lane, int(at), held):
                    return self._ask(request, heal=False, over=over)
                return _Full(int(at), int(told_at), len(held) // 2)
            case AdmitAnswer.EXPIRED:
                raise TaskExpired(field="task_contract.expiry_ms", expected="a time to come")
            case AdmitAnswer.SPENT:
                raise DailyLimitReached(
                    retry_after=int(reply.text()), expected=f"at most {request.kernel.per_day} a day"
                )
            case AdmitAnswer.STOPPED:
                raise NoPlaceFree("the runtime is not finishing work at the moment", retry_after=10)
            case AdmitAnswer.NOBODY:
                raise NoPlaceFree("no process takes work from this lane", retry_after=10)

    def _join(
        self, request: AdmissionRequest, id: str, kept_ms: int, *, heal: bool
    ) -> AdmittedExecution | _Full:
        """Return the open execution of a task re-sent under other ids: a task never runs twice at once."""
        state: Any = self._store.client.hget(self._store.keys.record(id), "state")
        if state is not None and not State(state.decode()).terminal:
            # A re-posted request gets the same execution, even one that has ended.
            alias = self._store.keys.idempotency(request.scope, request.key)
            self._store.client.set(alias, id, ex=_ALIAS_SECONDS, nx=True)
            return AdmittedExecution(id, True)
        if state is None and _TASK_MS - kept_ms < _LOST_US // 1000:
            # Admitted; its record is still being written.
            at = self._store.now()
            return _Full(at, at, 1)
        return self._ask(request, heal=heal, over=id)

    def _admit(self, request: AdmissionRequest, over: str) -> Reply[AdmitAnswer]:
        keys, lane, kernel = self._store.keys, request.lane, request.kernel
        bounded = lane is not Lane.REMOTE
        return self._scripts.run(
            ADMIT,
            id=new_id(),
            scope=request.scope,
            key=request.key,
            task=request.task or request.key,
            lane=lane,
            lane_queue=keys.express if lane is Lane.EXPRESS else f"rq:queue:{QUEUE}",
            kernel=kernel.name,
            per_day=kernel.per_day if request.counted else 0,
            share=kernel.share,
            silence=PRESENT_US,
            stopped=CLOCK_STOPPED_US,
            expires=request.expires_us,
            bounded="1" if bounded else "",
            others=self._others(lane) if bounded else 0,
            over=over,
            wait=max(1, int(self._patience * 1000)),
            task_ms=_TASK_MS,
        )

    def _others(self, lane: Lane) -> int:
        """Count the lane's processes that run non-swarm work."""
        client, keys = self._store.client, self._store.keys
        running: Any = client.zrange(keys.by_state(State.RUNNING), 0, _MOST_RUNNING - 1)
        if not running:
            return 0
        with client.pipeline(transaction=False) as pipe:
            for id in running:
                pipe.hmget(keys.record(id.decode()), "lane", "phase", "door")
            rows = pipe.execute()
        # Work that only waits for settlement occupies no process.
        busy = [lane.encode(), Phase.WORKING.encode()]
        return sum([in_lane, phase] == busy and door != DOOR.encode() for in_lane, phase, door in rows)

    def _forget_ended(self, lane: Lane, at: int, held: Sequence[bytes]) -> bool:
        """Free places whose executions ended unobserved or were never created."""
        rows = [(member, int(float(since))) for member, since in zip(held[::2], held[1::2], strict=True)]
        with self._store.client.pipeline(transaction=False) as pipe:
            for member, _ in rows:
                pipe.hget(self._store.keys.record(_execution_at(member)), "state")
            states = pipe.execute()
        gone = [
            member
            for (member, since), state in zip(rows, states, strict=True)
            if (at - since > _LOST_US if state is None else State(state.decode()).terminal)
        ]
        return bool(gone) and self._forget(lane, gone)

    def _forget(self, lane: Lane, members: Sequence[bytes]) -> bool:
        return bool(self._store.client.zrem(self._store.keys.swarm_places(lane), *members))


def _place(id: str, kernel: str) -> bytes:
    """A place's member in the lane's sorted set, in the format admit.lua writes."""
    return f"{id} {kernel}".encode()


def _execution_at(place: bytes) -> str:
    return place.decode().partition(" ")[0]
