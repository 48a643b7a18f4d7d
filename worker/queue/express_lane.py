"""The express lane as one warm process sees it: a list of ids of short work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis

from worker.core.ids import new_id
from worker.engine import record
from worker.engine.answers import TAKE_NEXT, TakeNextAnswer
from worker.engine.record import Execution
from worker.engine.transitions import ExecutionStore
from worker.store.client import as_bytes
from worker.store.commands import ask
from worker.store.outage import holds, is_outage, note
from worker.store.scripts import ScriptCall, read_reply

_POP_SECONDS = 5
# How often a lane that was empty is looked at with a seal, and the head of one that others take from.
_LOOK_EVERY = 8
# For how long a process leaves that head to others; with runs of such a length a round trip matters little.
_HEAD_SECONDS = 0.1
# How far from its head a process looks for the work it takes next.
_PLACES = 4
# The part of a lease within which its run must begin.
_BEGINS_WITHIN = 0.1


class ExpressLane:
    """While work waits, the lease of the next run comes with the seal of the run before, in one round trip.

    For that the process looks at an id and leaves it in the lane, where others may take it first; then
    another id comes with the seal, and its lease costs a trip. A lease whose process dies before its run
    begins is handed back by its parent, and one whose answer is lost by the process. An id that is lost with
    its process is found by the clock.
    """

    def __init__(
        self,
        blocking: redis.Redis,
        store: ExecutionStore,
        *,
        worker: str,
        lease_us: int,
        takes_more: Callable[[], bool] = lambda: True,
        asks: Callable[[str, str], None] = lambda id, session: None,
    ) -> None:
        self._blocking = blocking
        self._store = store
        self._scripts = store.scripts
        self._key = store.keys.express
        self._worker = worker
        self._lease_us = lease_us
        # Whether this process may take the lease of another run before it knows which agent it is for.
        self.takes_more = takes_more
        # Tells the parent, which hands the lease back if this process dies before its run begins.
        self._asks = asks
        self._next = ""
        self._taken: tuple[Execution, int] | None = None
        # When the seal was sent that brought this lease.
        self._asked_at = 0.0
        # Of a lease whose answer was lost: the execution and the session.
        self._unsure: tuple[str, str] | None = None
        self._seen = ""
        self._place = 0
        self._head_by = 0.0
        self._work_waits = False
        self._seals = 0

    @property
    def has_lease(self) -> bool:
        return self._taken is not None

    def leased(self) -> tuple[Execution, int] | None:
        """The execution whose lease came with the last seal, and the store's time; None if it is too late."""
        waited = time.monotonic() - self._asked_at
        if waited > self._lease_us / 1e6 * _BEGINS_WITHIN:
            self.give_back()
        taken, self._taken = self._taken, None
        return taken and (taken[0], taken[1] + int(waited * 1e6))

    def take(self) -> str:
        """The next id, as soon as there is one; '' after some seconds without."""
        if self._next:
            id, self._next = self._next, ""
            return id
        self._resolve()
        found = ask(self._blocking, "BLPOP", self._key, _POP_SECONDS)
        return "" if found is None else as_bytes(found[1]).decode()

    def seal(self, call: ScriptCall) -> Any:
        """Sends the script that ends a run; one that is tried again takes nothing else."""
        self._seals += 1
        seen, self._seen = self._seen, ""
        if self._next or self._taken is not None:
            return self._scripts.send(call)
        looks = self._seals % _LOOK_EVERY == 0
        # What waits at the head may wait for as long as another process runs.
        if self._place and (looks or time.monotonic() > self._head_by):
            seen, self._place, self._work_waits = "", 0, True
        if seen and holds(self.takes_more, "express"):
            return self._seal_and_lease(call, seen)
        if not (looks or self._work_waits):
            return self._scripts.send(call)
        self._work_waits = False
        reply, id, after = self._scripts.send_together(call, ("LPOP", self._key), self._look())
        if id is not None:
            self._work_waits, self._next = True, as_bytes(id).decode()
            self._seen = as_bytes(after or b"").decode()
        return reply

    def give_back(self) -> None:
        """Leaves what this process will not run to the others."""
        if self._next:
            ask(self._blocking, "LPUSH", self._key, self._next)
            self._next = ""
        if self._taken is not None:
            execution = self._taken[0]
            self._hand_back(lambda: self._store.requeue(execution.id, execution.fence, "not_begun"))
            self._taken = None
        self._resolve()

    def _resolve(self) -> None:
        """Hands back the lease whose answer was lost, if it was granted: it would cost an attempt."""
        if self._unsure is None:
            return
        id, session = self._unsure
        self._hand_back(lambda: self._store.hand_back_of(id, session))
        self._unsure = None

    def _hand_back(self, call: Callable[[], object]) -> None:
        try:
            call()
        except redis.RedisError as error:
            if is_outage(error):
                raise
            note(error, "express")  # the lease lapses

    def _look_elsewhere(self) -> None:
        if not self._place:
            self._head_by = time.monotonic() + _HEAD_SECONDS
        self._place = (self._place + 1) % _PLACES

    def _look(self) -> tuple[str, str, int]:
        return "LINDEX", self._key, self._place

    def _seal_and_lease(self, call: ScriptCall, seen: str) -> Any:
        asked_at, session = time.monotonic(), new_id()
        next = self._scripts.call(
            TAKE_NEXT.name,
            id=seen,
            lease=self._lease_us,
            worker=self._worker,
            session=session,
            place=self._place,
        )
        self._asks(seen, session)
        self._work_waits, self._unsure = False, (seen, session)
        sealed, taken = self._scripts.send_each(call, next)
        self._unsure = None
        # An error here would hide the seal; the same work meets it again when its lease is taken alone.
        if not isinstance(taken, Exception):
            reply = read_reply(TAKE_NEXT, taken)
            self._work_waits, self._seen = True, reply.text()
            if reply.answer is TakeNextAnswer.TAKEN:
                self._taken = record.decode(reply.values[2:]), int(reply.values[1])
                self._asked_at = asked_at
            else:
                self._next = reply.text(1)
                self._look_elsewhere()
        if isinstance(sealed, Exception):
            raise sealed
        return sealed
