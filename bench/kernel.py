"""The cost of a remote agent's execution: whole ones, one at a time and eight at once, and creation only.

One web process, which carries the most on two cores, and the clock, on a store that syncs every write; the
clients run on the same machine and are counted separately. Eight at once are measured with two web processes,
too: their callers share fewer round trips. The goals are for two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from bench.rounds import Contender, Measurement, Reading, interleave
from bench.stand import GUNICORN, Crowd, Stand, answers, client, until
from worker.local.valkey import free_port

NAME = "kernel"
# Name, web processes, what the client does, connections, executions per round, target per second.
_KINDS = [
    ("full-1", 1, "full", 1, 800, 400),
    ("full-8", 1, "full", 8, 2_000, 900),
    ("full-8-two", 2, "full", 8, 2_000, 0),
    ("create-16", 1, "create", 16, 6_000, 5_000),
]


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    scale, rounds = (0.02, 1) if quick else (1.0, 5)
    stand.empty()
    with ExitStack() as running:
        served = {processes: running.enter_context(_web(stand, processes)) for processes in (1, 2)}
        running.enter_context(stand.processes([["-m", "worker", "work"]]))
        for port, _ in served.values():
            until(lambda port=port: answers(port, "/ready"), "the processes did not start")  # type: ignore[misc]
        contenders = [
            Contender(
                name,
                lambda at=served[processes], kind=kind, n=n, count=count: _round(  # type: ignore[misc]
                    stand, *at, kind, n, int(count * scale)
                ),
            )
            for name, processes, kind, n, count, _ in _KINDS
        ]
        readings = interleave(contenders, rounds, told)
    found = Measurement(NAME, "executions of remote agents over HTTP and SSE, one web process", readings)
    for name, _, _, n, _, wanted in _KINDS:
        if wanted:
            found.above(f"{name}: executions a second with {n} at once", name, "per_second", wanted)
    found.notes += [
        "full-8-two: two web processes",
        "web_us, store_us, client_us: processor time for one execution; what is left of two cores is waiting",
        "trips: reads of the store from a client's socket for one execution, those of the clock included",
    ]
    return found


@contextmanager
def _web(stand: Stand, processes: int) -> Iterator[tuple[int, Crowd]]:
    port = free_port()
    environ = stand.environ(PORT=str(port), WEB_CONCURRENCY=str(processes))
    with stand.processes([GUNICORN], environ) as crowd:
        yield port, crowd


def _round(stand: Stand, port: int, crowd: Crowd, kind: str, connections: int, count: int) -> Reading:
    before, cpu = stand.spent(), crowd.cpu()
    seen = client("bench.kernel_load", port, kind, connections, count)
    spent, cpu = stand.spent().since(before), crowd.cpu() - cpu
    # The client warms up with some more, which cost the same.
    made = count + max(connections, count // 20)
    return {
        "asked": made,
        "done": _done(stand, kind),
        "per_second": count / seen["seconds"],
        "p50_ms": seen["p50_ms"],
        "p99_ms": seen["p99_ms"],
        "trips": spent.trips / made,
        "commands": spent.commands / made,
        "web_us": cpu / made * 1e6,
        "store_us": spent.seconds / made * 1e6,
        "client_us": seen["client_cpu"] / count * 1e6,
    }


def _done(stand: Stand, kind: str) -> int:
    """Count the round's executions that have ended, then remove them."""
    parts = stand.parts()
    found = parts.store.count(parts.keys.by_state("completed" if kind == "full" else "pending"))
    kept = {
        *map(str.encode, (parts.keys.catalogs, parts.keys.trees, parts.keys.ticks)),
        *stand.admin.scan_iter("w:takers:*"),
    }
    for key in stand.admin.scan_iter(count=10_000):
        if key not in kept:
            stand.admin.unlink(key)
    return found
