"""A facilitator that fails in every way, at verify and at settle: charged once, and never asked twice.

The cases run at the same time, each with a contract and a wallet of its own: most of a case is waiting.
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
from tests.fakes.seeker import Hired, Said
from tests.fakes.shop import Shop
from tests.waiting import eventually
from worker.payments.ledger import PaymentState

PRICE = 10_000
EXPIRED = "invalid_exact_evm_payload_authorization_valid_before"
POOR = "invalid_exact_evm_insufficient_balance"
HASH = "0x" + "ab" * 32
USED = "invalid_exact_evm_nonce_already_used"

# What is said, by which operation, and what it must come to: paid (one charge and the result), asked (402
# again, nothing charged), or settling (nobody can know yet; an honest 202).
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
    first: Said | None = None
    failure: list[BaseException] = field(default_factory=list)
    thread: threading.Thread | None = None

    def begin(self, shop: Shop) -> None:
        def run() -> None:
            try:
                self.play(shop)
            except BaseException as failed:
                self.failure.append(failed)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def play(self, shop: Shop) -> None:
        hired = self.hired
        shop.fault(self.operation, hired.seeker.wallet, *self.planned)
        self.offer = hired.offer()
        self.first = hired.execute(None, hired.sign(self.offer), Prefer="wait=1")
        contract = shop.parts.book.find(hired.id)
        assert contract is not None and contract.execution
        self.id = contract.execution
        if self.outcome == "paid":
            eventually(self.delivered, 40, "the result")
        elif self.outcome == "settling":
            eventually(lambda: shop.payment(self.id).calls >= 2, 20, "a second call")

    def delivered(self) -> bool:
        """Asks again with a payment of another nonce, which must never be asked for nor taken."""
        said = self.hired.execute(None, self.hired.sign(self.offer), Prefer="respond-async")
        assert said.status in (200, 202), said.content
        return said.status == 200


@pytest.fixture(scope="module", name="played")
def _played(open_shop: Shop) -> Iterator[dict[str, Case]]:
    """All cases, begun at once, with a facilitator that gives a repeated settle its first hash."""
    open_shop.facilitator.reconciles = True
    cases = {name: Case(open_shop.seeker().hire(), *about) for name, about in CASES.items()}
    for case in cases.values():
        case.begin(open_shop)
    yield cases


@pytest.mark.parametrize("name", CASES)
def test_a_facilitator_fault(shop: Shop, played: dict[str, Case], name: str) -> None:
    """Charged once at most; the seeker ends with the result, is asked again, or is told that it is open."""
    case = played[name]
    assert case.thread is not None
    case.thread.join(60)
    if case.failure:
        raise case.failure[0]
    wallet = case.hired.seeker.wallet
    payments = shop.money(case.id).payments
    if case.outcome == "paid":
        said = case.hired.execute()
        assert said.status == 200 and said.payment_response is not None
        assert said.payment_response["success"] is True
        presumed = name == "landed, the re-send says used"
        assert payments[0].how == ("presumed" if presumed else "facilitator")
        assert bool(said.payment_response["transaction"]) is not presumed
        assert (shop.charged(wallet), shop.runs(case.id)) == (PRICE, 1)
        assert [each.state for each in payments] == [PaymentState.SETTLED], "a second payment was taken"
        sent = {str(call["body"]) for call in shop.calls("settle", wallet)}
        assert len(sent) == 1, "the re-sent call was not identical"
    elif case.outcome == "asked":
        assert case.first is not None and case.first.status == 402
        response = case.first.payment_response
        assert response is not None and response["success"] is False
        assert [each.state for each in payments] == [PaymentState.REFUSED]
        assert shop.charged(wallet) == 0
        assert shop.runs(case.id) == (0 if case.operation == "verify" else 1)
        again = case.hired.pay()
        assert again.status == 200 and shop.charged(wallet) == PRICE and shop.runs(case.id) == 1
    else:
        said = case.hired.execute(None, case.hired.sign(case.offer), Prefer="respond-async")
        assert (said.status, said.json["phase"]) == (202, "settling")
        response = said.payment_response
        assert response is not None
        assert (response["errorReason"], response["network"]) == ("settlement_pending", "eip155:84532")
        assert shop.charged(wallet) == 0 and [each.state for each in payments] == [PaymentState.UNKNOWN]
    assert shop.facilitator.overlaps == 0, "two settle calls of one payment at once"


def test_a_hanging_verify_and_a_hanging_settle(shop: Shop) -> None:
    """A call that hangs is waited for by nobody: 202, no second call beside it, one charge when it ends."""
    hired = shop.seeker().hire()
    wallet = hired.seeker.wallet
    for operation in ("verify", "settle"):
        shop.fault(operation, wallet, faults.hang(30, moves=operation == "settle"))
    said = hired.pay(Prefer="wait=1")
    assert said.status == 202
    id = said.json["task_id"]
    eventually(lambda: shop.calls("verify", wallet), what="the verify call")
    shop.facilitator.release()
    eventually(lambda: shop.calls("settle", wallet), what="the settle call")
    for _ in range(4):
        again = hired.execute(None, Prefer="wait=1")
        assert (again.status, again.json["phase"]) == (202, "settling")
        assert again.payment_response is not None
        assert again.payment_response["errorReason"] == "settlement_pending"
    shop.jump(30)  # far past the leave's lease: it is renewed by whoever calls
    assert shop.settles(wallet) == 1
    shop.facilitator.reconciles = True
    shop.facilitator.release()
    assert hired.ended(id).json["status"] == "completed"
    assert shop.charged(wallet) == PRICE and shop.facilitator.overlaps == 0


def test_pending_for_a_minute(shop: Shop) -> None:
    """Pending again and again is asked after on schedule, and served when the transfer lands."""
    hired = shop.seeker().hire()
    wallet = hired.seeker.wallet
    shop.fault("settle", wallet, *[faults.pending(moves=False)] * 5)
    said = hired.pay(Prefer="wait=2")
    assert said.status == 202
    id = said.json["task_id"]
    assert said.payment_response is not None and said.payment_response["transaction"].startswith("0x")
    while (calls := shop.settles(wallet)) < 5:
        assert hired.execute(None, Prefer="respond-async").status == 202
        shop.jump(60)
        eventually(lambda calls=calls: shop.settles(wallet) > calls, what="the next call")  # type: ignore[misc]
    while shop.settles(wallet) < 6:
        # The fifth answer is booked some time after its call; the sixth call comes a minute after that.
        shop.jump(60)
        time.sleep(0.5)
    assert hired.ended(id).json["status"] == "completed" and shop.charged(wallet) == PRICE
