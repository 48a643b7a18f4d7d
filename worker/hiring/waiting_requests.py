"""Counts this process's requests that wait for each execution."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# Duplicate requests that may wait for the first one's answer; further ones get a pending answer at once.
MOST_WAITING = 8


@dataclass
class WaitingRequests:
    """Bounds the duplicates of one request that wait at the same time."""

    _waiting: Counter[str] = field(default_factory=Counter, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @contextmanager
    def one_more(self, id: str) -> Iterator[bool]:
        """Yields whether one more request may wait; holds its slot until the block ends."""
        joins = self._joins(id)
        try:
            yield joins
        finally:
            if joins:
                self._leaves(id)

    def _joins(self, id: str) -> bool:
        with self._lock:
            joins = self._waiting[id] < MOST_WAITING
            self._waiting[id] += joins
            return joins

    def _leaves(self, id: str) -> None:
        with self._lock:
            self._waiting[id] -= 1
            if not self._waiting[id]:
                del self._waiting[id]
