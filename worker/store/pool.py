"""The store connections of one process: few, shared, first come first served.

The client library's pool gives a free connection to whichever caller asks at that moment, so under load
some callers wait for seconds while others are served repeatedly. This pool is a FIFO queue. Two kinds of
use have reserved connections, so that a flood of requests cannot starve them: streams, and paid work,
which waits as long as it takes, because no paying caller is turned away for lack of a connection.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, Literal

import redis

Use = Literal["request", "stream", "paid"]

# How long a request or a stream waits in the queue.
PATIENCE = 5.0

_use: ContextVar[Use] = ContextVar("store_use", default="request")


def use(kind: Use) -> None:
    """Sets what the rest of this request, or of this thread, uses the store for."""
    _use.set(kind)


@contextmanager
def used_for(kind: Use) -> Iterator[None]:
    """Sets what the block uses the store for."""
    before = _use.get()
    _use.set(kind)
    try:
        yield
    finally:
        _use.set(before)


class _Waiter:
    """A queued caller. A bare lock wakes a greenlet with a fraction of an event's work."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.served = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def serve(self) -> None:
        self.served = True
        self._lock.release()

    def wait(self, patience: float | None) -> bool:
        return self._lock.acquire(timeout=-1 if patience is None else patience)


class Turns:
    """Grants places for connections. Of `size` places some are reserved for each other kind of use."""

    def __init__(self, size: int) -> None:
        reserved = size // 8 or (1 if size >= 4 else 0)
        self._reserved: dict[Use, int] = {"stream": reserved, "paid": reserved}
        self._free = size
        self._held: Counter[Use] = Counter()
        self._queues: dict[Use, deque[_Waiter]] = {"request": deque(), "stream": deque(), "paid": deque()}
        self._numbers = count()
        self._lock = threading.Lock()

    def take(self, kind: Use, patience: float | None) -> bool:
        """Waits for a place; returns False when patience runs out first."""
        with self._lock:
            if self._has_place(kind):  # implies that no caller of this kind is queued
                self._grant(kind)
                return True
            waiter = _Waiter(next(self._numbers))
            self._queues[kind].append(waiter)
        try:
            if waiter.wait(patience):
                return True
        except BaseException:  # interrupted by a signal or the caller's own time-out
            if not self._leave(kind, waiter):
                self.give_back(kind)
            raise
        return not self._leave(kind, waiter)

    def give_back(self, kind: Use) -> None:
        with self._lock:
            self._held[kind] -= 1
            self._free += 1
            self._serve()

    def _leave(self, kind: Use, waiter: _Waiter) -> bool:
        """Whether the waiter was still queued."""
        with self._lock:
            if waiter.served:
                return False
            self._queues[kind].remove(waiter)
            return True

    def _serve(self) -> None:
        while True:
            ready = [kind for kind, queue in self._queues.items() if queue and self._has_place(kind)]
            if not ready:
                return
            first = min(ready, key=lambda kind: self._queues[kind][0].number)
            self._grant(first)
            self._queues[first].popleft().serve()

    def _has_place(self, kind: Use) -> bool:
        others = ((other, most) for other, most in self._reserved.items() if other != kind)
        return self._free > sum(max(0, most - self._held[other]) for other, most in others)

    def _grant(self, kind: Use) -> None:
        self._free -= 1
        self._held[kind] += 1


class FairPool(redis.BlockingConnectionPool):
    """The library's pool behind a FIFO queue: a caller that gets a place also finds a connection."""

    def reset(self) -> None:
        """Starts afresh in a forked child: the parent's connections and waiters are not its own."""
        self._turns = Turns(self.max_connections)
        self._uses: dict[Any, Use] = {}
        super().reset()  # type: ignore[no-untyped-call]

    def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        self._checkpid()
        kind, turns = _use.get(), self._turns
        if not turns.take(kind, None if kind == "paid" else PATIENCE):
            raise redis.ConnectionError("no connection to the store became free in time")
        try:
            connection = super().get_connection()  # type: ignore[no-untyped-call]
        except BaseException:
            turns.give_back(kind)
            raise
        self._uses[connection] = kind
        return connection

    def release(self, connection: Any) -> None:
        # Remove the entry before releasing: the next holder records its own use.
        kind = self._uses.pop(connection, None)
        try:
            super().release(connection)  # type: ignore[no-untyped-call]
        finally:
            if kind is not None:
                self._turns.give_back(kind)
