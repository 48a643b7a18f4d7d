"""A rolling deploy under traffic: the previous release and this one share a store."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.paid_worker import ROOT
from tests.fakes.seeker import Hired, HttpDoor
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually
from worker.hiring.evidence_check import check_evidence
from worker.local.valkey import free_port
from worker.store.data_version import DATA, OLDEST_BESIDE, DataVersion, read_data_version

# The last commit of the previous release; each release updates it.
PREVIOUS = "b1b3a30"
BUYERS = 4


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True)


@pytest.fixture(name="previous")
def _previous(tmp_path: Path) -> Path:
    """The tree of the previous release, from the repository's history."""
    archive = _git("archive", PREVIOUS)
    if archive.returncode and _git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false":
        pytest.skip("the previous release is not in this clone's history: it has none, or is shallow")
    assert archive.returncode == 0, archive.stderr
    tree = tmp_path / "previous"
    tree.mkdir()
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    return tree


@pytest.fixture(name="processes")
def _processes(tmp_path: Path, previous: Path) -> Iterator[WorkerProcesses]:
    processes = WorkerProcesses(tmp_path)
    try:
        yield processes.open(previous)
        processes.check_books()
    finally:
        processes.close()


class Traffic:
    """Seekers that hire one after another, each through the next open door."""

    def __init__(self, processes: WorkerProcesses) -> None:
        self.processes = processes
        self.doors: list[str] = [processes.url]
        self.hires: list[tuple[str, Hired, str]] = []
        self._turn = itertools.count()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(BUYERS)
        self._buyers = [self._pool.submit(self._buy) for _ in range(BUYERS)]

    def _buy(self) -> None:
        while not self._stop.is_set():
            seeker = self.processes.seeker()
            turn = next(self._turn)
            seeker.door = HttpDoor(self.doors[turn % len(self.doors)])
            capability = ("echo", "long", "early")[turn % 3]
            hired = seeker.hire(capability, {"echo": "0.01", "long": "0.03", "early": "0.02"}[capability])
            task = hired.pay(None, Prefer="respond-async").json["task_id"]
            # The process that was asked may be gone: any process answers for any task.
            seeker.door = HttpDoor(self.doors[-1])
            assert hired.ended(task, 60).json["status"] == "completed"
            self.hires.append((capability, hired, task))

    def goes_on(self, more: int = 12) -> None:
        """Waits for so many more hires."""
        wanted = len(self.hires) + more
        eventually(lambda: len(self.hires) >= wanted or self._failed(), 90, "hires that end well")
        assert not self._failed()

    def _failed(self) -> bool:
        for buyer in self._buyers:
            if buyer.done():
                buyer.result()
        return False

    def stop(self) -> list[tuple[str, Hired, str]]:
        self._stop.set()
        for buyer in self._buyers:
            buyer.result(90)
        self._pool.shutdown()
        return self.hires


def test_old_and_new_processes_sell_side_by_side(processes: WorkerProcesses, previous: Path) -> None:
    """Old alone, both, new alone: every hire completes once and is paid once, and the ledger adds up."""
    traffic = Traffic(processes)
    traffic.goes_on()
    assert _version(processes).written < DATA

    port = str(free_port())
    processes.start("new-web", "gunicorn", "-c", "config/gunicorn.py", PORT=port)
    processes.start("new-work", "worker", "work", WORKER_AGENTS="tests.fakes.newer_agents")
    new = f"http://127.0.0.1:{port}"
    eventually(lambda: _healthy(new), 40, "the new web process")
    assert _version(processes) == DataVersion(DATA, OLDEST_BESIDE)
    traffic.doors.append(new)
    traffic.goes_on(24)
    _check_shown_alike(traffic.hires[-24:], traffic.doors)
    # Each tree takes only what it can run, so what is new is sold beside the previous release.
    eventually(lambda: "brandnew" in _offered(new), 40, "the new agent on sale")
    _buy_what_is_new(processes, new)

    traffic.doors.remove(processes.url)
    processes.end("work", "web")
    traffic.goes_on()
    _buy_what_is_new(processes, new)

    hires = traffic.stop()
    assert {capability for capability, _, _ in hires} == {"echo", "long", "early"}
    price = {"echo": 10_000, "early": 20_000, "long": 30_000}
    for capability, hired, task in hires:
        assert processes.dollars(hired.seeker.wallet) == 1_000_000 - price[capability]
        assert processes.runs(task) == 1 or processes.kinds(task).count("execution.reset")
        assert processes.kinds(task).count("payment.settled") == 1


def _buy_what_is_new(processes: WorkerProcesses, url: str) -> None:
    seeker = processes.seeker()
    seeker.door = HttpDoor(url)
    hired = seeker.hire("brandnew")
    task = hired.pay(None, Prefer="respond-async").json["task_id"]
    assert hired.ended(task, 60).json["status"] == "completed"


def _version(processes: WorkerProcesses) -> DataVersion:
    return read_data_version(processes.parts.client, processes.parts.keys)


def _check_shown_alike(hires: list[tuple[str, Hired, str]], doors: list[str]) -> None:
    """Old and new processes show whoever sold it the same result, PAYMENT-RESPONSE and evidence."""
    for _, hired, task in hires:
        headers = {"X-Contract-ID": hired.id}
        shown = [HttpDoor(url)("GET", f"/tasks/{task}", None, headers) for url in doors]
        assert {each.status for each in shown} == {200}
        assert len({each.header("PAYMENT-RESPONSE") for each in shown}) == 1
        evidence = [HttpDoor(url)("GET", f"/tasks/{task}/evidence", None, headers).json for url in doors]
        assert all(any("receipt is signed" in line for line in check_evidence(each)) for each in evidence)
        assert len({json.dumps(each["payment"]) for each in evidence}) == 1


def _offered(url: str) -> set[str]:
    return {each["name"] for each in HttpDoor(url)("GET", "/manifest").json["capabilities"]}


def _healthy(url: str) -> bool:
    try:
        return HttpDoor(url, 2)("GET", "/health").status == 200
    except OSError:
        return False
