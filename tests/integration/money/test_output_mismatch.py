"""A contract whose schema no output fits is not charged and reveals nothing of the output."""

from __future__ import annotations

from tests.fakes.paid_worker import PaidWorker
from tests.fakes.seeker import Hired, Seeker

# The published example fits, so the contract is signed; no real output does.
UNFIT = {"output_schema": {"type": "object", "properties": {"run": {"type": "string", "maxLength": 2}}}}


def unfit(seeker: Seeker) -> Hired:
    return seeker.hire(task=UNFIT)


def test_output_mismatch_reveals_nothing_of_the_output(paid_worker: PaidWorker) -> None:
    """Response, poll and stream show no value, path, index or keyword of the output; no charge."""
    seeker = paid_worker.seeker()
    hired = unfit(seeker)
    response = hired.pay()
    error = response.json["error"]
    assert (response.status, error["code"]) == (500, "OUTPUT_SCHEMA_INVALID")
    assert error["message"] == "the output does not fit the promised schema"
    assert {*error["details"]} == {"refund_condition", "retryable", "charged"}
    id = response.json["task_id"]
    events = seeker.door("GET", f"/stream/{id}", None, {"X-Contract-ID": hired.id})
    for content in (response.content, hired.poll(id).content, hired.execute().content, events.content):
        assert b"maxLength" not in content and b'"run"' not in content and b"asked" not in content
    assert paid_worker.charged(seeker.wallet) == 0


def test_wallet_with_three_mismatches_is_refused_before_payment(paid_worker: PaidWorker) -> None:
    """After three such runs the fourth contract gets Retry-After instead of a 402."""
    seeker = paid_worker.seeker()
    for _ in range(3):
        assert unfit(seeker).pay().code == "OUTPUT_SCHEMA_INVALID"
    fourth = unfit(seeker)
    response = fourth.execute()
    assert (response.status, response.code) == (503, "UNPAID_WORK_LIMIT")
    wait = int(response.headers["Retry-After"])
    assert 3500 <= wait <= 3600 and "PAYMENT-REQUIRED" not in response.headers
    assert response.json["error"]["details"]["charged"] is False
    assert paid_worker.seeker().hire().pay().status == 200, "others are served meanwhile"
    paid_worker.jump(wait)
    assert fourth.execute().status == 402
