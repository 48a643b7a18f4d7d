"""gevent against threads, two processes each: short requests that call the store, and slow ones.

Measured to document the choice of server; no goal depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.batches import get, pack
from bench.rounds import Contender, Measurement, Reading, WorkMissing, interleave
from bench.stand import GUNICORN, Stand, answers, client, fetch, until
from worker.local.valkey import free_port

NAME = "serving"
_PROCESSES = 2
_CONNECTIONS = 64
_THREADS = (8, 64)
_WARM_UP = 40


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds = 1 if quick else 3
    requests, slow, seconds = (200, 32, 0.1) if quick else (6_000, 256, 1.0)

    def contender(name: str, *options: str) -> Contender:
        return Contender(name, lambda: _round(stand, options, requests, slow, seconds))

    threaded = [
        contender(
            f"gthread-{threads}",
            *("--worker-class", "gthread", "--threads", str(threads)),
            *("--workers", str(_PROCESSES), "--keep-alive", "75"),
        )
        for threads in _THREADS
    ]
    # As deployed: patched before any import, with every setting of the configuration.
    readings = interleave([contender("gevent", *GUNICORN[2:]), *threaded], rounds, told)
    found = Measurement(NAME, "gevent and gthread, two server processes each", readings)
    found.notes += [
        f"script_*: a route with one script call, {_CONNECTIONS} connections",
        f"slow_*: {slow} requests at once that each wait {seconds:g} s",
    ]
    return found


def _round(stand: Stand, options: tuple[str, ...], requests: int, slow: int, seconds: float) -> Reading:
    stand.empty()
    port = free_port()
    environ = stand.environ(PORT=str(port), WEB_CONCURRENCY=str(_PROCESSES), BENCH_WAIT=str(seconds))
    command = ["-m", "gunicorn", *options, "--bind", f"127.0.0.1:{port}", "bench.served:create_app()"]
    with stand.processes([command], environ) as crowd:
        until(lambda: answers(port, "/script"), "the server did not start")
        for _ in range(_WARM_UP):
            fetch(port, "/script")
        before, cpu = _scripts(stand), crowd.cpu()
        short = _load(stand, port, "/script", _CONNECTIONS, requests)
        cpu = crowd.cpu() - cpu
        called = _scripts(stand) - before
        waited = _load(stand, port, "/wait", slow, slow)
        memory = crowd.memory()
    return {
        "asked": requests + slow,
        "done": called + waited["answered"],
        "script_per_second": requests / short["seconds"],
        "script_p50_ms": short["p50_ms"],
        "script_p99_ms": short["p99_ms"],
        "script_cpu_us": cpu / requests * 1e6,
        "slow_seconds": waited["seconds"],
        "slow_p50_ms": waited["p50_ms"],
        "memory_mb": memory / 1e6,
    }


def _load(stand: Stand, port: int, path: str, connections: int, requests: int) -> dict[str, float]:
    file = pack([get(path)] * requests, stand.folder / "requests")
    seen = client("bench.replay", port, connections, file, 0)
    if seen.get("status_200") != requests:
        raise WorkMissing(f"{path} answered {seen}")
    return seen


def _scripts(stand: Stand) -> int:
    commands: Any = stand.admin.info("commandstats")
    return int(commands.get("cmdstat_evalsha", {}).get("calls", 0))
