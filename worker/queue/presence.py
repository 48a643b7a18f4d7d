"""Heartbeats of warm processes, for readiness and free capacity."""

from __future__ import annotations

import time
from collections.abc import Callable

from worker.engine.transitions import ExecutionStore

_EVERY = 2.0


class Presence:
    """Writes a heartbeat to the store at most every two seconds; `beat` and `signed_on` tell the parent."""

    def __init__(
        self,
        store: ExecutionStore,
        lane: str,
        name: str,
        *,
        beat: Callable[[], None] = lambda: None,
        signed_on: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._lane = lane
        self._name = name
        self._beat = beat
        self._signed_on = signed_on
        self._signed = float("-inf")

    def sign(self) -> None:
        self._beat()
        now = time.monotonic()
        if now - self._signed >= _EVERY:
            self._signed = now
            self._store.sign_on(self._lane, self._name)
            self._signed_on()

    def leave(self) -> None:
        """Removes this process from its lane at once; it takes no more work."""
        self._store.sign_off(self._lane, self._name)
