"""Many connections that ask at once, and what they saw. Whoever imports it has gevent's patch in place."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import gevent


def crowd(connections: int, ask: Callable[[], None], times: list[float]) -> None:
    """Runs `ask` on every connection, each until nothing is left; prints what `times` tells then."""
    began = time.perf_counter()
    gevent.joinall([gevent.spawn(ask) for _ in range(connections)], raise_error=True)
    took = time.perf_counter() - began
    times.sort()
    seen = {
        "answered": len(times),
        "seconds": took,
        "p50_ms": statistics.median(times) * 1e3,
        "p99_ms": times[int(len(times) * 0.99)] * 1e3,
    }
    print(json.dumps(seen))
