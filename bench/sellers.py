"""Everything that sells on x402 in these benchmarks: the worker, official middlewares, floors by hand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.rounds import WorkMissing
from bench.stand import ROOT, Crowd, Stand, answers, fetch, until
from worker.local.valkey import free_port

PEERS = Path(__file__).parent / "peer_servers"
PAYEE = "0x" + "99" * 20
_GUNICORN = ("-m", "gunicorn", "--config", "config/gunicorn.py")


@dataclass(frozen=True)
class Seller:
    """One that is started for a round and ended after it."""

    name: str
    command: tuple[str, ...]
    path: str = "/echo"
    # The program; empty: this Python.
    program: str = ""
    folder: Path = ROOT

    @property
    def is_worker(self) -> bool:
        return self.path == "/execute" or self.path.startswith("/buy/")


def floor(name: str, path: str) -> Seller:
    return Seller(name, (*_GUNICORN, "bench.floors:create_app()"), path)


WORKER = Seller("worker", _GUNICORN, "/execute")
PLAIN = Seller("plain", _GUNICORN, "/buy/nothing-paid")
BY_HAND = floor("by-hand", "/paid")
JOURNALED = floor("journaled", "/journaled")
FLASK = Seller("flask", ("-m", "gunicorn", "bench.peer_servers.flask_app:create_app()"))


def others() -> list[Seller]:
    """The official servers that need more than this Python has; installs them once."""
    import pytest

    from tests import npm, pypi

    try:
        python = pypi.installed(PEERS / "requirements.txt", "peer-servers-python")
        node = npm.installed(PEERS, "peer-servers")
    except (pytest.skip.Exception, pytest.fail.Exception) as missing:
        raise WorkMissing(str(missing)) from None
    uvicorn = ("-m", "uvicorn", "--log-level", "warning", "--no-access-log", "fastapi_app:app")
    return [
        Seller("fastapi", uvicorn, program=str(python), folder=PEERS),
        Seller("express", ("express.mjs",), program="node", folder=node),
        Seller("hono", ("hono.mjs",), program="node", folder=node),
    ]


@dataclass(frozen=True)
class Served:
    """A seller that answers."""

    seller: Seller
    port: int
    web: Crowd
    work: Crowd
    facilitator_port: int

    def settled(self) -> int:
        return int(json.loads(fetch(self.facilitator_port, "/count"))["settled"])


@contextmanager
def served(
    stand: Stand, seller: Seller, *, verify_s: float = 0.0, settle_s: float = 0.0, web: int = 1
) -> Iterator[Served]:
    """A seller with a facilitator of its own and, if it is the worker, processes that work."""
    stand.empty()
    port, facilitator_port = free_port(), free_port()
    environ = stand.environ(
        PORT=str(port),
        FACILITATOR_URL=f"http://127.0.0.1:{facilitator_port}",
        PAYEE=PAYEE,
        WORKER_KEY="0x" + "22" * 32,
        NODE_ENV="production",
        WEB_CONCURRENCY=str(web),
        NETWORK="base-sepolia",
    )
    facilitator = ["-m", "bench.facilitator", str(facilitator_port), str(verify_s), str(settle_s)]
    command, program, folder = _options(seller, port), seller.program, seller.folder
    with (
        stand.processes([facilitator], prefix=load_prefix()),
        stand.processes([command], environ, program=program, folder=folder) as at,
    ):
        until(lambda: answers(facilitator_port, "/supported"), "the facilitator did not start")
        commands = [["-m", "worker", "work"]] if seller.is_worker else []
        with stand.processes(commands, environ) as work:
            until(lambda: answers(port, "/health"), f"{seller.name} did not start")
            if seller.is_worker:
                until(lambda: answers(port, "/v0/ready"), "the worker is not ready")
            yield Served(seller, port, at, work, facilitator_port)


def _options(seller: Seller, port: int) -> Sequence[str]:
    """The command with its port, for servers that do not read PORT."""
    if seller is FLASK or "bench.floors:create_app()" in seller.command:
        return [*seller.command, "--bind", f"127.0.0.1:{port}"]
    if "uvicorn" in seller.command:
        return [*seller.command, "--port", str(port)]
    return seller.command


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
