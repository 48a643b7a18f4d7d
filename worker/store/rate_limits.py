"""Counts tool calls in sliding windows: in the store for all processes, or in memory for tests.

Both keep an exact log of allowed calls. Refused calls are not counted, so a caller that keeps trying gets
through as soon as its oldest call leaves the window.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable

from redis import Redis

from worker.store.data_model import Keys
from worker.store.scripts import LUA, Scripts


class StoreRateLimiter:
    """Uses one sorted set per key, and the store's clock."""

    def __init__(self, client: Redis, keys: Keys, *, test_clock: bool = False) -> None:
        self._prefix = keys.prefix
        self._scripts = Scripts(client, keys, LUA, test_clock=test_clock)

    def take(self, key: str, max: int, window_us: int, call: str = "") -> bool:
        """Counts a call if fewer than `max` were counted in the last `window_us`; a repeated call is free."""
        # Callers choose ids: an unpaired surrogate in one must not prevent counting the call.
        rate = f"{self._prefix}:rate:{key}".encode("utf-8", "surrogatepass")
        call = call or uuid.uuid4().hex
        return bool(self._scripts.value("rate_limit", rate=rate, most=max, window=window_us, call=call))


class MemoryRateLimiter:
    """The same in one process, with a clock that the caller supplies (microseconds)."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._calls: dict[str, list[tuple[int, str]]] = {}
        self._longest: dict[str, int] = {}

    def take(self, key: str, max: int, window_us: int, call: str = "") -> bool:
        """Counts a call if fewer than `max` were counted in the last `window_us`; a repeated call is free."""
        now = self._now_us()
        calls = self._calls.setdefault(key, [])
        stored = self._longest.get(key, 0)
        longest = window_us if window_us > stored else stored
        del calls[: bisect_right(calls, now - longest, key=_time)]
        if call and any(name == call for _, name in calls):
            return True
        if len(calls) - bisect_right(calls, now - window_us, key=_time) >= max:
            return False
        calls.append((now, call))
        self._longest[key] = longest
        return True


def _time(counted: tuple[int, str]) -> int:
    return counted[0]
