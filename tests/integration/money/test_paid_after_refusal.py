"""A refused payment drops its input; if it lands later, nothing runs without that input."""

from __future__ import annotations

import pytest

from tests.fakes.paid_door import Deal, PaidDoor
from tests.integration.money.test_unpaid_storage import LARGE, files, refused
from worker.doors.hire_views import task_body
from worker.x402.wire import read_payment_key

BODY = {"do": "ok"}


def nonce_of(paid_door: PaidDoor, header: str) -> str:
    key = read_payment_key({"PAYMENT-SIGNATURE": header}, paid_door.parts.network)
    assert key is not None
    return str(key).rpartition("/")[2]


def lands(paid_door: PaidDoor, deal: Deal, nonce: str) -> None:
    """The transfer lands, whoever sent it, and a comparison runs."""
    paid_door.chain.settle((deal.wallet, nonce), paid_door.pay_to, deal.price)
    paid_door.jump(700)
    assert paid_door.comparison.run()


@pytest.mark.parametrize("body", [BODY, LARGE], ids=["small", "large"])
def test_refused_payment_that_lands_waits_for_the_input(paid_door: PaidDoor, body: object) -> None:
    """Nothing runs on the input `null`; the seeker's next request supplies it at no extra charge."""
    deal = paid_door.deal()
    id = refused(paid_door, deal, body)
    lands(paid_door, deal, nonce_of(paid_door, deal.payments[0]))
    assert paid_door.money(id).paid == 1
    assert paid_door.take(id) is None, "the input is missing"
    tasks = paid_door.hiring.tasks
    shown = task_body(tasks.find(deal.document["contract_id"], id), paid_door.parts.deliverables, tasks.load)
    assert shown["error"]["code"] == "INVALID_INPUT" and shown["error"]["details"]["charged"] is True
    deal.execute(body)
    execution = paid_door.take(id)
    assert execution is not None and paid_door.parts.executions.input(execution) == body
    assert execution.context["terms"]["price"] == "0.01"
    paid_door.seal(execution)
    assert paid_door.execution(id).state == "completed" and deal.moved() == deal.price
    assert len(files(paid_door)) == (1 if body is LARGE else 0)


def test_paid_contract_outlives_its_deadline(paid_door: PaidDoor) -> None:
    """A refusal set an end for the contract; once paid, its result is kept as long as any other."""
    deal = paid_door.deal()
    id = refused(paid_door, deal, BODY)
    contract = paid_door.parts.keys.contract(paid_door.contract(deal).ref)
    assert paid_door.parts.client.pttl(contract) > 0
    lands(paid_door, deal, nonce_of(paid_door, deal.payments[0]))
    assert paid_door.money(id).paid == 1 and paid_door.parts.client.pttl(contract) == -1


def test_paid_contract_without_its_input_is_refunded_at_its_deadline(paid_door: PaidDoor) -> None:
    """A seeker who never resends the input is refunded."""
    deal = paid_door.deal()
    id = refused(paid_door, deal, BODY)
    lands(paid_door, deal, nonce_of(paid_door, deal.payments[0]))
    paid_door.jump(86_400)
    paid_door.tick()
    assert paid_door.execution(id).state == "failed"
    assert paid_door.money(id).payments[0].refund == "due"
