"""Counts tool calls in sliding windows: in the store for every process at once, or in memory for tests.

Both keep an exact log of the calls that were allowed. A refused call is not counted, so a caller that keeps
trying gets through as soon as its oldest call leaves the window.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from redis import Redis

_SCRIPT = (Path(__file__).parent / "lua" / "rate_limit.lua").read_text(encoding="utf-8")


class StoreRateLimiter:
    """A sorted set for each key, under the prefix, on the store's own clock."""

    def __init__(self, store: Redis, prefix: str, clock_offset: str | None = None) -> None:
        self._prefix = prefix
        self._clock = [] if clock_offset is None else [clock_offset]
        self._script = store.register_script(_SCRIPT)

    def take(self, key: str, max: int, window_us: int) -> bool:
        """Count one call if fewer than `max` were counted in the last `window_us`."""
        # Ids come from strangers: half a surrogate pair in one must not stop the call from being counted.
        name = f"{self._prefix}rate:{key}".encode("utf-8", "surrogatepass")
        return bool(self._script(keys=[name, *self._clock], args=[max, window_us, uuid.uuid4().hex]))


class MemoryRateLimiter:
    """The same in one process, on a clock that the caller gives (microseconds)."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._calls: dict[str, list[int]] = {}
        self._longest: dict[str, int] = {}

    def take(self, key: str, max: int, window_us: int) -> bool:
        """Count one call if fewer than `max` were counted in the last `window_us`."""
        now = self._now_us()
        calls = self._calls.setdefault(key, [])
        stored = self._longest.get(key, 0)
        longest = window_us if window_us > stored else stored
        del calls[: bisect_right(calls, now - longest)]
        if len(calls) - bisect_right(calls, now - window_us) >= max:
            return False
        calls.append(now)
        self._longest[key] = longest
        return True
