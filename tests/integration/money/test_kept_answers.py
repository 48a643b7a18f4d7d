"""What a process keeps of finished tasks never outlives a change of their record."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.paid_door import Deal, PaidDoor
from tests.fakes.paid_worker import PaidWorker
from worker.hiring.task import Task
from worker.payments.audit import AuditName
from worker.payments.refunds import Refunds

BODY = {"do": "ok"}
OTHER_TX = "0x" + "7" * 64


def test_transaction_that_an_audit_found(paid_worker: PaidWorker) -> None:
    """Answers name the transaction that the chain shows, also where another one was answered before."""
    hired, parts = paid_worker.seeker().hire(), paid_worker.parts
    id = hired.pay().json["task_id"]
    assert hired.poll(id).json["status"] == "completed"
    response = parts.settler.settled.response(parts.ledger.payload(id, 1)[0], OTHER_TX)
    assert parts.audit_book.end(AuditName(id, 1), "proven", OTHER_TX, response) == "proven"
    for answer in (hired.execute(), hired.poll(id), hired.execute()):
        assert answer.status == 200
        assert answer.payment_response is not None and answer.payment_response["transaction"] == OTHER_TX
    headers = {"X-Contract-ID": hired.id}
    evidence = hired.seeker.door("GET", f"/tasks/{id}/evidence", None, headers).json
    assert evidence["delivery"]["payload"]["transaction"] == OTHER_TX


def test_kept_task_and_the_contract_of_another(paid_worker: PaidWorker) -> None:
    """Only its own contract shows a task, though the process keeps the answers of both."""
    one, other = paid_worker.seeker().hire(), paid_worker.seeker().hire()
    ids = [hired.pay().json["task_id"] for hired in (one, other)]
    assert [hired.poll(id).status for hired, id in zip((one, other), ids, strict=True)] == [200, 200]
    for hired, id in zip((other, one), ids, strict=True):
        assert hired.poll(id).json["error"]["code"] == hired.poll("no-such-task").json["error"]["code"]
        assert hired.poll(id).status == 404


def test_order_of_a_task_that_was_answered_at_once(paid_worker: PaidWorker) -> None:
    """The task's page shows what was ordered also in the process that answered its request."""
    hired = paid_worker.seeker().hire()
    answer = hired.pay({"do": "ok", "about": "bees"})
    assert answer.status == 200
    page, client = f"/t/{answer.json['task_id']}", paid_worker.app.test_client()
    client.post(page, headers={"X-Contract-ID": hired.id})
    # This agent's output repeats its input.
    assert client.get(page).text.count("bees") == 2


def completed(paid_door: PaidDoor) -> tuple[Deal, str]:
    """A finished task that this process keeps."""
    deal = paid_door.deal()
    id = deal.execute(BODY, deal.payment()).execution.id
    paid_door.step()
    taken = paid_door.take(id)
    assert taken is not None
    paid_door.seal(taken)
    paid_door.settle(id)
    assert deal.execute(BODY).final
    return deal, id


def replayed(deal: Deal, id: str) -> Task:
    return deal.execute(BODY)


def polled(deal: Deal, id: str) -> Task:
    return deal.paid_door.parts.tasks.find(deal.document["contract_id"], id)


Ask = Callable[[Deal, str], Task]


@pytest.mark.parametrize("ask", [replayed, polled])
def test_refund_of_a_finished_task(paid_door: PaidDoor, ask: Ask) -> None:
    """A refund by the operator is seen by a process that has answered before."""
    deal, id = completed(paid_door)
    parts = paid_door.parts
    Refunds(parts.ledger, parts.leg_books).owe(id, None, None, "customer_request")
    assert [payment.refund for payment in ask(deal, id).money.payments] == ["due"]


@pytest.mark.parametrize("ask", [replayed, polled])
def test_store_that_lost_the_end_of_a_task(paid_door: PaidDoor, ask: Ask) -> None:
    """A store that came back without its last writes is believed, not what the process keeps."""
    deal, id = completed(paid_door)
    parts = paid_door.parts
    parts.client.hset(parts.keys.record(id), mapping={"state": "pending", "phase": "settling"})
    parts.client.hdel(parts.keys.record(id), "ended")
    assert not ask(deal, id).final
    parts.client.hset(parts.keys.record(id), mapping={"state": "completed", "phase": "done", "ended": "1"})
    assert ask(deal, id).execution.ended == 1
