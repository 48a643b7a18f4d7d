"""A chain whose block time exceeds the facilitator's timeout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually


@pytest.fixture(name="slow")
def _slow(tmp_path: Path) -> Iterator[WorkerProcesses]:
    processes = WorkerProcesses(tmp_path, wait_s=1.0)
    try:
        yield processes.open()
        processes.check_books()
    finally:
        processes.close()


def test_slow_block_delivers_once_it_lands(slow: WorkerProcesses) -> None:
    """Blocks every nine seconds, responses after one: pending meanwhile, then the result, charged once."""
    hired = slow.seeker().hire()
    header = hired.sign()
    with slow.block_time(9):
        first = hired.execute(None, header, Prefer="wait=3")
        assert (first.status, first.json["phase"]) == (202, "settling")
        response = first.payment_response
        assert response is not None and response["errorReason"] == "settlement_pending"
        id = first.json["task_id"]
        eventually(lambda: slow.payment(id).pending, description="the hash of the transaction")
        again = hired.execute(None, hired.sign(hired.seeker.hire().offer()), Prefer="respond-async")
        assert (again.status, again.header("X-Payment-Status")) == (202, "being_paid")
        assert again.payment_response is not None and again.payment_response["transaction"].startswith("0x")
        done = hired.ended(id, 40)
    assert done.json["status"] == "completed"
    assert slow.dollars(hired.seeker.wallet) == 1_000_000 - 10_000
    assert slow.runs(id) == 1 and len(slow.money(id).payments) == 1
    assert slow.payment(id).transaction == again.payment_response["transaction"]
