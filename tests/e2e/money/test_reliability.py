"""The table of docs/reliability.md: inject each fault while one hire is running and others are requested."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import requests

from tests.e2e.conftest import Measure
from tests.e2e.money.faults import FAULTS, Fault, injected
from tests.fakes.seeker import Hired, Seeker
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually

PAGE = Path(__file__).parents[3] / "docs" / "reliability.md"
PRICE = 10_000
SLOW: dict[str, Any] = {"do": "sleep", "seconds": 1.5}
# Large enough that input and output are stored as files.
LONG = SLOW | {"text": "x" * 40_000}
FIGURES = "WRITE_FIGURES"


@pytest.fixture(name="processes", scope="module")
def _processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcesses]:
    processes = WorkerProcesses(
        tmp_path_factory.mktemp("reliability"), WORKER_AGENTS="tests.fakes.patient_agents"
    )
    try:
        yield processes.open()
    finally:
        processes.close()


class PatientSeeker(threading.Thread):
    """Sends one paid request and retries it unchanged until it gets the result."""

    def __init__(self, hired: Hired, body: dict) -> None:
        super().__init__(daemon=True)
        self.hired, self.body = hired, body
        self.header = hired.sign(hired.offer(body))
        self.seen: set[str] = set()
        self.ended = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                answer = self.hired.execute(self.body, self.header)
                come_back = answer.status != 503 or answer.header("Retry-After")
                self.seen.add(str(answer.status) if come_back else "503 without Retry-After")
                if answer.status == 200:
                    self.ended = time.monotonic()
                    return
            except requests.RequestException:
                self.seen.add("no answer")
            time.sleep(0.1)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_survived_as_the_table_says(
    processes: WorkerProcesses, fault: Fault, measure: Measure
) -> None:
    """The running hire ends with one charge, a new one succeeds in time, and the ledger balances."""
    patient = PatientSeeker(processes.seeker().hire("steady"), SLOW if fault.refuses else LONG)
    asked, fresh = processes.seeker().hire("steady"), processes.seeker()
    patient.start()
    try:
        began = time.monotonic()
        with injected(fault, processes):
            if fault.refuses:
                eventually(lambda: _refused(asked), 15, "a refusal before money")
        healed = _healed(fresh, fault) - began
        patient.join(fault.within + 30)
        assert patient.ended, patient.seen
    finally:
        patient.over.set()
    assert patient.seen <= fault.seen, patient.seen
    for seeker in (patient.hired.seeker, fresh):
        assert processes.dollars(seeker.wallet) == 1_000_000 - PRICE
    assert processes.dollars(asked.seeker.wallet) == 1_000_000
    assert max(healed, patient.ended - began) < fault.within + SLOW["seconds"]
    processes.check_books()
    measure(f"{fault.name} -> a new hire completes", healed)
    measure(f"{fault.name} -> the hire in work completes", patient.ended - began)
    if os.environ.get(FIGURES):
        _write(fault, f"{healed:.1f} s, {patient.ended - began:.1f} s")


def _refused(hired: Hired) -> bool:
    answer = hired.execute({"do": "ok"})
    return (answer.status, answer.code) == (503, "STORAGE_UNAVAILABLE")


def _healed(seeker: Seeker, fault: Fault) -> float:
    """When a hire started after the fault has completed."""
    until = time.monotonic() + fault.within + 30
    hired, header = None, None
    while time.monotonic() < until:
        try:
            hired = hired or seeker.hire("steady")
            header = header or hired.sign()
            if hired.execute({"do": "ok"}, header).status == 200:
                return time.monotonic()
        except (requests.RequestException, redis.RedisError):  # connection refused, or no store for the time
            pass
        except AssertionError:  # 503 instead of 402: draft the next contract after it
            hired = None
        time.sleep(0.1)
    raise AssertionError("no hire succeeds")


def _write(fault: Fault, figures: str) -> None:
    """Writes this run's figures into the table."""
    text = PAGE.read_text()
    found = re.sub(re.escape(fault.row) + r".*", lambda _: f"{fault.row} {figures} |", text)
    PAGE.write_text(found)


def test_table_has_these_rows() -> None:
    """The page lists exactly the faults that are run; its last column is from the last measured run."""
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| (?!fault|---)", line)]
    assert [line[: len(fault.row)] for line, fault in zip(rows, FAULTS, strict=True)] == [
        fault.row for fault in FAULTS
    ]
    assert all(re.search(r"\| [0-9.]+ s, [0-9.]+ s \|$", line) for line in rows), "run with WRITE_FIGURES=1"
