"""What scripts tell requests that wait for an execution: to settle it, or to look at its record.

Scripts call `tell` (lua/_engine.lua), which publishes in two places. The process that claimed the execution
is subscribed to one channel for all its requests. A request for an execution that another process claimed
listens on the record's channel. Neither hears of what decides nothing, such as progress.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from worker.core.ids import new_id
from worker.engine.watch import Source, Watch, Watcher

SETTLE, LOOK = b"settle", b"look"


class Decisions(Watch):
    """One request's part of what is told."""

    def __init__(self, source: Source, channel: str) -> None:
        super().__init__(source, channel)
        # Nothing told after this moment (monotonic) is missed.
        self.began = float("inf")
        self._told: set[bytes] = set()

    def take(self) -> set[bytes]:
        """What was told since the last call."""
        told, self._told = self._told, set()
        return told

    def hear(self, message: bytes) -> None:
        self._told.add(message)
        self.wake()

    def begin(self) -> None:
        if self.began < float("inf"):
            self._told.add(LOOK)
        else:
            self.began = time.monotonic()
        self.wake()


class OwnChannel(Watch):
    """The channel of this process; passes each message on to the requests for the execution that it names."""

    def __init__(self, watcher: Watcher, prefix: str) -> None:
        super().__init__(watcher, f"{prefix}:asker:{new_id()[-12:]}")
        self._requests: dict[str, set[Decisions]] = defaultdict(set)
        self._lock = threading.Lock()
        self._joined = self._confirmed = False

    def decisions(self, id: str) -> Decisions:
        return Decisions(self, id)

    def add(self, watch: Watch) -> None:
        if not isinstance(watch, Decisions):
            raise TypeError("only requests listen here")
        with self._lock:
            self._requests[watch.channel].add(watch)
            join, self._joined = not self._joined, True
            confirmed = self._confirmed
        if join:
            self._source.add(self)
        if confirmed:
            watch.begin()

    def drop(self, watch: Watch) -> None:
        with self._lock:
            requests = self._requests[watch.channel]
            requests.discard(watch)
            if not requests:
                del self._requests[watch.channel]

    def hear(self, message: bytes) -> None:
        id, _, what = message.partition(b" ")
        with self._lock:
            requests = list(self._requests.get(id.decode(), ()))
        for request in requests:
            request.hear(what)

    def begin(self) -> None:
        with self._lock:
            self._confirmed = True
            requests = [each for some in self._requests.values() for each in some]
        for request in requests:
            request.begin()
