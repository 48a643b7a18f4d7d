"""Every facilitator fault at verify and settle: one charge, and no second payment demanded.

The cases run concurrently, each with its own contract and wallet: most of a case is waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes import facilitator_faults as faults
from tests.fakes.facilitator_faults import Fault
from tests.fakes.paid_worker import PaidWorker
from tests.fakes.seeker import DoorAnswer, Hired
from tests.waiting import eventually
from worker.payments.payment import PaymentState

PRICE = 10_000
EXPIRED = "invalid_exact_evm_payload_authorization_valid_before"
POOR = "invalid_exact_evm_insufficient_balance"
HASH = "0x" + "ab" * 32
USED = "invalid_exact_evm_nonce_already_used"

# Fault, operation, expected outcome: paid (one charge and the result), asked (another 402, nothing
# charged), or settling (outcome unknown: 202).
CASES: dict[str, tuple[str, list[Fault], str]] = {
    "verify refused by 200": ("verify", [faults.refuse(POOR)], "asked"),
    "verify refused by 400": ("verify", [faults.refuse(POOR, status=400)], "asked"),
    "verify refused by 402": ("verify", [faults.refuse(POOR, status=402)], "asked"),
    "verify refused with an unheard-of code": ("verify", [faults.refuse("made_up_today")], "asked"),
    "verify answers 500 with a refusal": ("verify", [faults.refuse(POOR, status=500)], "paid"),
    "verify could not tell": ("verify", [faults.refuse("unexpected_verify_error")], "paid"),
    "verify dropped": ("verify", [faults.drop(moves=False)], "paid"),
    "verify garbage": ("verify", [faults.garbage()], "paid"),
    "verify says neither": ("verify", [faults.answer(200, {"hello": 1})], "paid"),
    "verify down and back": ("verify", [faults.answer(503, "") for _ in range(3)], "paid"),
    "settle refused by 200": ("settle", [faults.refuse(POOR)], "asked"),
    "settle refused by 400": ("settle", [faults.refuse(POOR, status=400)], "asked"),
    "settle refused by 402": ("settle", [faults.refuse(POOR, status=402)], "asked"),
    "settle refused by 200 with a hash": (
        "settle",
        [faults.refuse(POOR, transaction="0x" + "ab" * 32)],
        "paid",
    ),
    "settle refused by 500": ("settle", [faults.refuse(POOR, status=500)], "paid"),
    "settle refused with an unheard-of code": ("settle", [faults.refuse("made_up_today")], "paid"),
    "settle failed on chain": ("settle", [faults.refuse("transaction_failed")], "paid"),
    "settle pending by 500": ("settle", [faults.pending(status=500)], "paid"),
    "settle pending by 200": ("settle", [faults.pending(status=200)], "paid"),
    "settle pending and nothing moved": ("settle", [faults.pending(moves=False)], "paid"),
    "settled, then dropped": ("settle", [faults.drop(moves=True)], "paid"),
    "dropped before it settled": ("settle", [faults.drop(moves=False)], "paid"),
    "settled, then garbage": ("settle", [faults.garbage(502, moves=True)], "paid"),
    "garbage with 200": ("settle", [faults.garbage(200)], "paid"),
    "success without a hash, moved": ("settle", [faults.no_hash(moves=True)], "paid"),
    "success without a hash, not moved": ("settle", [faults.no_hash(moves=False)], "paid"),
    "success with 500": (
        "settle",
        [faults.answer(500, {"success": True, "transaction": HASH}, moves=True)],
        "paid",
    ),
    "settle down and back": ("settle", [faults.answer(503, "") for _ in range(3)], "paid"),
    "landed, the re-send says expired": ("settle", [faults.drop(moves=True), faults.refuse(EXPIRED)], "paid"),
    "landed, the re-send says insufficient": (
        "settle",
        [faults.drop(moves=True), faults.refuse(POOR)],
        "paid",
    ),
    "landed, the re-send says used": ("settle", [faults.drop(moves=True), faults.refuse(USED)], "paid"),
    "not landed, the re-send says expired": (
        "settle",
        [faults.drop(moves=False), faults.refuse(EXPIRED), faults.refuse(EXPIRED)],
        "paid",
    ),
    "the first call meets a used nonce": ("settle", [faults.refuse(USED)] * 60, "settling"),
}


@dataclass
class Case:
    """One contract that meets one kind of fault."""

    hired: Hired
    operation: str
    planned: list[Fault]
    outcome: str
    id: str = ""
    offer: Any = None
    first: DoorAnswer | None = None
    failure: list[BaseException] = field(default_factory=list)
    thread: threading.Thread | None = None

    def begin(self, paid_worker: PaidWorker) -> None:
        def run() -> None:
            try:
                self.play(paid_worker)
            except BaseException as failed:
                self.failure.append(failed)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def play(self, paid_worker: PaidWorker) -> None:
        hired = self.hired
        paid_worker.fault(self.operation, hired.seeker.wallet, *self.planned)
        self.offer = hired.offer()
        self.first = hired.execute(None, hired.sign(self.offer), Prefer="wait=1")
        contract = paid_worker.parts.book.find(hired.id)
        assert contract is not None and contract.execution, (self.first.status, self.first.content)
        self.id = contract.execution
        if self.outcome == "paid":
            eventually(self.delivered, 40, "the result")
        elif self.outcome == "settling":
            eventually(lambda: paid_worker.payment(self.id).calls >= 2, 20, "a second call")

    def delivered(self) -> bool:
        """Retries with a payment of another nonce, which must be neither demanded nor claimed."""
        answer = self.hired.execute(None, self.hired.sign(self.offer), Prefer="respond-async")
        assert answer.status in (200, 202), answer.content
        return answer.status == 200


@pytest.fixture(scope="module", name="played")
def _played(running_paid_worker: PaidWorker) -> Iterator[dict[str, Case]]:
    """All cases, run concurrently, with a facilitator that answers a repeated settle with its first hash."""
    running_paid_worker.facilitator.reconciles = True
    cases = {name: Case(running_paid_worker.seeker().hire(), *about) for name, about in CASES.items()}
    for case in cases.values():
        case.begin(running_paid_worker)
    yield cases


@pytest.mark.parametrize("name", CASES)
def test_facilitator_faults_charge_at_most_once(
    paid_worker: PaidWorker, played: dict[str, Case], name: str
) -> None:
    """At most one charge; the seeker gets the result, another 402, or a pending answer."""
    case = played[name]
    assert case.thread is not None
    case.thread.join(60)
    if case.failure:
        raise case.failure[0]
    wallet = case.hired.seeker.wallet
    payments = paid_worker.money(case.id).payments
    if case.outcome == "paid":
        answer = case.hired.execute()
        assert answer.status == 200 and answer.payment_response is not None
        assert answer.payment_response["success"] is True
        presumed = name == "landed, the re-send says used"
        assert payments[0].how == ("presumed" if presumed else "facilitator")
        assert bool(answer.payment_response["transaction"]) is not presumed
        assert (paid_worker.charged(wallet), paid_worker.runs(case.id)) == (PRICE, 1)
        assert [each.state for each in payments] == [PaymentState.SETTLED], "a second payment was taken"
        sent = {str(call["body"]) for call in paid_worker.calls("settle", wallet)}
        assert len(sent) == 1, "the re-sent call was not identical"
    elif case.outcome == "asked":
        assert case.first is not None and case.first.status == 402
        response = case.first.payment_response
        assert response is not None and response["success"] is False
        assert [each.state for each in payments] == [PaymentState.REFUSED]
        assert paid_worker.charged(wallet) == 0
        assert paid_worker.runs(case.id) == (0 if case.operation == "verify" else 1)
        again = case.hired.pay()
        assert again.status == 200 and paid_worker.charged(wallet) == PRICE and paid_worker.runs(case.id) == 1
    else:
        answer = case.hired.execute(None, case.hired.sign(case.offer), Prefer="respond-async")
        assert (answer.status, answer.json["phase"]) == (202, "settling")
        response = answer.payment_response
        assert response is not None
        assert (response["errorReason"], response["network"]) == ("settlement_pending", "eip155:84532")
        assert paid_worker.charged(wallet) == 0 and [each.state for each in payments] == [
            PaymentState.UNKNOWN
        ]
    assert paid_worker.facilitator.overlaps == 0, "two settle calls of one payment at once"


def test_hanging_verify_and_settle_charge_once(paid_worker: PaidWorker) -> None:
    """No request waits for a hanging call: 202, no second call in parallel, one charge when it ends."""
    hired = paid_worker.seeker().hire()
    wallet = hired.seeker.wallet
    for operation in ("verify", "settle"):
        paid_worker.fault(operation, wallet, faults.hang(30, moves=operation == "settle"))
    answer = hired.pay(Prefer="wait=1")
    assert answer.status == 202
    id = answer.json["task_id"]
    eventually(lambda: paid_worker.calls("verify", wallet), description="the verify call")
    paid_worker.facilitator.release()
    eventually(lambda: paid_worker.calls("settle", wallet), description="the settle call")
    for _ in range(4):
        again = hired.execute(None, Prefer="wait=1")
        assert (again.status, again.json["phase"]) == (202, "settling")
        assert again.payment_response is not None
        assert again.payment_response["errorReason"] == "settlement_pending"
    paid_worker.jump(30)  # far past the settlement lease, which its caller renews
    assert paid_worker.settles(wallet) == 1
    paid_worker.facilitator.reconciles = True
    paid_worker.facilitator.release()
    assert hired.ended(id).json["status"] == "completed"
    assert paid_worker.charged(wallet) == PRICE and paid_worker.facilitator.overlaps == 0


def test_pending_settlement_is_polled_until_it_lands(paid_worker: PaidWorker) -> None:
    """A pending settlement is polled on schedule, and the result is served when the transfer lands."""
    hired = paid_worker.seeker().hire()
    wallet = hired.seeker.wallet
    paid_worker.fault("settle", wallet, *[faults.pending(moves=False)] * 5)
    answer = hired.pay(Prefer="wait=2")
    assert answer.status == 202
    id = answer.json["task_id"]
    assert answer.payment_response is not None and answer.payment_response["transaction"].startswith("0x")
    while (calls := paid_worker.settles(wallet)) < 5:
        assert hired.execute(None, Prefer="respond-async").status == 202
        paid_worker.jump(60)
        eventually(lambda calls=calls: paid_worker.settles(wallet) > calls, description="the next call")  # type: ignore[misc]
    while paid_worker.settles(wallet) < 6:
        # The fifth answer is recorded some time after its call; the sixth call follows a minute later.
        paid_worker.jump(60)
        time.sleep(0.5)
    assert hired.ended(id).json["status"] == "completed" and paid_worker.charged(wallet) == PRICE
