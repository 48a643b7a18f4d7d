"""Many concurrent connections and their timings. Import only where gevent has already patched."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping

import gevent


def crowd(
    connections: int,
    ask: Callable[[], None],
    times: list[float],
    more: Callable[[], Mapping[str, float]] = dict,
) -> None:
    """Run `ask` on every connection until nothing is left; print what `times` shows then, and `more`."""
    began = time.perf_counter()
    gevent.joinall([gevent.spawn(ask) for _ in range(connections)], raise_error=True)
    took = time.perf_counter() - began
    times.sort()
    seen = {
        "answered": len(times),
        "seconds": took,
        "p50_ms": statistics.median(times) * 1e3,
        "p99_ms": times[int(len(times) * 0.99)] * 1e3,
        **more(),
    }
    print(json.dumps(seen))
