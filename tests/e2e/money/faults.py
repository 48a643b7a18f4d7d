"""The faults of docs/reliability.md: how each is injected, and what seekers may see until it heals."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from tests.fakes.unusable_files import unusable_files
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually
from worker.local.valkey import EmbeddedStore

Inject = Callable[[WorkerProcesses], "Iterator[None]"]


@dataclass(frozen=True)
class Fault:
    """One row of the table. `seen`: responses that a seeker may get until it heals; `within`: seconds."""

    name: str
    sees: str
    charged: str
    heals: str
    within: float
    seen: frozenset[str]
    inject: Inject
    # Whether new hires are refused before payment until it heals.
    refuses: bool = False

    @property
    def row(self) -> str:
        return f"| {self.name} | {self.sees} | {self.charged} | {self.heals} | {self.within:g} s |"


def busy_process(processes: WorkerProcesses) -> int:
    """The warm process that runs the current work."""

    def find() -> int:
        keys = processes.parts.keys
        for id in processes.parts.client.zrange(keys.leases, 0, -1):
            worker = processes.parts.client.hget(keys.record(id.decode()), "worker")
            return int(worker.decode().rpartition("-")[2])
        return 0

    return eventually(find, 20, "work in progress")


def warm_process(processes: WorkerProcesses) -> Iterator[None]:
    os.kill(busy_process(processes), signal.SIGKILL)
    yield


def web_process(processes: WorkerProcesses) -> Iterator[None]:
    busy_process(processes)
    os.kill(processes.web_pid(), signal.SIGKILL)
    yield


def work_tree(processes: WorkerProcesses) -> Iterator[None]:
    busy_process(processes)
    family = [processes.programs["work"].pid]
    family += [child.pid for child in psutil.Process(family[0]).children(recursive=True)]
    for pid in family:
        os.kill(pid, signal.SIGKILL)
    processes.programs.pop("work").wait()
    processes.start("work", "worker", "work")
    yield


def store_killed(processes: WorkerProcesses) -> Iterator[None]:
    busy_process(processes)
    assert isinstance(processes.store, EmbeddedStore) and processes.store.pid is not None
    os.kill(processes.store.pid, signal.SIGKILL)
    yield


def store_frozen(processes: WorkerProcesses) -> Iterator[None]:
    busy_process(processes)
    assert isinstance(processes.store, EmbeddedStore) and processes.store.pid is not None
    os.kill(processes.store.pid, signal.SIGSTOP)
    try:
        time.sleep(2)
    finally:
        os.kill(processes.store.pid, signal.SIGCONT)
    yield


def files_removed(processes: WorkerProcesses) -> Iterator[None]:
    busy_process(processes)
    shutil.rmtree(processes.home / "files", ignore_errors=True)
    yield


def files_broken(processes: WorkerProcesses) -> Iterator[None]:
    busy_process(processes)
    with unusable_files(processes.home):
        yield


def deploy(processes: WorkerProcesses) -> Iterator[None]:
    busy_process(processes)
    processes.start("next-work", "worker", "work")
    processes.end("work")
    processes.programs["work"] = processes.programs.pop("next-work")
    yield


def facilitator_away(processes: WorkerProcesses) -> Iterator[None]:
    busy_process(processes)
    processes.restart_facilitator(away_s=5)
    yield


def facilitator_hangs(processes: WorkerProcesses) -> Iterator[None]:
    """It takes calls and answers none, then is started again by its host."""
    busy_process(processes)
    with processes.block_time(60):
        time.sleep(4)
        processes.restart_facilitator(away_s=0)
    yield


def slow_chain(processes: WorkerProcesses) -> Iterator[None]:
    busy_process(processes)
    with processes.block_time(6):
        time.sleep(8)
    yield


ONCE = "once, when delivered"
AGAIN = frozenset({"200", "202"})
CUT = AGAIN | {"no answer"}
LATER = CUT | {"503"}
FAULTS = (
    Fault(
        *("kill -9 of the process that runs the work", "the same answer, later", ONCE),
        *("the supervisor: a new process, the next attempt", 10, AGAIN, warm_process),
    ),
    Fault(
        *("kill -9 of the web process", "a broken connection; the same request again", ONCE),
        *("gunicorn: a new process; the clock settles", 15, CUT, web_process),
    ),
    Fault(
        *("kill -9 of all work processes", "202, and the result once they are back", ONCE),
        *("the host starts them; the clock takes the work back", 30, AGAIN, work_tree),
    ),
    Fault(
        *("kill -9 of the store", "503 with Retry-After; contracts signed before wait", ONCE),
        *("the store's host; the worker connects anew", 30, LATER, store_killed),
    ),
    Fault(
        *("the store hangs for 2 s", "a later answer, or 503 with Retry-After", ONCE),
        *("nothing to heal", 20, LATER, store_frozen),
    ),
    Fault(
        *("the files directory is removed", "nothing", ONCE),
        *("the next writer makes it again", 10, AGAIN, files_removed),
    ),
    Fault(
        *("files cannot be stored", "503 `STORAGE_UNAVAILABLE` before a 402", "nothing until it heals"),
        *("the operator; noticed within 5 s", 30, AGAIN, files_broken, True),
    ),
    Fault(
        *("a deploy replaces the work processes", "a later answer", ONCE),
        *("old processes finish or hand back", 30, AGAIN, deploy),
    ),
    Fault(
        *("the facilitator is away for 5 s", "202, and the result later", ONCE),
        *("the clock calls again for the same payment", 60, AGAIN, facilitator_away),
    ),
    Fault(
        *("the facilitator ends in mid-settle", "202, and the result later", ONCE),
        *("the clock calls again, or the chain shows the transfer", 90, AGAIN, facilitator_hangs),
    ),
    Fault(
        *("the chain makes a block every 6 s", "202, and the result with the block", ONCE),
        *("nothing to heal", 60, AGAIN, slow_chain),
    ),
)


@contextmanager
def injected(fault: Fault, processes: WorkerProcesses) -> Iterator[None]:
    """Injects the fault for the duration of the block."""
    yield from fault.inject(processes)
