"""Many concurrent connections and their timings. Import only where gevent has already patched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

import gevent

from bench.rounds import latencies


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
    print(json.dumps({"answered": len(times), "seconds": took, **latencies(times), **more()}))
