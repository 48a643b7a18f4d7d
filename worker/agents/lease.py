"""The lease of one attempt: writes and waits that are valid while it holds.

Every write carries the fence and is retried through short outages of the store. Once the lease is lost
nothing more is written, and any attempt to write raises LeaseLost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NoReturn, TypeVar

import redis

from worker.engine.answers import AppendAnswer
from worker.engine.record import Execution
from worker.engine.transitions import ExecutionStore
from worker.store.outage import insist, is_outage

_AGAIN_SECONDS = 0.1

T = TypeVar("T")


class LeaseLost(BaseException):
    """Raised when the lease is lost (cancelled or taken over). Do not catch it in agent code."""


class Lease:
    """The lease of one attempt, shared by the author's thread and the keeper's."""

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
        """State of earlier runs: remembered values, files written, steps begun."""
        if self.execution.fence == 1:
            return {}
        return self.insist(lambda: self.store.steps(self.execution.id))

    @property
    def stopped(self) -> str | None:
        """Why the lease was lost, or None."""
        return self._reason if self._gone.is_set() else None

    def stop(self, reason: str) -> None:
        """Marks the lease as lost; the first reason stays."""
        if not self._gone.is_set():
            self._reason = reason
            self._gone.set()

    def check(self) -> None:
        if self.stopped is not None:
            raise LeaseLost(self.stopped)

    def lose(self) -> NoReturn:
        self.stop("lost")
        raise LeaseLost(self.stopped)

    def pause(self, seconds: float) -> None:
        """Waits, but no longer than the lease holds."""
        self._gone.wait(max(0.0, seconds))
        self.check()

    def insist(self, call: Callable[[], T]) -> T:
        """Retries a write through short outages of the store; gives up when the lease must have lapsed."""
        lease = self._lease_us / 1e6
        try:
            return insist(call, "job.store", patience=lease, pause=_AGAIN_SECONDS, rest=self.pause)
        except redis.RedisError as error:
            if is_outage(error):
                self.lose()
            raise

    def append(
        self, facts: Sequence[tuple[str, bytes]], fields: Mapping[str, str | int | float] | None = None
    ) -> bool:
        """Appends events to the log; returns False if it is full."""
        with self._writing:
            self._writes += 1
            id, fence, number = self.execution.id, self.execution.fence, self._writes
            status = self.insist(lambda: self.store.append(id, fence, number, facts, fields))
        if status is AppendAnswer.LOST:
            self.lose()
        return status is AppendAnswer.OK

    def keep(self, name: str, value: bytes, *, kind: str = "", payload: bytes = b"") -> bytes:
        """Returns the value that the first run stored under the name; its event is written once, with it."""
        id, fence = self.execution.id, self.execution.fence
        stored = self.insist(lambda: self.store.remember(id, fence, name, value, kind=kind, payload=payload))
        if stored is None:
            self.lose()
        self.remembered[name] = stored
        return stored
