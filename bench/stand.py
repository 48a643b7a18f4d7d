"""The benchmark environment: one embedded store that syncs every write, and processes on it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import redis

from bench.rounds import WorkMissing
from worker.core.settings import Settings
from worker.local.parent_guard import death_signal
from worker.local.valkey import EmbeddedStore
from worker.parts import Parts

ROOT = Path(__file__).parents[1]
PATIENCE = 60.0
GUNICORN = ("-m", "gunicorn", "--config", "config/gunicorn.py")


@dataclass
class Stand:
    """A store of its own, emptied before each round."""

    url: str
    folder: Path
    admin: redis.Redis

    def environ(self, **more: str) -> dict[str, str]:
        """The settings of the measured processes: defaults, and this store's address."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {
            **kept,
            "REDIS_URL": self.url,
            "WORKER_STATE_DIR": str(self.folder / "state"),
            "WORKER_AGENTS": "bench.agents",
            "LOG_FORMAT": "json",
            **more,
        }

    def parts(self) -> Parts:
        return Parts(Settings.load(self.environ()), "web")

    def empty(self) -> None:
        self.admin.flushall()

    @contextmanager
    def processes(
        self,
        commands: Sequence[Sequence[str]],
        environ: Mapping[str, str] | None = None,
        *,
        program: str = "",
        folder: Path = ROOT,
        prefix: Sequence[str] = (),
    ) -> Iterator[Crowd]:
        """Python processes, or another program's, that end with the block."""
        started = [
            subprocess.Popen(
                [*prefix, program or sys.executable, *command],
                cwd=folder,
                env=dict(environ or self.environ()),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=death_signal(),
            )
            for command in commands
        ]
        crowd = Crowd([psutil.Process(each.pid) for each in started])
        try:
            yield crowd
        finally:
            crowd.kill()
            for each in started:
                each.wait()

    def memory(self) -> int:
        """Bytes that the store holds, without the buffers of its clients and of its log."""
        info: Any = self.admin.info("memory")
        buffers = sum(int(info[name]) for name in ("mem_clients_normal", "mem_aof_buffer"))
        return int(info["used_memory"]) - buffers

    def spent(self) -> Spent:
        """The store's work so far: round trips, commands (including those of scripts), its own time."""
        stats: Any = self.admin.info("stats")
        cpu: Any = self.admin.info("cpu")
        commands: Any = self.admin.info("commandstats")
        return Spent(
            trips=int(stats["total_reads_processed"]),
            commands=sum(int(each["calls"]) for each in commands.values()),
            seconds=float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
        )


@dataclass(frozen=True)
class Spent:
    """The store's counters at one moment. A round trip is one read from a client's socket."""

    trips: int
    commands: int
    seconds: float

    def since(self, before: Spent) -> Spent:
        return Spent(
            self.trips - before.trips, self.commands - before.commands, self.seconds - before.seconds
        )


@dataclass(frozen=True)
class Crowd:
    """The processes that do a contender's work."""

    roots: list[psutil.Process]

    def cpu(self) -> float:
        """Seconds of processor time used by them and all their children, including ended ones."""
        total = 0.0
        for root in self.roots:
            for each in (root, *root.children(recursive=True)):
                try:
                    times = each.cpu_times()
                    total += _own_cpu(each) + times.children_user + times.children_system
                except psutil.NoSuchProcess:
                    continue
        return total

    def kill(self) -> None:
        """Kill at once: no graceful end is needed. Parents first: they would restart their children."""
        family = [child for root in self.roots for child in root.children(recursive=True)]
        for each in (*self.roots, *family):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        until(lambda: all(_over(each) for each in family), "processes do not end", every=0.002)

    def memory(self) -> int:
        """Bytes held by all of them, with shared memory counted once."""
        return sum(
            int(each.memory_full_info().pss)
            for root in self.roots
            for each in (root, *root.children(recursive=True))
        )


def _own_cpu(process: psutil.Process) -> float:
    """Seconds of processor time of its threads; the system's own figures come in steps of 10 ms."""
    if sys.platform == "linux":
        try:
            # The number of a process's clock, as clock_getcpuclockid makes it.
            return time.clock_gettime((~process.pid << 3) | 2)
        except OSError:
            raise psutil.NoSuchProcess(process.pid) from None
    times = process.cpu_times()
    return times.user + times.system


def _over(process: psutil.Process) -> bool:
    """Whether it is dead; its new parent may reap it late, which does not matter."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def stand() -> Iterator[Stand]:
    """A store on this machine's disk, with the embedded store's fixed settings."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, EmbeddedStore(folder) as store:
        admin = redis.Redis.from_url(store.socket_url)
        yield Stand(store.socket_url, Path(folder), admin)
        admin.close()


def client(module: str, *arguments: object, prefix: Sequence[str] = ()) -> dict[str, float]:
    """Runs one of this package's clients to its end; returns what it saw."""
    command = [*prefix, sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise WorkMissing(f"a client failed: {done.stderr.strip().splitlines()[-1:]}")
    if done.stderr:
        print(done.stderr, end="", file=sys.stderr)
    seen: dict[str, float] = json.loads(done.stdout)
    return seen


def fetch(port: int, path: str) -> bytes:
    """The body of a 200 from this machine; anything else is an OSError."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        body: bytes = answer.read()
        return body


def answers(port: int, path: str) -> bool:
    try:
        fetch(port, path)
    except OSError:
        return False
    return True


def until(check: Callable[[], bool], what: str, *, every: float = 0.005) -> int:
    """Poll until it is true; return the number of polls."""
    give_up = time.monotonic() + PATIENCE
    asked = 1
    while not check():
        if time.monotonic() > give_up:
            raise WorkMissing(what)
        time.sleep(every)
        asked += 1
    return asked
