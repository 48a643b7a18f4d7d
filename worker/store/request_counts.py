"""Per-process counters of requests and policy decisions, added to the store's totals each second."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import redis

from worker.store.outage import note

_EVERY = 1.0
# Upper bounds of the duration histogram's buckets, in microseconds.
BUCKETS_US = tuple(round(s * 1e6) for s in (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10))
# Those of everything that may take minutes; the engine's scripts count with the same.
LATENCIES_US = tuple(round(s * 1e6) for s in (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800))


def _observed(name: str, of: str, seconds: float, limits: Sequence[int]) -> dict[str, int]:
    """Fields of one observation in a histogram."""
    took_us, end = round(seconds * 1e6), f" {of}" if of else ""
    counted = {f"{name} count{end}": 1, f"{name} us{end}": took_us}
    bucket = bisect_left(limits, took_us)
    if bucket < len(limits):
        counted[f"{name} le {limits[bucket]}{end}"] = 1
    return counted


class RequestCounts:
    """Loses at most the last second of a killed process."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client = client
        self._key = key
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def count(self, endpoint: str, status: int, seconds: float | None = None) -> None:
        """Counts one answered request, and the time to the start of its answer."""
        counted = {f'worker_http_requests_total{{endpoint="{endpoint}",status="{status}"}}': 1}
        if seconds is not None:
            counted |= _observed("request", endpoint, seconds, LATENCIES_US)
        self._add(counted)

    def policy_took(self, seconds: float) -> None:
        """Counts one tool-policy decision."""
        self._add(_observed("policy", "", seconds, BUCKETS_US))

    def flush(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for name, number in counts.items():
                    pipe.hincrby(self._key, name, number)
                pipe.execute()
        except redis.RedisError as error:
            if not note(error, "counts"):
                return  # the thread would hit the same bug each second
            with self._lock:
                self._counts.update(counts)

    def _add(self, counted: dict[str, int]) -> None:
        with self._lock:
            self._counts.update(counted)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="request-counts", daemon=True)
                self._thread.start()

    def _loop(self) -> None:
        while True:
            time.sleep(_EVERY)
            self.flush()
