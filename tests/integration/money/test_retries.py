"""Free retries and prepaid work, with real work processes."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from tests.fakes import facilitator_faults as faults
from tests.fakes.paid_worker import PaidWorker
from tests.waiting import eventually

PRICE = {"echo": 10_000, "early": 20_000}
TEXT = {"echo": "0.01", "early": "0.02"}
BEFORE = {"terms": {"settlement": "before_work"}}


def flaky(fails: int) -> dict[str, Any]:
    return {"do": "flaky", "fails": fails, "key": secrets.token_hex(8)}


@pytest.mark.parametrize("capability", ["echo", "early"])
def test_two_free_retries_then_a_result(paid_worker: PaidWorker, capability: str) -> None:
    """Two retries agreed: two transient failures cost nothing more, and the third attempt delivers."""
    changes = BEFORE if capability == "early" else {}
    hired = paid_worker.seeker().hire(
        capability, TEXT[capability], sla={"retry_policy": "2 attempts"}, **changes
    )
    wallet, body = hired.seeker.wallet, flaky(2)
    offer = hired.offer(body)
    header = hired.sign(offer)
    response = hired.execute(body, header)
    for left in (2, 1):
        details = response.json["error"]["details"]
        assert (response.status, response.code) == (503, "TRANSIENT_FAILURE")
        assert (details["retryable"], details["retries_left"]) == (True, left)
        assert paid_worker.charged(wallet) == (PRICE[capability] if capability == "early" else 0)
        # With the first payment again, without one, or with a second one: no further charge.
        response = hired.execute(body, header if left == 2 else hired.sign(offer))
    assert response.status == 200 and response.json["status"] == "completed"
    assert paid_worker.charged(wallet) == PRICE[capability] and paid_worker.settles(wallet) == 1
    assert paid_worker.runs(response.json["task_id"]) == 3


@pytest.mark.parametrize("capability", ["echo", "early"])
def test_exhausted_retries_charge_nothing(paid_worker: PaidWorker, capability: str) -> None:
    """The third failure is final: the stored failure is returned, uncharged or refunded."""
    changes = BEFORE if capability == "early" else {}
    hired = paid_worker.seeker().hire(capability, TEXT[capability], sla={"retry_policy": 2}, **changes)
    wallet, body = hired.seeker.wallet, flaky(9)
    response = hired.pay(body)
    for _ in range(2):
        assert response.json["error"]["details"]["retryable"] is True
        response = hired.execute(body)
    assert response.json["error"]["details"]["retryable"] is False
    again = hired.execute(body, hired.sign(paid_worker.seeker().hire().offer()))
    assert again.content == response.content and again.header("Idempotent-Replayed") == "true"
    contract = paid_worker.parts.book.find(hired.id)
    assert contract is not None and contract.execution
    payment = paid_worker.payment(contract.execution)
    assert paid_worker.runs(contract.execution) == 3
    if capability == "echo":
        assert (payment.state, paid_worker.charged(wallet)) == ("released", 0)
    else:
        assert (payment.state, payment.refund_amount) == ("settled", PRICE["early"])
        assert payment.refund in ("due", "settling", "settled")


def test_no_retry_policy_means_no_free_retry(paid_worker: PaidWorker) -> None:
    """Without a retry policy there is no free attempt."""
    hired = paid_worker.seeker().hire()
    response = hired.pay(flaky(1))
    assert (response.status, response.json["error"]["details"]["retryable"]) == (503, False)
    assert paid_worker.charged(hired.seeker.wallet) == 0


def test_free_retry_requires_the_same_input(paid_worker: PaidWorker) -> None:
    """After a transient failure another input is 409 and uses no retry."""
    hired = paid_worker.seeker().hire(sla={"retry_policy": "1 attempt"})
    body = flaky(1)
    hired.pay(body)
    assert hired.execute({"do": "ok"}).code == "IDEMPOTENCY_CONFLICT"
    assert hired.execute(body).status == 200


def test_invalid_input_may_be_corrected_three_times(paid_worker: PaidWorker) -> None:
    """Input the agent refuses is free: three corrections on the same authorization, then the task ends."""
    hired = paid_worker.seeker().hire()
    wallet = hired.seeker.wallet
    response = hired.pay({"do": "invalid", "n": 0})
    for number in (1, 2, 3):
        assert (response.status, response.code) == (422, "INVALID_INPUT")
        details = response.json["error"]["details"]
        assert (details["retryable"], details["retries_left"]) == (True, 4 - number)
        response = hired.execute({"do": "invalid", "n": number})
    assert (response.status, response.json["error"]["details"]["retryable"]) == (422, False)
    assert hired.execute({"do": "ok"}).code == "IDEMPOTENCY_CONFLICT"
    assert paid_worker.charged(wallet) == 0 and paid_worker.settles(wallet) == 0


def test_corrected_input_runs_on_the_first_payment(paid_worker: PaidWorker) -> None:
    """The corrected input gets its result, is charged once and becomes the contract's input."""
    hired = paid_worker.seeker().hire()
    assert hired.pay({"do": "invalid"}).status == 422
    assert hired.execute([1, 2]).status == 422, "the capability's own schema still holds"
    response = hired.execute({"do": "ok", "n": 2})
    assert response.status == 200 and response.json["output"]["content"]["asked"] == {"do": "ok", "n": 2}
    assert (
        paid_worker.charged(hired.seeker.wallet) == PRICE["echo"]
        and paid_worker.settles(hired.seeker.wallet) == 1
    )
    assert hired.execute({"do": "invalid"}).code == "IDEMPOTENCY_CONFLICT"


def test_before_work_settles_before_running(paid_worker: PaidWorker) -> None:
    """Under the contract's before_work term the payment settles after verification, before the work."""
    hired = paid_worker.seeker().hire("early", TEXT["early"], **BEFORE)
    response = hired.pay()
    assert response.status == 200
    kinds = paid_worker.kinds(response.json["task_id"])
    money = ["payment.claimed", "payment.verified", "payment.settled"]
    order = [*money, "execution.started", "execution.completed"]
    assert [kind for kind in kinds if kind in order] == order
    fee = paid_worker.parts.ledger.sums()["fees_due"]
    assert fee > 0


def test_before_work_requires_the_contracts_term(paid_worker: PaidWorker) -> None:
    """The same capability, under terms that do not mention it, settles after the work."""
    hired = paid_worker.seeker().hire("early", TEXT["early"])
    response = hired.pay()
    kinds = paid_worker.kinds(response.json["task_id"])
    assert kinds.index("execution.started") < kinds.index("payment.settled")
    refused = paid_worker.seeker().door("POST", "/contracts", paid_worker.seeker().draft("echo", **BEFORE))
    assert (refused.status, refused.code) == (422, "SETTLEMENT_UNSUPPORTED")


def test_before_work_failure_owes_a_full_refund(paid_worker: PaidWorker) -> None:
    """The script that records the failure writes the refund leg, and the response reports it."""
    hired = paid_worker.seeker().hire("early", TEXT["early"], **BEFORE)
    response = hired.pay({"do": "fail"})
    assert (response.status, response.code) == (500, "NOT_DONE")
    refund = response.json["error"]["details"]["refund"]
    assert refund["amount"] == PRICE["early"] and refund["state"] in ("due", "settling", "settled")
    assert response.payment_response is not None and response.payment_response["success"] is True


def test_before_work_does_not_start_when_settlement_is_refused(paid_worker: PaidWorker) -> None:
    """A refused settlement starts no work: 402, and the next payment starts it."""
    hired = paid_worker.seeker().hire("early", TEXT["early"], **BEFORE)
    wallet = hired.seeker.wallet
    paid_worker.fault("settle", wallet, faults.refuse("insufficient_funds"))
    response = hired.pay()
    assert (response.status, response.code) == (402, "PAYMENT_SETTLEMENT_FAILED")
    contract = paid_worker.parts.book.find(hired.id)
    assert contract is not None and contract.execution
    assert paid_worker.runs(contract.execution) == 0
    assert hired.pay().status == 200 and paid_worker.charged(wallet) == PRICE["early"]


def test_before_work_waits_for_an_unknown_settlement(paid_worker: PaidWorker) -> None:
    """While the settlement is unknown the work does not start; once settled it starts, once."""
    hired = paid_worker.seeker().hire("early", TEXT["early"], **BEFORE)
    wallet = hired.seeker.wallet
    paid_worker.facilitator.reconciles = True
    paid_worker.fault("settle", wallet, faults.drop(moves=True), faults.drop(moves=True))
    response = hired.pay(Prefer="wait=1")
    assert response.status == 202
    id = response.json["task_id"]
    assert paid_worker.runs(id) == 0 and hired.execute(None, Prefer="respond-async").status == 202
    assert hired.ended(id).json["status"] == "completed"
    assert paid_worker.runs(id) == 1 and paid_worker.charged(wallet) == PRICE["early"]


def test_queued_work_is_charged_once(paid_worker: PaidWorker) -> None:
    """Queued work gets 202 and is delivered by poll, with PAYMENT-RESPONSE on the final poll."""
    hired = paid_worker.seeker().hire("long", "0.03")
    response = hired.pay({"do": "sleep", "seconds": 0.5}, Prefer="respond-async")
    assert response.status == 202 and response.header("Location")
    done = hired.ended(response.json["task_id"])
    assert done.json["status"] == "completed" and done.payment_response is not None
    assert paid_worker.charged(hired.seeker.wallet) == 30_000
    eventually(lambda: hired.execute({"do": "sleep", "seconds": 0.5}).content, description="a replay")
