"""The payment of a wallet that has paid before is verified before it is claimed: one round trip less."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import redis

from tests.engine import contents, in_thread
from tests.fakes.facilitator_faults import answer, hang, refuse
from tests.fakes.ledger_setup import SEEKER, LedgerSetup
from tests.fakes.paid_worker import PaidWorker, in_threads
from tests.fakes.plain_buyer import PlainBuyer
from tests.fakes.seeker import DoorAnswer, FlaskDoor, Hired, Seeker
from tests.integration.money.test_round_trips import ASKS, BODY, buying, least, paying
from tests.waiting import eventually
from worker.app import create_app
from worker.core.errors import Unavailable
from worker.hiring import checkout
from worker.hiring.claims import Claims, PreparedClaim
from worker.payments.early_verification import EarlyVerification
from worker.payments.facilitator import HttpFacilitator
from worker.payments.facilitator_call import HttpCall
from worker.payments.safe_writes import SafeWrites
from worker.x402.facilitator_answers import FacilitatorAnswer

PRICE = 10_000
REFUSED = refuse("insufficient_funds")


@pytest.fixture(name="asked_early")
def _asked_early(monkeypatch: pytest.MonkeyPatch) -> list[EarlyVerification]:
    """The payments that the facilitator was asked about before their claim."""
    asked: list[EarlyVerification] = []

    def noted(*args: Any) -> EarlyVerification:
        asked.append(EarlyVerification(*args))
        return asked[-1]

    monkeypatch.setattr(checkout, "EarlyVerification", noted)
    return asked


@pytest.fixture(name="seeker")
def _seeker(paid_worker: PaidWorker) -> Seeker:
    """One that has paid here."""
    seeker = paid_worker.seeker()
    assert seeker.hire().pay().status == 200
    return seeker


def verified(paid_worker: PaidWorker, seeker: Seeker) -> int:
    return len(paid_worker.calls("verify", seeker.wallet))


def kinds(paid_worker: PaidWorker, hired: Hired) -> list[str]:
    contract = paid_worker.parts.book.find(hired.id)
    assert contract is not None and contract.execution is not None
    return [event.kind for event in paid_worker.parts.store.events(contract.execution)]


def test_it_takes_a_round_trip_less(paid_worker: PaidWorker) -> None:
    """From the paid request to its answer: claim with verified, settled; take, seal."""
    seekers = [paid_worker.seeker() for _ in range(ASKS)]
    for each in seekers:
        assert each.hire().pay().status == 200
    hired = [each.hire("thrice") for each in seekers]
    cost = least(paid_worker, paying(hired), 200)
    assert cost.trips <= 4
    assert cost.commands <= 176


def test_plain_purchases_do_so_too(paid_worker: PaidWorker) -> None:
    buyers = [PlainBuyer(paid_worker.seeker(), "thrice") for _ in range(ASKS)]
    for each in buyers:
        assert each.buy(BODY).status == 200
    assert least(paid_worker, buying(buyers), 200).trips <= 4


def test_a_stranger_is_claimed_first(paid_worker: PaidWorker, asked_early: list[EarlyVerification]) -> None:
    """Who has not paid causes one call for a payment, however many copies of it come."""
    hired = paid_worker.seeker().hire()
    payment = hired.sign()
    answers = in_threads(*[lambda: hired.execute(None, payment)] * 5)
    assert {each.status for each in answers} == {200}
    assert (verified(paid_worker, hired.seeker), asked_early) == (1, [])


def test_record_and_money_are_as_ever(
    paid_worker: PaidWorker, seeker: Seeker, asked_early: list[EarlyVerification]
) -> None:
    before = seeker.hire()
    assert before.pay(Prefer="wait=20").status == 200
    assert not asked_early
    hired = seeker.hire()
    assert hired.pay().status == 200
    assert len(asked_early) == 1
    assert kinds(paid_worker, hired) == kinds(paid_worker, before)
    assert paid_worker.charged(seeker.wallet) == 3 * PRICE
    assert verified(paid_worker, seeker) == 3


def test_copies_in_parallel_are_charged_once(
    paid_worker: PaidWorker, seeker: Seeker, asked_early: list[EarlyVerification]
) -> None:
    """One copy is verified early and one may be claimed first; all have the same answer."""
    hired = seeker.hire()
    payment = hired.sign()
    answers = in_threads(*[lambda: hired.execute(None, payment)] * 5)
    assert len({each.content for each in answers}) == 1 and answers[0].status == 200
    assert paid_worker.charged(seeker.wallet) == 2 * PRICE
    assert paid_worker.settles(seeker.wallet) == 2
    assert len(asked_early) == 1 and 2 <= verified(paid_worker, seeker) <= 3


def test_two_payments_for_one_contract_at_once(paid_worker: PaidWorker, seeker: Seeker) -> None:
    assert seeker.hire().pay().status == 200
    hired = seeker.hire()
    one, other = hired.sign(), hired.sign()
    answers = in_threads(lambda: hired.execute(None, one), lambda: hired.execute(None, other))
    assert [each.status for each in answers] == [200, 200]
    assert {"already_paid"} <= {each.header("X-Payment-Status") for each in answers}
    assert paid_worker.charged(seeker.wallet) == 3 * PRICE


def test_a_copy_after_the_end_in_another_process(
    paid_worker: PaidWorker, seeker: Seeker, asked_early: list[EarlyVerification]
) -> None:
    """That process asks about a payment that has bought something: the claim has the answer all the same."""
    hired = seeker.hire()
    payment = hired.sign()
    other = FlaskDoor(create_app(paid_worker.settings))
    elsewhere = Seeker(other, seeker.key, paid_worker.now)
    assert elsewhere.hire().pay().status == 200
    copy = Hired(elsewhere, hired.document)
    assert copy.execute().status == 402  # it knows the contract, and not yet that it is paid for
    first = hired.execute(None, payment)
    again = copy.execute(None, payment)
    assert (again.status, again.content) == (200, first.content)
    assert again.header("Idempotent-Replayed") == "true"
    assert paid_worker.charged(seeker.wallet) == 3 * PRICE


def test_a_refused_payment_is_refused_as_ever(
    paid_worker: PaidWorker, seeker: Seeker, asked_early: list[EarlyVerification]
) -> None:
    """The facilitator is asked once, the refusal is on record, and another payment may follow."""
    hired = seeker.hire()
    payment = hired.sign()
    paid_worker.fault("verify", seeker.wallet, REFUSED)
    refused = hired.execute(None, payment)
    assert (refused.status, refused.code) == (402, "PAYMENT_INVALID")
    assert len(asked_early) == 1 and verified(paid_worker, seeker) == 2
    assert hired.execute(None, payment).code == "PAYMENT_INVALID"
    assert verified(paid_worker, seeker) == 2
    assert kinds(paid_worker, hired) == ["execution.created", "payment.claimed", "payment.refused"]
    assert hired.pay().status == 200
    assert paid_worker.charged(seeker.wallet) == 2 * PRICE


def test_a_wallet_whose_payment_failed_is_claimed_first(
    paid_worker: PaidWorker, seeker: Seeker, asked_early: list[EarlyVerification]
) -> None:
    paid_worker.fault("verify", seeker.wallet, REFUSED, times=2)
    for _ in range(2):
        assert seeker.hire().pay().status == 402
    assert len(asked_early) == 1


def test_a_slow_facilitator_is_asked_once(
    paid_worker: PaidWorker, seeker: Seeker, asked_early: list[EarlyVerification]
) -> None:
    """The claim does not wait for it: a seeker that asks finds the task, and the one answer counts."""
    hired = seeker.hire()
    payment = hired.sign()
    paid_worker.fault("verify", seeker.wallet, hang(10))
    answers: list[DoorAnswer] = []
    with in_thread(lambda: answers.append(hired.execute(None, payment))):
        began = time.monotonic()
        eventually(lambda: paid_worker.parts.book.find(hired.id).execution is not None, 5)  # type: ignore[union-attr]
        assert time.monotonic() - began < 5
        contract = paid_worker.parts.book.find(hired.id)
        assert contract is not None and contract.execution is not None
        assert hired.poll(contract.execution).json["status"] == "pending"
        paid_worker.facilitator.release()
    assert answers[0].status == 200
    assert len(asked_early) == 1 and verified(paid_worker, seeker) == 2
    assert paid_worker.charged(seeker.wallet) == 2 * PRICE


def test_a_question_that_cannot_be_asked_costs_nothing(
    paid_worker: PaidWorker,
    seeker: Seeker,
    asked_early: list[EarlyVerification],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The payment is claimed first then, and the wallet may cause another question."""
    request, faults = HttpFacilitator._request, [RuntimeError("a bug")]

    def failing(self: HttpFacilitator, *args: Any) -> bytes:
        if faults:
            raise faults.pop()
        return request(self, *args)

    monkeypatch.setattr(HttpFacilitator, "_request", failing)
    assert seeker.hire().pay().status == 200
    assert (asked_early, faults) == ([], [])
    assert seeker.hire().pay().status == 200
    assert len(asked_early) == 1 and paid_worker.charged(seeker.wallet) == 3 * PRICE


def test_an_answer_that_cannot_be_read_counts_as_none(
    paid_worker: PaidWorker, seeker: Seeker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock asks again."""
    within, faults = HttpCall.answer_within, [RuntimeError("a bug")]

    def failing(self: HttpCall, seconds: float) -> FacilitatorAnswer | None:
        if faults:
            raise faults.pop()
        return within(self, seconds)

    monkeypatch.setattr(HttpCall, "answer_within", failing)
    assert seeker.hire().pay().status == 200
    assert not faults and paid_worker.charged(seeker.wallet) == 2 * PRICE


def test_a_question_is_left_where_no_claim_follows(
    paid_worker: PaidWorker,
    seeker: Seeker,
    asked_early: list[EarlyVerification],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The storage was away when the claim was prepared; the same payment is claimed first then."""
    prepare, away = Claims.prepare, [Unavailable("the storage is away")]

    def prepared(self: Claims, *args: Any, **options: Any) -> PreparedClaim:
        if away:
            raise away.pop()
        return prepare(self, *args, **options)

    monkeypatch.setattr(Claims, "prepare", prepared)
    assert seeker.hire().pay().status == 200
    assert len(asked_early) == 1 and not away
    assert paid_worker.charged(seeker.wallet) == 2 * PRICE
    assert seeker.hire().pay().status == 200
    assert len(asked_early) == 2 and paid_worker.charged(seeker.wallet) == 3 * PRICE


def test_a_facilitator_that_drops_the_call_is_asked_again_by_the_clock(
    paid_worker: PaidWorker, seeker: Seeker, asked_early: list[EarlyVerification]
) -> None:
    hired = seeker.hire()
    payment = hired.sign()
    paid_worker.fault("verify", seeker.wallet, answer(500, {}))
    assert hired.execute(None, payment).status == 200
    assert len(asked_early) == 1 and verified(paid_worker, seeker) == 3
    assert paid_worker.charged(seeker.wallet) == 2 * PRICE


def test_a_store_without_the_scripts(paid_worker: PaidWorker, seeker: Seeker) -> None:
    """They are sent in full, in their order."""
    hired = seeker.hire()
    payment = hired.sign()
    paid_worker.client.script_flush()
    assert hired.execute(None, payment).status == 200
    assert verified(paid_worker, seeker) == 2
    assert paid_worker.charged(seeker.wallet) == 2 * PRICE


@pytest.mark.parametrize(
    "why", ["does not wait", "before work", "long work", "latency", "long input", "replica"]
)
def test_other_payments_are_claimed_first(
    paid_worker: PaidWorker,
    seeker: Seeker,
    asked_early: list[EarlyVerification],
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    """What does not wait, moves money before the work, or must be on a replica first."""
    named: dict[str, tuple[str, str, dict[str, Any]]] = {
        "before work": ("early", "0.02", {"terms": {"settlement": "before_work"}}),
        "long work": ("long", "0.03", {}),
        "latency": ("echo", "0.01", {"sla": {"max_latency_ms": 60_000}}),
    }
    capability, price, terms = named.get(why, ("echo", "0.01", {}))
    hired = seeker.hire(capability, price, **terms)
    body = {"do": "ok", "text": "x" * 5_000} if why == "long input" else {"do": "ok"}
    payment = hired.sign(hired.offer(body))
    if why == "replica":
        monkeypatch.setattr(SafeWrites, "alone", property(lambda _: False, lambda *_: None), raising=False)
    answered = hired.execute(body, payment, **{"Prefer": "respond-async"} if why == "does not wait" else {})
    assert answered.status == (202 if why == "does not wait" else 200)
    assert asked_early == []
    if answered.status == 202:
        assert hired.ended(answered.json["task_id"]).json["status"] == "completed"


@pytest.mark.parametrize("customer", [True, False])
@pytest.mark.parametrize("quota", [True, False])
def test_one_script_stores_what_two_would(client: redis.Redis, customer: bool, quota: bool) -> None:
    """Claim and verification at once leave the same store as one after the other."""

    def after(**verified: bool) -> str:
        client.flushall()
        setup = LedgerSetup(client)
        keys, far = setup.keys, setup.now() + 10**9
        ref = setup.contract(ref="c" * 32)
        newcomers = [f"waits-{number}" for number in range(8)]
        client.rpush(keys.express, *newcomers)
        known = {"newcomers": " ".join(f"{far}:{id}" for id in newcomers)}
        client.hset(keys.wallets, mapping=known | ({f"paid {SEEKER.lower()}": 10**9} if customer else {}))
        if quota:
            entry = f"{ref} 2048 {SEEKER.lower()} 1"
            client.hset(keys.contract(ref), "unpaid", entry)
            client.zadd(keys.unpaid, {entry: far})
            client.zadd(keys.unpaid_new, {entry: far})
            client.hset(keys.unpaid_bytes, mapping={f"wallet {SEEKER.lower()}": 2048, "new": 2048})
        claimed = setup.claim(ref, "1" * 32, nonce="0x" + "7" * 64, **verified)
        if not verified:
            assert setup.ledger.verified(claimed.id, claimed.number, waits=True) == ("working", "express")
        left = "\n".join(map(str, contents(client).items()))
        # A signature is over a time, too.
        return re.sub(r"0x[0-9a-f]{130}|\d{10,17}(\.0)?|\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", left)

    at_once = after(verified=True, waits=True)
    assert at_once == after()
    assert "b'1 state': b'verified'" in at_once and "w:unpaid" not in at_once
