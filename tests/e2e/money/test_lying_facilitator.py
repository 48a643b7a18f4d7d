"""A facilitator that answers falsely, against a worker with a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.lying_facilitator import LyingFacilitator
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually

PRICE = 10_000


@pytest.fixture(name="liar")
def _liar() -> Iterator[LyingFacilitator]:
    liar = LyingFacilitator()
    yield liar
    liar.close()


@pytest.fixture(name="watchful")
def _watchful(tmp_path: Path, liar: LyingFacilitator) -> Iterator[WorkerProcesses]:
    processes = WorkerProcesses(tmp_path, FACILITATOR_URL=liar.url)
    liar.behind = processes.facilitator.url
    try:
        yield processes.open()
        processes.check_books()
    finally:
        processes.close()


def test_facilitators_false_refusal_and_false_success_are_corrected(
    watchful: WorkerProcesses, liar: LyingFacilitator
) -> None:
    """A false refusal causes no second 402; a false success is resent or listed as unproven."""
    hired = watchful.seeker().hire()
    held = watchful.dollars(hired.seeker.wallet)
    liar.lies.append("refused")
    response = hired.pay()
    assert response.status in (200, 202), response.content
    done = hired.ended(response.json["task_id"])
    assert done.json["status"] == "completed"
    again = hired.execute()
    assert (again.status, again.header("Idempotent-Replayed")) == (200, "true")
    assert watchful.dollars(hired.seeker.wallet) == held - PRICE
    assert len(watchful.money(done.json["task_id"]).payments) == 1

    hired = watchful.seeker().hire()
    liar.lies.append("random")
    response = hired.pay()
    assert (response.status, response.json["status"]) == (200, "completed")
    id = response.json["task_id"]
    assert watchful.dollars(hired.seeker.wallet) == held, "nothing has moved"
    lied = watchful.payment(id).transaction
    watchful.jump(75)
    eventually(lambda: watchful.payment(id).proof == "proven", 60, "the payment, fetched and proven")
    assert watchful.dollars(hired.seeker.wallet) == held - PRICE
    assert watchful.payment(id).transaction != lied and len(set(liar.settled)) == 2
