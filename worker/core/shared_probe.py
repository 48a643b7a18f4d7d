"""A health probe of something that may hang: shared by concurrent callers, with bounded latency."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

SILENT = "does not answer in time"
# Much shorter than the probed service's own time-out.
PATIENCE = 1.5


@dataclass
class _Probe:
    """One probe, shared by all callers while it runs."""

    done: threading.Event = field(default_factory=threading.Event)
    found: str = SILENT
    ended: float = 0.0


class SharedProbe:
    """Runs `ask` in its own thread, one at a time, and reuses its result for `fresh_s` seconds."""

    def __init__(self, ask: Callable[[], str], *, name: str, fresh_s: float = 0.0) -> None:
        self._ask = ask
        self._name = name
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._current: _Probe | None = None

    def check(self) -> str:
        """Returns what `ask` found, or SILENT."""
        with self._lock:
            probe = self._current
            if probe is None or self._is_stale(probe):
                probe = self._current = _Probe()
                threading.Thread(target=self._run, args=(probe,), name=self._name, daemon=True).start()
        probe.done.wait(PATIENCE)
        return probe.found

    def _is_stale(self, probe: _Probe) -> bool:
        return probe.done.is_set() and time.monotonic() - probe.ended >= self._fresh_s

    def _run(self, probe: _Probe) -> None:
        try:
            probe.found = self._ask()
        finally:
            probe.ended = time.monotonic()
            probe.done.set()
