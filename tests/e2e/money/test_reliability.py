"""The table of docs/reliability.md: inject each fault while a hire and a plain purchase are running."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import requests

from tests.e2e.conftest import Measure
from tests.e2e.money.faults import FAULTS, Fault, busy_process, injected
from tests.fakes.plain_buyer import PlainBuyer
from tests.fakes.seeker import DoorAnswer, Hired, OtherStatus, Seeker
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually
from worker.x402.sign_in import SIGN_IN

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


class Patient(threading.Thread):
    """Sends one paid request and retries it unchanged until it gets the result."""

    def __init__(self, seeker: Seeker, ask: Callable[[], DoorAnswer]) -> None:
        super().__init__(daemon=True)
        self.seeker, self.ask = seeker, ask
        self.seen: set[str] = set()
        self.phase = ""
        self.ended = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                answer = self.ask()
                come_back = answer.status != 503 or answer.header("Retry-After")
                self.seen.add(str(answer.status) if come_back else "503 without Retry-After")
                self.phase = answer.json.get("phase", self.phase)
                if answer.status == 200 and answer.json["status"] == "completed":
                    self.ended = time.monotonic()
                    return
            except requests.RequestException:
                self.seen.add("no answer")
            time.sleep(0.1)


def with_contract(seeker: Seeker, body: dict) -> Patient:
    hired = seeker.hire("steady")
    header = hired.sign(hired.offer(body))
    return Patient(seeker, lambda: hired.execute(body, header))


def without_contract(seeker: Seeker, body: dict) -> Patient:
    """Buys at the plain door; once the payment is public, it signs in to read the result."""
    plain = PlainBuyer(seeker, "steady")
    header = plain.sign(body)

    def ask() -> DoorAnswer:
        answer = plain.send(body, header, Prefer="respond-async")
        if answer.status != 401:
            return answer
        challenge = answer.json["error"]["details"]["extensions"][SIGN_IN]
        proof = plain.proof(challenge)
        return plain.read(answer.json["error"]["details"]["task_id"], SIGN_IN_WITH_X=proof)

    return Patient(seeker, ask)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_survived_as_the_table_says(
    processes: WorkerProcesses, fault: Fault, measure: Measure
) -> None:
    """Hire and purchase end with one charge each, a new hire succeeds in time, and the ledger balances."""
    # The purchase may still wait when the fault comes, and has no file of an input to lose.
    patients = (
        with_contract(processes.seeker(), SLOW if fault.refuses else LONG),
        without_contract(processes.seeker(), SLOW),
    )
    asked, fresh = processes.seeker().hire("steady"), processes.seeker()
    patients[0].start()
    busy_process(processes)
    patients[1].start()
    # Its payment is claimed and verified: a claim that a dying store loses would wait for the chain.
    eventually(lambda: patients[1].phase in ("working", "settling", "done"), 20, "the purchase at work")
    try:
        began = time.monotonic()
        with injected(fault, processes):
            if fault.refuses:
                eventually(lambda: _refused(asked), 15, "a refusal before money")
        healed = _healed(fresh, fault) - began
        for patient in patients:
            patient.join(fault.within + 30)
            assert patient.ended, patient.seen
    finally:
        for patient in patients:
            patient.over.set()
    ended = max(patient.ended for patient in patients)
    for patient in patients:
        assert patient.seen <= fault.seen, patient.seen
    for seeker in (*(patient.seeker for patient in patients), fresh):
        assert processes.dollars(seeker.wallet) == 1_000_000 - PRICE
    assert processes.dollars(asked.seeker.wallet) == 1_000_000
    assert max(healed, ended - began) < fault.within + SLOW["seconds"]
    processes.check_books()
    measure(f"{fault.name} -> a new hire completes", healed)
    measure(f"{fault.name} -> the hire in work completes", ended - began)
    if os.environ.get(FIGURES):
        _write(fault, f"{healed:.1f} s, {ended - began:.1f} s")


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
        except OtherStatus as other:
            if other.status != 503:
                raise
            hired = None  # draft the next contract after it
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
