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
from worker.store.scripts import ScriptCall, read_reply

_POP_SECONDS = 5
# How often a lane that was empty is looked at with a seal, and the head of one that others take from.
_LOOK_EVERY = 8
# How far from its head a process looks for the work it takes next.
_PLACES = 4
# The part of a lease within which its run must begin.
_BEGINS_WITHIN = 0.1


class ExpressLane:
    """While work waits, the lease of the next run comes with the seal of the run before, in one round trip.

    For that the process looks at an id and leaves it in the lane, where others may take it first; then
    another id comes with the seal, and its lease costs a trip. A lease whose process dies before its run
    begins lapses like any other. An id that is lost with its process is found by the clock.
    """

    def __init__(
        self,
        blocking: redis.Redis,
        store: ExecutionStore,
        *,
        worker: str,
        lease_us: int,
        takes_more: Callable[[], bool] = lambda: True,
    ) -> None:
        self._blocking = blocking
        self._store = store
        self._scripts = store.scripts
        self._key = store.keys.express
        self._worker = worker
        self._lease_us = lease_us
        # Whether this process may take the lease of another run before it knows which agent it is for.
        self.takes_more = takes_more
        self._next = ""
        self._taken: tuple[Execution, int] | None = None
        self._begins_by = 0.0
        self._seen = ""
        self._place = 0
        self._work_waits = False
        self._seals = 0

    @property
    def has_lease(self) -> bool:
        return self._taken is not None

    def leased(self) -> tuple[Execution, int] | None:
        """The execution whose lease came with the last seal, and when; None if it is too late to begin."""
        if time.monotonic() > self._begins_by:
            self.give_back()
        taken, self._taken = self._taken, None
        return taken

    def take(self) -> str:
        """The next id, as soon as there is one; '' after some seconds without."""
        if self._next:
            id, self._next = self._next, ""
            return id
        found = ask(self._blocking, "BLPOP", self._key, _POP_SECONDS)
        return "" if found is None else as_bytes(found[1]).decode()

    def seal(self, call: ScriptCall) -> Any:
        """Sends the script that ends a run; one that is tried again takes nothing else."""
        self._seals += 1
        seen, self._seen = self._seen, ""
        if self._next or self._taken is not None:
            return self._scripts.send(call)
        looks = self._seals % _LOOK_EVERY == 0
        if looks and self._place:  # it may wait there for as long as another process runs
            seen, self._place, self._work_waits = "", 0, True
        if seen and self.takes_more():
            return self._seal_and_lease(call, seen)
        if not (looks or self._work_waits):
            return self._scripts.send(call)
        self._work_waits = False
        reply, id, after = self._scripts.send_with(call, ("LPOP", self._key), self._look())
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
            self._store.requeue(execution.id, execution.fence, "handed_back")
            self._taken = None

    def _look(self) -> tuple[str, str, int]:
        return "LINDEX", self._key, self._place

    def _seal_and_lease(self, call: ScriptCall, seen: str) -> Any:
        begins_by = time.monotonic() + self._lease_us / 1e6 * _BEGINS_WITHIN
        next = self._scripts.call(
            TAKE_NEXT.name,
            id=seen,
            lease=self._lease_us,
            worker=self._worker,
            session=new_id(),
            place=self._place,
        )
        self._work_waits = False
        sealed, taken = self._scripts.send_each(call, next)
        # An error here would hide the seal; the same work meets it again when its lease is taken alone.
        if not isinstance(taken, Exception):
            reply = read_reply(TAKE_NEXT, taken)
            self._work_waits, self._seen = True, reply.text()
            if reply.answer is TakeNextAnswer.TAKEN:
                self._taken = record.decode(reply.values[2:]), int(reply.values[1])
                self._begins_by = begins_by
            else:
                self._next, self._place = reply.text(1), (self._place + 1) % _PLACES
        if isinstance(sealed, Exception):
            raise sealed
        return sealed
