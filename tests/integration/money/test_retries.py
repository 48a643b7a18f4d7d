"""Free next attempts and payment before the work, with the real processes that do the work."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from tests.fakes import facilitator_faults as faults
from tests.fakes.shop import Shop
from tests.waiting import eventually

PRICE = {"echo": 10_000, "early": 20_000}
TEXT = {"echo": "0.01", "early": "0.02"}
BEFORE = {"terms": {"settlement": "before_work"}}


def flaky(fails: int) -> dict[str, Any]:
    return {"do": "flaky", "fails": fails, "key": secrets.token_hex(8)}


@pytest.mark.parametrize("capability", ["echo", "early"])
def test_two_free_retries_and_a_result(shop: Shop, capability: str) -> None:
    """Two retries were agreed: two transient failures cost nothing more, the third attempt delivers."""
    changes = BEFORE if capability == "early" else {}
    hired = shop.seeker().hire(capability, TEXT[capability], sla={"retry_policy": "2 attempts"}, **changes)
    wallet, body = hired.seeker.wallet, flaky(2)
    offer = hired.offer(body)
    header = hired.sign(offer)
    said = hired.execute(body, header)
    for left in (2, 1):
        details = said.json["error"]["details"]
        assert (said.status, said.code) == (503, "TRANSIENT_FAILURE")
        assert (details["retryable"], details["retries_left"]) == (True, left)
        assert shop.charged(wallet) == (PRICE[capability] if capability == "early" else 0)
        # With the first payment again, with none, or with a second one: never another charge.
        said = hired.execute(body, header if left == 2 else hired.sign(offer))
    assert said.status == 200 and said.json["status"] == "completed"
    assert shop.charged(wallet) == PRICE[capability] and shop.settles(wallet) == 1
    assert shop.runs(said.json["task_id"]) == 3


@pytest.mark.parametrize("capability", ["echo", "early"])
def test_when_the_retries_are_used_up_nobody_is_charged(shop: Shop, capability: str) -> None:
    """The third failure is the end: the stored failure answers, uncharged or owed back."""
    changes = BEFORE if capability == "early" else {}
    hired = shop.seeker().hire(capability, TEXT[capability], sla={"retry_policy": 2}, **changes)
    wallet, body = hired.seeker.wallet, flaky(9)
    said = hired.pay(body)
    for _ in range(2):
        assert said.json["error"]["details"]["retryable"] is True
        said = hired.execute(body)
    assert said.json["error"]["details"]["retryable"] is False
    again = hired.execute(body, hired.sign(hired.seeker.hire().offer()))
    assert again.content == said.content and again.header("Idempotent-Replayed") == "true"
    contract = shop.parts.book.find(hired.id)
    assert contract is not None and contract.execution
    payment = shop.payment(contract.execution)
    assert shop.runs(contract.execution) == 3
    if capability == "echo":
        assert (payment.state, shop.charged(wallet)) == ("released", 0)
    else:
        assert (payment.state, payment.refund_amount) == ("settled", PRICE["early"])
        assert payment.refund in ("due", "settling", "settled")


def test_without_an_agreed_retry_the_first_failure_is_the_end(shop: Shop) -> None:
    """No retry policy, no free attempt."""
    hired = shop.seeker().hire()
    said = hired.pay(flaky(1))
    assert (said.status, said.json["error"]["details"]["retryable"]) == (503, False)
    assert shop.charged(hired.seeker.wallet) == 0


def test_a_free_retry_takes_the_same_input_only(shop: Shop) -> None:
    """After a transient failure another input is 409 and uses up nothing."""
    hired = shop.seeker().hire(sla={"retry_policy": "1 attempt"})
    body = flaky(1)
    hired.pay(body)
    assert hired.execute({"do": "ok"}).code == "IDEMPOTENCY_CONFLICT"
    assert hired.execute(body).status == 200


def test_a_wrong_input_may_be_corrected_three_times(shop: Shop) -> None:
    """What the agent refuses costs nothing: three corrections on the same authorization, then it is over."""
    hired = shop.seeker().hire()
    wallet = hired.seeker.wallet
    said = hired.pay({"do": "invalid", "n": 0})
    for number in (1, 2, 3):
        assert (said.status, said.code) == (422, "INVALID_INPUT")
        details = said.json["error"]["details"]
        assert (details["retryable"], details["retries_left"]) == (True, 4 - number)
        said = hired.execute({"do": "invalid", "n": number})
    assert (said.status, said.json["error"]["details"]["retryable"]) == (422, False)
    assert hired.execute({"do": "ok"}).code == "IDEMPOTENCY_CONFLICT"
    assert shop.charged(wallet) == 0 and shop.settles(wallet) == 0


def test_a_corrected_input_is_run_on_the_first_payment(shop: Shop) -> None:
    """The corrected input gets its result, is charged once, and becomes the contract's input."""
    hired = shop.seeker().hire()
    assert hired.pay({"do": "invalid"}).status == 422
    assert hired.execute([1, 2]).status == 422, "the capability's own schema still holds"
    said = hired.execute({"do": "ok", "n": 2})
    assert said.status == 200 and said.json["output"]["content"]["asked"] == {"do": "ok", "n": 2}
    assert shop.charged(hired.seeker.wallet) == PRICE["echo"] and shop.settles(hired.seeker.wallet) == 1
    assert hired.execute({"do": "invalid"}).code == "IDEMPOTENCY_CONFLICT"


def test_before_work_is_settled_first(shop: Shop) -> None:
    """Where the contract says so the money moves before the work begins, after it was verified."""
    hired = shop.seeker().hire("early", TEXT["early"], **BEFORE)
    said = hired.pay()
    assert said.status == 200
    kinds = shop.kinds(said.json["task_id"])
    money = ["payment.claimed", "payment.verified", "payment.settled"]
    order = [*money, "execution.started", "execution.completed"]
    assert [kind for kind in kinds if kind in order] == order
    fee = shop.parts.ledger.sums()["fees_due"]
    assert fee > 0


def test_before_work_holds_only_where_the_contract_says_it(shop: Shop) -> None:
    """The same capability under terms that are silent is settled after the work."""
    hired = shop.seeker().hire("early", TEXT["early"])
    said = hired.pay()
    kinds = shop.kinds(said.json["task_id"])
    assert kinds.index("execution.started") < kinds.index("payment.settled")
    refused = shop.seeker().door("POST", "/contracts", shop.seeker().draft("echo", **BEFORE))
    assert (refused.status, refused.code) == (422, "SETTLEMENT_UNSUPPORTED")


def test_before_work_a_failure_owes_the_whole_price(shop: Shop) -> None:
    """The refund leg is written in the script that records the failure, and the answer tells of it."""
    hired = shop.seeker().hire("early", TEXT["early"], **BEFORE)
    said = hired.pay({"do": "fail"})
    assert (said.status, said.code) == (500, "NOT_DONE")
    refund = said.json["error"]["details"]["refund"]
    assert refund["amount"] == PRICE["early"] and refund["state"] in ("due", "settling", "settled")
    assert said.payment_response is not None and said.payment_response["success"] is True


def test_before_work_refused_at_settlement_never_starts(shop: Shop) -> None:
    """No settlement, no work: 402, and the next payment starts it."""
    hired = shop.seeker().hire("early", TEXT["early"], **BEFORE)
    wallet = hired.seeker.wallet
    shop.fault("settle", wallet, faults.refuse("insufficient_funds"))
    said = hired.pay()
    assert (said.status, said.code) == (402, "PAYMENT_SETTLEMENT_FAILED")
    contract = shop.parts.book.find(hired.id)
    assert contract is not None and contract.execution
    assert shop.runs(contract.execution) == 0
    assert hired.pay().status == 200 and shop.charged(wallet) == PRICE["early"]


def test_before_work_unknown_waits_with_the_work(shop: Shop) -> None:
    """While nobody knows whether the money moved the work does not begin, and then it does, once."""
    hired = shop.seeker().hire("early", TEXT["early"], **BEFORE)
    wallet = hired.seeker.wallet
    shop.facilitator.reconciles = True
    shop.fault("settle", wallet, faults.drop(moves=True), faults.drop(moves=True))
    said = hired.pay(Prefer="wait=1")
    assert said.status == 202
    id = said.json["task_id"]
    assert shop.runs(id) == 0 and hired.execute(None, Prefer="respond-async").status == 202
    assert hired.ended(id).json["status"] == "completed"
    assert shop.runs(id) == 1 and shop.charged(wallet) == PRICE["early"]


def test_long_work_goes_through_the_queue_and_is_charged_once(shop: Shop) -> None:
    """Queued work is answered 202 and delivered by poll, with PAYMENT-RESPONSE on the poll that shows it."""
    hired = shop.seeker().hire("long", "0.03")
    said = hired.pay({"do": "sleep", "seconds": 0.5}, Prefer="respond-async")
    assert said.status == 202 and said.header("Location")
    done = hired.ended(said.json["task_id"])
    assert done.json["status"] == "completed" and done.payment_response is not None
    assert shop.charged(hired.seeker.wallet) == 30_000
    eventually(lambda: hired.execute({"do": "sleep", "seconds": 0.5}).content, what="a replay")
