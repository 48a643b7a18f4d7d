"""The express lane as one warm process sees it: a list of ids of short work."""

from __future__ import annotations

from typing import Any

import redis

from worker.store.client import as_bytes
from worker.store.commands import ask
from worker.store.scripts import ScriptCall, Scripts

_POP_SECONDS = 5
# How often a lane that was empty is looked at with a seal.
_LOOK_EVERY = 8


class ExpressLane:
    """While work waits, the next id comes with the seal of the run before it, which saves a round trip.

    An id whose process dies before it takes the lease is found by the clock, like one that was just popped.
    """

    def __init__(self, blocking: redis.Redis, scripts: Scripts, key: str) -> None:
        self._blocking = blocking
        self._scripts = scripts
        self._key = key
        self._next = ""
        self._work_waits = False
        self._seals = 0

    def take(self) -> str:
        """The next id, as soon as there is one; '' after some seconds without."""
        if self._next:
            id, self._next = self._next, ""
            return id
        found = ask(self._blocking, "BLPOP", self._key, _POP_SECONDS)
        return "" if found is None else as_bytes(found[1]).decode()

    def seal(self, call: ScriptCall) -> Any:
        """Sends the script that ends a run."""
        self._seals += 1
        looks = not self._next and (self._work_waits or self._seals % _LOOK_EVERY == 0)
        if not looks:
            return self._scripts.send(call)
        self._work_waits = False  # a seal that is tried again takes no other id
        reply, id = self._scripts.send_with(call, ("LPOP", self._key))
        if id is not None:
            self._work_waits, self._next = True, as_bytes(id).decode()
        return reply

    def give_back(self) -> None:
        """Leaves the id that this process will not run to the others."""
        if self._next:
            ask(self._blocking, "LPUSH", self._key, self._next)
            self._next = ""
