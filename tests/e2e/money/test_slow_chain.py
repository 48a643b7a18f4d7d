"""A chain whose blocks take longer than its facilitator waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.house import House
from tests.waiting import eventually


@pytest.fixture(name="slow")
def _slow(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, wait_s=1.0)
    try:
        yield house.open()
        house.check_books()
    finally:
        house.close()


def test_served_once_the_block_lands(slow: House) -> None:
    """Blocks every nine seconds, answers after one: pending meanwhile, then the result, charged once."""
    hired = slow.seeker().hire()
    header = hired.sign()
    with slow.block_time(9):
        said = hired.execute(None, header, Prefer="wait=3")
        assert (said.status, said.json["phase"]) == (202, "settling")
        response = said.payment_response
        assert response is not None and response["errorReason"] == "settlement_pending"
        id = said.json["task_id"]
        eventually(lambda: slow.payment(id).pending, what="the hash of the transaction")
        again = hired.execute(None, hired.sign(hired.seeker.hire().offer()), Prefer="respond-async")
        assert (again.status, again.header("X-Payment-Status")) == (202, "being_paid")
        assert again.payment_response is not None and again.payment_response["transaction"].startswith("0x")
        done = hired.ended(id, 40)
    assert done.json["status"] == "completed"
    assert slow.dollars(hired.seeker.wallet) == 1_000_000 - 10_000
    assert slow.runs(id) == 1 and len(slow.money(id).payments) == 1
    assert slow.payment(id).transaction == again.payment_response["transaction"]
