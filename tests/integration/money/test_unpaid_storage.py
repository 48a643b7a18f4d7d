"""Strangers cannot fill the store: refused payments, unpaid inputs and huge contracts are limited."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.paid_door import Deal, PaidDoor
from tests.fakes.paid_worker import PaidWorker
from worker.core.errors import Conflict, Problem
from worker.core.states import Lane
from worker.payments.payment import PaymentState

LARGE = "x" * 100_000


def files(paid_door: PaidDoor) -> list[Path]:
    directory = Path(paid_door.settings.files_url)
    return [path for path in directory.rglob("*") if path.is_file()]


def refused(paid_door: PaidDoor, deal: Deal, body: object) -> str:
    """One more payment without funds."""
    paid_door.facilitator.planned["verify"].append("no")
    id = deal.execute(body, deal.payment()).execution.id
    paid_door.step()
    assert paid_door.execution(id).phase == "offered"
    return id


def test_repeated_refused_payments_leave_no_files(paid_door: PaidDoor) -> None:
    """Whatever body it carries, the disk keeps nothing that was not paid for."""
    deal = paid_door.deal()
    id = refused(paid_door, deal, LARGE)
    for n in range(3):
        with pytest.raises(Problem) as error:
            deal.execute(f"{LARGE}{n}", deal.payments[0])
        assert error.value.status == 402
    assert files(paid_door) == []
    assert not paid_door.execution(id).input_ref


def test_refused_input_is_deleted(paid_door: PaidDoor) -> None:
    """The input of a refused payment is deleted; the input of the running one is readable."""
    deal = paid_door.deal()
    id = refused(paid_door, deal, LARGE)
    refused(paid_door, deal, LARGE)
    refused(paid_door, deal, LARGE + "!")
    assert files(paid_door) == []
    deal.execute(LARGE + "!", deal.payment())
    assert len(files(paid_door)) == 1
    paid_door.step()
    assert paid_door.take(id) is not None
    assert paid_door.parts.executions.input(paid_door.execution(id)) == LARGE + "!"


def test_older_process_stores_a_dropped_input_again(paid_door: PaidDoor) -> None:
    """Processes of data version 1 store the input of another payment only if its digest changed."""
    deal = paid_door.deal()
    id = deal.execute("same", deal.payment()).execution.id
    before = paid_door.execution(id).digest
    paid_door.facilitator.planned["verify"].append("no")
    paid_door.step()
    assert paid_door.execution(id).input == b"null" and paid_door.execution(id).digest != before
    deal.execute("same", deal.payment())
    assert paid_door.execution(id).digest == before
    paid_door.step()
    assert deal.execute("same").execution.id == id, "the same input is known again"
    with pytest.raises(Conflict):
        deal.execute("other")


@pytest.mark.parametrize("verified", [False, True], ids=["verifying", "waiting"])
def test_cancelled_unpaid_work_leaves_no_input(paid_door: PaidDoor, verified: bool) -> None:
    """An unverified or unspent payment costs nothing, so it must leave nothing behind."""
    deal = paid_door.deal()
    id = deal.execute(LARGE, deal.payment()).execution.id
    if verified:
        paid_door.step()
    assert deal.cancel(id).execution.state == "cancelled"
    assert files(paid_door) == [] and paid_door.execution(id).context_json == b""
    keys, client = paid_door.parts.keys, paid_door.parts.client
    assert not client.exists(keys.unpaid_bytes, keys.unpaid, keys.unpaid_new)
    assert client.pttl(keys.contract(paid_door.contract(deal).ref)) > 0
    paid_door.step()
    assert paid_door.execution(id).state == "cancelled" and deal.moved() == 0


def test_cancelled_claims_are_before_nobody(paid_door: PaidDoor) -> None:
    """Claims cancelled at once are free: they must not make the worker look busy."""
    for verified in (False, False, True, True):
        deal = paid_door.deal()
        id = deal.execute("x", deal.payment()).execution.id
        if verified:
            paid_door.attempt(lambda id=id: paid_door.clock_settler.verifier.verify(id, 1))  # type: ignore[misc]
            assert paid_door.execution(id).phase == "working"
        deal.cancel(id)
    load = paid_door.parts.load_meter.read("echo", Lane.EXPRESS)
    assert (load.verifying, load.waiting) == (0, 0)


def test_claims_that_ended_unverified_are_forgotten(paid_door: PaidDoor) -> None:
    """However claims ended, the list of claims being verified does not grow without bound."""
    deal = paid_door.deal()
    id = deal.execute("x", deal.payment()).execution.id
    paid_door.parts.store.cancel(id, b"{}", by="operator")
    paid_door.jump(31)
    other = paid_door.deal()
    other.execute("x", other.payment())
    assert paid_door.parts.client.zcard(paid_door.parts.keys.verifying) == 1


def test_cancelled_work_that_began_keeps_its_input(paid_door: PaidDoor) -> None:
    """It counts as a run of its wallet, and the operator may inspect its input."""
    deal = paid_door.deal()
    id = deal.execute(LARGE, deal.payment()).execution.id
    paid_door.step()
    assert paid_door.take(id) is not None
    deal.cancel(id)
    assert len(files(paid_door)) == 1


def test_refused_payments_per_contract_are_limited(paid_door: PaidDoor) -> None:
    """After twenty refused payments a contract accepts no more, and nothing more is stored."""
    deal = paid_door.deal()
    ids = {refused(paid_door, deal, "small") for _ in range(20)}
    keys = paid_door.parts.client.dbsize()
    with pytest.raises(Conflict) as error:
        deal.execute("small", deal.payment())
    assert error.value.code == "TOO_MANY_PAYMENTS"
    assert paid_door.parts.client.dbsize() == keys
    money = paid_door.money(ids.pop())
    assert [payment.state for payment in money.payments] == [PaymentState.REFUSED] * 20 and not ids


@pytest.mark.parametrize("paying", ["nothing", "last"])
def test_no_more_payments_are_asked_for_than_are_accepted(paid_door: PaidDoor, paying: str) -> None:
    """A program that pays each 402 must not ask for ever: the last refusal says that no payment helps."""
    deal = paid_door.deal()
    for n in range(20):
        with pytest.raises(Problem) as offered:
            deal.execute("small")
        assert offered.value.status == 402, n
        refused(paid_door, deal, "small")
    with pytest.raises(Conflict) as error:
        deal.execute("small", None if paying == "nothing" else deal.payments[-1])
    assert (error.value.code, error.value.charged) == ("TOO_MANY_PAYMENTS", False)


def test_oversized_contract_is_not_signed(paid_worker: PaidWorker) -> None:
    """A contract too large for the store is refused; one with a large schema is signed."""
    seeker = paid_worker.seeker()
    long = seeker.draft(task={"description": "d" * 200_000})
    for method in ("POST", "PUT"):
        response = seeker.door(method, "/contracts", long)
        assert (response.status, response.code) == (413, "TOO_LARGE")
    assert seeker.hire(task={"description": "d" * 60_000}).pay().status == 200


def test_oversized_body_is_told_to_shrink(paid_worker: PaidWorker) -> None:
    """Nothing is charged; the advice is not to retry later, since that would not help."""
    seeker = paid_worker.seeker()
    response = seeker.door("POST", "/contracts", seeker.draft(task={"description": "d" * 2_000_000}))
    assert (response.status, response.code) == (413, "TOO_LARGE")
    details = response.json["error"]["details"]
    assert (details["charged"], details["advice"]) == (False, "Send less.")
    assert details["expected"] == "at most 1048576 bytes"


@pytest.mark.parametrize("sequence", ["\u00b2", "-1", "1e9", "9" * 40])
def test_invalid_last_event_id_starts_from_the_beginning(paid_worker: PaidWorker, sequence: str) -> None:
    """A Last-Event-ID that is not a sequence is ignored instead of failing the request."""
    hired = paid_worker.seeker().hire()
    id = hired.pay().json["task_id"]
    headers = {"X-Contract-ID": hired.id, "Last-Event-ID": sequence}
    response = hired.seeker.door("GET", f"/stream/{id}", None, headers)
    assert response.status == 200 and b"execution.completed" in response.content
