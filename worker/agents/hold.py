"""What one attempt may do while its lease holds: write facts, keep values, wait.

Every write carries the fence and is repeated through short outages of the store. Once the lease is gone
nothing is written any more, and whoever tries is stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NoReturn, TypeVar

import redis

from worker.executions.record import Execution
from worker.executions.store import LOST, ExecutionStore
from worker.store import unavailable

_AGAIN_SECONDS = 0.1

T = TypeVar("T")


class Stopped(BaseException):
    """The lease is gone: somebody cancelled the execution or took it over. Not for authors to catch."""


class Hold:
    """The lease of one attempt, as the author's thread and the keeper's share it."""

    def __init__(self, execution: Execution, store: ExecutionStore, *, lease_us: int) -> None:
        self.execution = execution
        self.store = store
        self._lease_us = lease_us
        self._gone = threading.Event()
        self._reason = ""
        self._writing = threading.Lock()
        self._writes = 0

    @cached_property
    def remembered(self) -> dict[str, bytes]:
        """What earlier runs left: values kept, files written, steps begun."""
        if self.execution.fence == 1:
            return {}
        return self.insist(lambda: self.store.steps(self.execution.id))

    @property
    def stopped(self) -> str | None:
        """Why the lease is gone, if it is."""
        return self._reason if self._gone.is_set() else None

    def stop(self, reason: str) -> None:
        """The lease is gone; the first reason stays."""
        if not self._gone.is_set():
            self._reason = reason
            self._gone.set()

    def check(self) -> None:
        if self.stopped is not None:
            raise Stopped(self.stopped)

    def lose(self) -> NoReturn:
        self.stop(LOST)
        raise Stopped(self.stopped)

    def pause(self, seconds: float) -> None:
        """Waits, but not longer than the lease holds."""
        self._gone.wait(max(0.0, seconds))
        self.check()

    def insist(self, call: Callable[[], T]) -> T:
        """Writes through a store that is away for a moment; gives up when the lease must have lapsed."""
        until = time.monotonic() + self._lease_us / 1e6
        while True:
            try:
                return call()
            except redis.RedisError as error:
                if unavailable(error) is None:
                    raise
                if time.monotonic() > until:
                    self.lose()
            self.pause(_AGAIN_SECONDS)

    def append(
        self, facts: Sequence[tuple[str, bytes]], fields: Mapping[str, str | int | float] | None = None
    ) -> bool:
        """Whether the log took the facts; False when it is full."""
        with self._writing:
            self._writes += 1
            id, fence, number = self.execution.id, self.execution.fence, self._writes
            status = self.insist(lambda: self.store.append(id, fence, number, facts, fields))
        if status == LOST:
            self.lose()
        return status == "ok"

    def keep(self, name: str, value: bytes, *, kind: str = "", payload: bytes = b"") -> bytes:
        """The value that the first run gave for the name; the event is written once, with it."""
        id, fence = self.execution.id, self.execution.fence
        kept = self.insist(lambda: self.store.remember(id, fence, name, value, kind=kind, payload=payload))
        if kept is None:
            self.lose()
        self.remembered[name] = kept
        return kept
