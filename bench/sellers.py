"""Everything that sells on x402 in these benchmarks: the worker, official middlewares, floors by hand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.purchases import Target
from bench.stand import GUNICORN, ROOT, Crowd, Stand, answers, fetch, until
from worker.local.valkey import free_port

PEERS = Path(__file__).parent / "peer_servers"
PAYEE = "0x" + "99" * 20
_FLOORS = "bench.floors:create_app()"
_BIND = ("--bind", "127.0.0.1:{port}")


@dataclass(frozen=True)
class Seller:
    """One that is started for a round and ended after it."""

    name: str
    command: tuple[str, ...]
    path: str = "/echo"
    # The program; empty: this Python.
    program: str = ""
    folder: Path = ROOT
    # How it is told its port, if it does not read PORT.
    told_port: tuple[str, ...] = ()

    @property
    def is_worker(self) -> bool:
        return self.path == "/execute" or self.path.startswith("/buy/")

    @property
    def is_floor(self) -> bool:
        return _FLOORS in self.command

    def started_at(self, port: int) -> list[str]:
        return [*self.command, *(option.format(port=port) for option in self.told_port)]


def floor(name: str, path: str) -> Seller:
    """Served as the worker is."""
    return Seller(name, (*GUNICORN, _FLOORS), path, told_port=_BIND)


def floor_by_hand(name: str, path: str) -> Seller:
    """Served by gunicorn as it is published, in the setting that costs it least."""
    options = ("--worker-class", "gevent", "--worker-connections", "4000", "--keep-alive", "75")
    return Seller(name, ("-m", "gunicorn", *options, _FLOORS), path, told_port=_BIND)


def flask(processes: int) -> Seller:
    """The official middleware under gunicorn's sync workers, its best setting."""
    command = ("-m", "gunicorn", "--workers", str(processes), "bench.peer_servers.flask_app:create_app()")
    return Seller("flask", command, told_port=_BIND)


WORKER = Seller("worker", GUNICORN, "/execute")
PLAIN = Seller("plain", GUNICORN, "/buy/nothing-paid")
BY_HAND = floor_by_hand("by-hand", "/paid")
JOURNALED = floor_by_hand("journaled", "/journaled")
JOURNALED_AS_SERVED = floor("journaled, our server", "/journaled")
FLASK = flask(1)


def fastapi(processes: int) -> list[Seller]:
    """The official middleware under uvicorn, in its own environment; none where it cannot be installed."""
    from tests import pypi

    python = _installed(lambda: pypi.installed(PEERS / "requirements.txt", "peer-servers-python"))
    options = ("--workers", str(processes), "--log-level", "warning", "--no-access-log")
    command = ("-m", "uvicorn", *options, "fastapi_app:app")
    told_port = ("--port", "{port}")
    return [
        Seller("fastapi", command, program=str(each), folder=PEERS, told_port=told_port) for each in python
    ]


def node_servers() -> list[Seller]:
    """The official servers for node; none where they cannot be installed."""
    from tests import npm

    node = _installed(lambda: npm.installed(PEERS, "peer-servers"))
    return [
        Seller(name, (f"{name}.mjs",), program="node", folder=folder)
        for folder in node
        for name in ("express", "hono")
    ]


def _installed(install: Callable[[], Path]) -> list[Path]:
    """Installs once; says why it cannot."""
    import pytest

    try:
        return [install()]
    except (pytest.skip.Exception, pytest.fail.Exception) as missing:
        print(f"  not compared: {missing}", file=sys.stderr)
        return []


@dataclass(frozen=True)
class Served:
    """A seller that answers."""

    seller: Seller
    port: int
    web: Crowd
    work: Crowd
    facilitator: Crowd
    facilitator_port: int

    def settled(self) -> int:
        return int(json.loads(fetch(self.facilitator_port, "/count"))["settled"])


@contextmanager
def served(
    stand: Stand,
    seller: Seller,
    *,
    verify_s: float = 0.0,
    settle_s: float = 0.0,
    emptied: bool = True,
    **settings: str,
) -> Iterator[Served]:
    """A seller with a facilitator of its own and, if it is the worker, processes that work."""
    if emptied:
        stand.empty()
    port, facilitator_port = free_port(), free_port()
    environ = stand.environ(
        PORT=str(port),
        FACILITATOR_URL=f"http://127.0.0.1:{facilitator_port}",
        PAYEE=PAYEE,
        WORKER_KEY="0x" + "22" * 32,
        NODE_ENV="production",
        NETWORK="base-sepolia",
        **settings,
    )
    facilitator = ["-m", "bench.facilitator", str(facilitator_port), str(verify_s), str(settle_s)]
    command, program, folder = seller.started_at(port), seller.program, seller.folder
    commands = [["-m", "worker", "work"]] if seller.is_worker else []
    with stand.processes([facilitator], prefix=load_prefix()) as paid:
        # Some sellers ask it once, when they start.
        until(lambda: answers(facilitator_port, "/supported"), "the facilitator did not start")
        with (
            stand.processes([command], environ, program=program, folder=folder) as at,
            stand.processes(commands, environ) as work,
        ):
            until(lambda: answers(port, "/health"), f"{seller.name} did not start")
            if seller.is_worker:
                until(lambda: _sells(port), "the worker sells nothing")
            yield Served(seller, port, at, work, paid, facilitator_port)


def _sells(port: int) -> bool:
    """Whether it asks to be paid, so that a clock ticks and what is for sale has been published.

    Several times in a row: any of its processes may answer, and each must have read that.
    """
    try:
        return all([Target(port, PLAIN.path).offer() for _ in range(12)])
    except OSError:
        return False


@contextmanager
def pinned(wanted: bool) -> Iterator[None]:
    """Servers, their store and this process on the first core, load on the second, where there are two."""
    everything = [psutil.Process(), *psutil.Process().children(recursive=True)]
    cores = set(range(os.cpu_count() or 1))
    if not wanted or len(cores) < 2 or sys.platform != "linux":
        yield
        return
    for process in everything:
        process.cpu_affinity([0])
    try:
        yield
    finally:
        for process in everything:
            process.cpu_affinity(sorted(cores))


def load_prefix() -> tuple[str, ...]:
    """Puts a client, or the facilitator, on the core that is kept for load."""
    return ("taskset", "-c", "1") if psutil.Process().cpu_affinity() == [0] else ()
