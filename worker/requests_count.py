"""Counters of a process: requests and policy decisions, added to the store each second for all to see."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter

import redis

_EVERY = 1.0
# Upper ends of the buckets in which durations are counted, in microseconds.
BUCKETS_US = tuple(round(s * 1e6) for s in (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10))


class RequestCounts:
    """Nothing is lost but the last second of a killed process."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client = client
        self._key = key
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def count(self, endpoint: str, status: int) -> None:
        """One request answered."""
        self._add({f'worker_http_requests_total{{endpoint="{endpoint}",status="{status}"}}': 1})

    def policy_took(self, seconds: float) -> None:
        """One decision of the tool policy."""
        took_us = round(seconds * 1e6)
        counted = {"policy count": 1, "policy us": took_us}
        bucket = bisect_left(BUCKETS_US, took_us)
        if bucket < len(BUCKETS_US):
            counted[f"policy le {BUCKETS_US[bucket]}"] = 1
        self._add(counted)

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
        except redis.RedisError:
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
