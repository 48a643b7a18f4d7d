"""Latency: from asking for an empty piece of work to seeing that it is done.

Both sides are idle when asked, because a worker still cleaning up after its last job would make the next one
look slow.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import redis
import rq

from bench.peers import nothing
from bench.queued import is_complete, succeeded
from bench.rounds import Contender, Measurement, Reading, interleave
from bench.stand import Stand, until
from worker.core.states import Lane

NAME = "latency"
# Longer than either side needs to become idle again.
_PAUSE = 0.01
_WARM_UP = 20
_PATIENCE = 10


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, asks = (1, 20) if quick else (5, 200)
    stand.empty()
    parts = stand.parts()
    client = redis.Redis.from_url(stand.url)
    queue = rq.Queue("bench", connection=client)

    def by_worker() -> Callable[[], bool]:
        _, id = parts.executions.create("nothing-express", None, door="bench")
        seen = parts.executions.wait(id, _PATIENCE)
        return lambda: seen and is_complete(parts.executions, id)

    def simple() -> Callable[[], bool]:
        result = queue.enqueue(nothing).latest_result(timeout=_PATIENCE)
        return lambda: succeeded(result)

    with stand.processes([["-m", "worker", "work"], ["-m", "bench.peers", "SimpleWorker", queue.name]]):
        until(
            lambda: parts.store.takers(Lane.EXPRESS) == 1 and rq.Worker.count(queue=queue) == 1,
            "the processes did not start",
        )
        _round(by_worker, _WARM_UP)
        _round(simple, _WARM_UP)
        readings = interleave(
            [
                Contender("express", lambda: _round(by_worker, asks)),
                Contender("rq-simple", lambda: _round(simple, asks)),
            ],
            rounds,
            told,
        )
    found = Measurement(NAME, "create to terminal event seen, against enqueue to result seen", readings)
    found.at_most("express lane against RQ SimpleWorker", "express", "rq-simple", "p50_ms", 2.0)
    return found


def _round(ask: Callable[[], Callable[[], bool]], asks: int) -> Reading:
    """One round: `ask` does it once, and returns how to check later that it was done."""
    times, checks = [], []
    for _ in range(asks):
        time.sleep(_PAUSE)
        began = time.perf_counter()
        check = ask()
        times.append(time.perf_counter() - began)
        checks.append(check)
    return {
        "asked": asks,
        "done": sum(check() for check in checks),
        "p50_ms": statistics.median(times) * 1e3,
        "p95_ms": statistics.quantiles(times, n=20)[-1] * 1e3,
    }
