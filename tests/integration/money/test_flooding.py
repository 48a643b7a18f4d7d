"""Strangers who cost room: refused payments without end, inputs that nobody pays for, contracts as books."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.shop import Shop
from tests.fakes.till import Deal, Till
from worker.errors import Conflict, Problem
from worker.payments.ledger import PaymentState

LARGE = "x" * 100_000


def files(till: Till) -> list[Path]:
    directory = Path(till.settings.files_url)
    return [path for path in directory.rglob("*") if path.is_file()]


def refused(till: Till, deal: Deal, body: object) -> str:
    """One more payment over money that is not there."""
    till.facilitator.planned["verify"].append("no")
    id = deal.execute(body, deal.payment()).execution.id
    till.step()
    assert till.execution(id).phase == "offered"
    return id


def test_a_refused_payment_that_comes_again_leaves_no_files(till: Till) -> None:
    """Whatever body comes with it, the disk holds the one input that the record names."""
    deal = till.deal()
    id = refused(till, deal, LARGE)
    for n in range(3):
        with pytest.raises(Problem) as told:
            deal.execute(f"{LARGE}{n}", deal.payments[0])
        assert told.value.status == 402
    assert len(files(till)) == 1
    assert till.execution(id).raw["input_ref"]


def test_another_payment_with_another_input_leaves_only_that_input(till: Till) -> None:
    """An input that was replaced is deleted; the same one again is not kept twice; what runs can be read."""
    deal = till.deal()
    id = refused(till, deal, LARGE)
    refused(till, deal, LARGE)
    assert len(files(till)) == 1
    refused(till, deal, LARGE + "!")
    assert len(files(till)) == 1
    deal.execute(LARGE + "!", deal.payment())
    till.step()
    assert till.take(id) is not None
    assert till.parts.executions.input(till.execution(id)) == LARGE + "!"


def test_payments_that_come_to_nothing_have_an_end(till: Till) -> None:
    """After twenty refused payments a contract takes no more, and nothing more is kept."""
    deal = till.deal()
    ids = {refused(till, deal, "small") for _ in range(20)}
    keys = till.parts.client.dbsize()
    with pytest.raises(Conflict) as told:
        deal.execute("small", deal.payment())
    assert told.value.code == "TOO_MANY_PAYMENTS"
    assert till.parts.client.dbsize() == keys
    money = till.money(ids.pop())
    assert [payment.state for payment in money.payments] == [PaymentState.REFUSED] * 20 and not ids


def test_a_contract_as_long_as_a_book_is_not_signed(shop: Shop) -> None:
    """A document that would fill the store's memory is refused; one with a large schema is not."""
    seeker = shop.seeker()
    long = seeker.draft(task={"description": "d" * 200_000})
    for method in ("POST", "PUT"):
        said = seeker.door(method, "/contracts", long)
        assert (said.status, said.code) == (413, "TOO_LARGE")
    assert seeker.hire(task={"description": "d" * 60_000}).pay().status == 200


def test_a_body_beyond_all_bounds_is_told_to_be_smaller(shop: Shop) -> None:
    """Nothing is charged, and sending it again later would not help: so that is not the advice."""
    seeker = shop.seeker()
    said = seeker.door("POST", "/contracts", seeker.draft(task={"description": "d" * 2_000_000}))
    assert (said.status, said.code) == (413, "TOO_LARGE")
    details = said.json["error"]["details"]
    assert (details["charged"], details["advice"]) == (False, "Send less.")
    assert details["expected"] == "at most 1048576 bytes"


@pytest.mark.parametrize("sequence", ["\u00b2", "-1", "1e9", "9" * 40])
def test_a_stream_after_no_number_begins_at_the_beginning(shop: Shop, sequence: str) -> None:
    """What is not a sequence in Last-Event-ID is left alone instead of failing the request."""
    hired = shop.seeker().hire()
    id = hired.pay().json["task_id"]
    headers = {"X-Contract-ID": hired.id, "Last-Event-ID": sequence}
    said = hired.seeker.door("GET", f"/stream/{id}", None, headers)
    assert said.status == 200 and b"execution.completed" in said.content
