"""A warm process says that it is there, so that readiness and room for work can be told."""

from __future__ import annotations

import time
from collections.abc import Callable

from worker.executions.store import ExecutionStore

_EVERY = 2.0


class Presence:
    """Signs in the store at most every two seconds, however often it is asked to; `beat` tells the parent."""

    def __init__(
        self, store: ExecutionStore, lane: str, name: str, *, beat: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._lane = lane
        self._name = name
        self._beat = beat
        self._signed = float("-inf")

    def sign(self) -> None:
        self._beat()
        now = time.monotonic()
        if now - self._signed >= _EVERY:
            self._signed = now
            self._store.sign_on(self._lane, self._name)
