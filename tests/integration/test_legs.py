"""Refund and fee legs on a real store: paid once, whatever fails."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from tests.fakes.chain import NotAccepted
from tests.fakes.facilitator_memory import POOR, USED
from tests.fakes.ledger_setup import KEY, PLATFORM, SEEKER, WORKER, LedgerSetup, SignedClaim, key_of, sign
from worker.contracts.signatures import recover_digest
from worker.payments.leg import Leg, LegKey, LegKind, LegState
from worker.payments.leg_authorization import fee_subject, leg_nonce
from worker.payments.leg_ledger import CONFIRM_US, LEG_WINDOW_S, LegLedger
from worker.payments.leg_runner import FeeRules, LegRunner
from worker.x402.networks import BASE, BASE_SEPOLIA
from worker.x402.receipts import REFUND, REFUND_DOMAIN
from worker.x402.typed_data import digest, transfer_digest
from worker.x402.wire import restore

HOUR_US = 3_600_000_000
RULES = FeeRules(threshold=1_000_000, period_us=24 * HOUR_US)


class ProcessKilled(BaseException):
    """The process died here."""


class LegSetup:
    """A ledger with a leg runner; `kill_at` ends the runner at a named point."""

    def __init__(self, client: redis.Redis, *, with_chain: bool = True, rules: FeeRules = RULES) -> None:
        self.ledger_setup = LedgerSetup(client)
        self.books = LegLedger(client, self.ledger_setup.keys, test_clock=True)
        self.passed: list[str] = []
        self.kill_at = ""
        self.runner = self.make(with_chain=with_chain, rules=rules)

    def make(self, *, with_chain: bool = True, rules: FeeRules = RULES, **options: Any) -> LegRunner:
        leg_options: dict[str, Any] = {"wallet": WORKER, "network": BASE_SEPOLIA, "sign": sign} | options
        return LegRunner(
            self.books,
            self.ledger_setup.facilitator,
            fees=rules,
            chain=self.ledger_setup.chain if with_chain else None,
            checkpoint=self._point,
            **leg_options,
        )

    def _point(self, name: str) -> None:
        self.passed.append(name)
        if name == self.kill_at:
            self.kill_at = ""
            raise ProcessKilled(name)

    def tick(self) -> list[LegKey]:
        """One second's tick of a clock."""
        due = self.runner.due(self.ledger_setup.now())
        for leg in due:
            self.runner.attend(leg)
        return due

    def tick_until_quiet(self, seconds: int = 10, most: int = 12) -> None:
        """Ticks while the store's time advances, until no leg is due."""
        for _ in range(most):
            self.tick()
            self.ledger_setup.move_time(seconds)

    def leg(self, paid: SignedClaim) -> Leg:
        found = self.books.get(LegKey(LegKind.REFUND, paid.id, paid.number))
        assert found is not None
        return found

    def back(self, wallet: str = SEEKER) -> int:
        """The total that the worker's wallet has sent to a wallet, according to the chain."""
        chain = self.ledger_setup.chain
        sent = chain.transfers_to(wallet, 0, chain.head().block)
        return sum(each.amount for each in sent if each.payer == WORKER.lower())


@pytest.fixture(name="setup")
def _setup(client: redis.Redis) -> LegSetup:
    return LegSetup(client)


def journal(client: redis.Redis) -> list[list[str]]:
    return [line.decode().split(" ") for line in client.lrange("w:journal", 0, -1)]


# Refunds


def test_refund_returns_to_the_payer(setup: LegSetup) -> None:
    """Money that bought nothing is refunded in full, once, and the ledger shows it."""
    paid = setup.ledger_setup.owed()
    assert setup.ledger_setup.sums["refunds_due"] == 10_000
    setup.tick()
    leg = setup.leg(paid)
    assert (leg.state, leg.how, leg.amount) == (LegState.SETTLED, "facilitator", 10_000)
    assert setup.back() == 10_000
    assert setup.ledger_setup.sums["refunds_due"] == 0 and setup.ledger_setup.sums["refunds_paid"] == 10_000
    assert setup.tick() == [] and setup.books.open() == []


def test_refund_is_signed_by_the_worker_with_a_derived_nonce(setup: LegSetup) -> None:
    """The worker signs the authorization to the payer; its nonce is derived from the refunded payment."""
    paid = setup.ledger_setup.owed()
    setup.tick()
    sent = restore(json.dumps(setup.ledger_setup.facilitator.sent[-1]))
    authorization = sent.authorization
    assert (authorization.payer, authorization.to, authorization.value) == (
        WORKER.lower(),
        SEEKER.lower(),
        10_000,
    )
    assert authorization.nonce == leg_nonce(LegKind.REFUND, key_of(paid.nonce), 0)
    digest = transfer_digest(BASE_SEPOLIA.domain, authorization)
    assert recover_digest(digest, sent.signature_bytes) == WORKER
    left = authorization.valid_before - setup.ledger_setup.now() // 1_000_000
    assert LEG_WINDOW_S - 5 <= left <= LEG_WINDOW_S


def test_settled_refund_has_a_signed_receipt(setup: LegSetup) -> None:
    """The receipt names both transactions, the amount and the contract's hash, and recovers to the worker."""
    paid = setup.ledger_setup.owed("output_schema_invalid")
    setup.tick()
    (receipt,) = setup.books.receipts(paid.id, paid.number)
    signed = json.loads(receipt.signed)
    payload = signed["payload"]
    money = setup.ledger_setup.ledger.money(paid.id)
    payment = money.payment(paid.number) if money else None
    assert payment is not None
    assert (payload["payment"], payload["refund"]) == (payment.transaction, receipt.transaction)
    assert payload["amount"] == "10000" and payload["reason"] == "service_defective"
    assert payload["contract"] == "sha256:" + "ab" * 32 and payload["payer"] == SEEKER
    receipt_digest = digest(REFUND_DOMAIN, REFUND, payload)
    assert recover_digest(receipt_digest, bytes.fromhex(signed["signature"][2:])) == WORKER


def test_duplicate_payment_is_refunded(setup: LegSetup) -> None:
    """Of two payments that both landed one bought the result and the other is refunded."""
    ledger_setup = setup.ledger_setup
    first = ledger_setup.claim()
    ledger_setup.seal(first)
    ledger_setup.facilitator.plan = [POOR]
    ledger_setup.settler.settle(first.id)  # refused: the result waits for another payment
    second = ledger_setup.claim(first.ref, first.id)
    ledger_setup.seal(second)
    ledger_setup.settler.settle(first.id)
    assert ledger_setup.state(second) == "settled"
    landed = ledger_setup.chain.settle(first.authorization, WORKER, 10_000)
    assert ledger_setup.settler.record_settled(first.id, first.number, landed, "chain") == "refund"
    setup.tick()
    assert setup.leg(first).reason == "duplicate_payment" and setup.back() == 10_000
    assert setup.books.get(LegKey(LegKind.REFUND, second.id, second.number)) is None


def test_leg_is_journaled_before_it_is_sent(setup: LegSetup) -> None:
    """When the facilitator receives a leg, the ledger already has all that was sent."""
    paid = setup.ledger_setup.owed()
    seen: list[Any] = []

    def look() -> None:
        leg = setup.leg(paid)
        seen.append(
            (leg.state, json.loads(leg.payload), [line[1] for line in journal(setup.ledger_setup.client)])
        )

    setup.ledger_setup.facilitator.during = look
    setup.tick()
    ((state, payload, facts),) = seen
    assert state is LegState.SETTLING and payload == setup.ledger_setup.facilitator.sent[-1]
    assert facts[-3:] == ["refund_due", "refund_begun", "refund_call"]


# Outcomes


@pytest.mark.parametrize("word", ["drop", "moved", "pending", "unexpected_settle_error"])
def test_unknown_leg_is_resent_unchanged(setup: LegSetup, word: str) -> None:
    """After a lost response the same bytes are resent, or the chain ends it; it is paid once."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.sent.clear()
    setup.ledger_setup.facilitator.plan = [word]
    setup.tick()
    setup.tick_until_quiet()
    assert setup.leg(paid).state is LegState.SETTLED and setup.back() == 10_000
    assert all(each == setup.ledger_setup.facilitator.sent[0] for each in setup.ledger_setup.facilitator.sent)


def test_unknown_leg_backs_off(setup: LegSetup) -> None:
    """The identical call is repeated after 1, 2, 5, 10, 30, 60 s, then 5 and 15 min, then each hour."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.sent.clear()
    setup.ledger_setup.facilitator.plan = ["drop"] * 9
    waits = []
    for _ in range(9):
        setup.tick()
        (score,) = [s for _, s in setup.ledger_setup.client.zrange("w:legs", 0, -1, withscores=True)]
        waits.append(round((score - setup.ledger_setup.now()) / 1e6))
        setup.ledger_setup.move_time(waits[-1] + 1)
    assert waits == [1, 2, 5, 10, 30, 60, 300, 900, 3600]
    assert setup.leg(paid).state is LegState.UNKNOWN
    assert len(setup.ledger_setup.facilitator.sent) == 9


def test_refusal_after_an_unknown_is_not_believed(setup: LegSetup) -> None:
    """A leg that may have moved is not given up for a code that would refuse a fresh one."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = ["drop", POOR, POOR]
    setup.tick_until_quiet(most=3)
    assert setup.leg(paid).state is LegState.UNKNOWN
    setup.tick_until_quiet(seconds=70, most=2)
    assert setup.leg(paid).state is LegState.SETTLED and setup.back() == 10_000


def test_refused_leg_stays_due_and_can_be_retried(setup: LegSetup) -> None:
    """A leg that a facilitator refuses for good is listed with its code; a retry has the same nonce."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = ["kyt_risk_detected"]
    setup.tick()
    leg = setup.leg(paid)
    assert (leg.state, leg.code) == (LegState.REFUSED, "kyt_risk_detected")
    assert setup.ledger_setup.sums["refunds_due"] == 10_000 and setup.books.open() == [leg.name]
    setup.ledger_setup.move_time(30 * 86_400)
    assert setup.tick() == []
    assert setup.books.retry(leg.name) == "due"
    setup.tick()
    nonces = {
        json.dumps(each["payload"]["authorization"]["nonce"])
        for each in setup.ledger_setup.facilitator.sent[1:]
    }
    assert len(nonces) == 1 and setup.leg(paid).state is LegState.SETTLED and setup.back() == 10_000


def test_leg_is_paid_once_the_wallet_has_money(setup: LegSetup) -> None:
    """With an empty wallet the facilitator refuses the leg; once funded, it is paid automatically, once."""
    paid = setup.ledger_setup.owed()
    chain = setup.ledger_setup.chain
    chain.transfer(WORKER, "0x" + "99" * 20, 10_000)
    setup.tick()
    assert setup.leg(paid).code == POOR
    setup.tick_until_quiet(seconds=60, most=5)
    assert setup.leg(paid).state is LegState.REFUSED and len(setup.ledger_setup.facilitator.sent) == 2
    chain.mint(WORKER, 50_000)
    setup.ledger_setup.move_time(61)
    setup.tick()
    assert setup.back() == 10_000 and chain.balance(WORKER) == 40_000
    first, second = (
        each["payload"]["authorization"]["nonce"] for each in setup.ledger_setup.facilitator.sent[1:]
    )
    assert first == second


def test_unfunded_leg_without_a_node_backs_off(client: redis.Redis) -> None:
    """Without a node only a call shows whether the wallet has money; calls slow down to one an hour."""
    setup = LegSetup(client, with_chain=False)
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = [POOR] * 100
    for _ in range(24 * 60):
        setup.tick()
        setup.ledger_setup.move_time(60)
    calls = len(setup.ledger_setup.facilitator.sent) - 1
    assert 24 <= calls <= 34 and setup.leg(paid).state is LegState.REFUSED
    setup.ledger_setup.facilitator.plan = []
    setup.ledger_setup.move_time(3600)
    setup.tick()
    assert setup.leg(paid).state is LegState.SETTLED and setup.back() == 10_000


def test_failing_leg_backs_off_further_than_a_payment(setup: LegSetup) -> None:
    """A facilitator that cannot pay our legs is called some thirty times a day for each, not 1,440 times."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = ["drop"] * 10_000
    for _ in range(24 * 60):
        setup.tick()
        setup.ledger_setup.move_time(60)
    assert 20 <= len(setup.ledger_setup.facilitator.sent) - 1 <= 50
    leg = setup.leg(paid)
    assert leg.keeps_failing and leg.state is not LegState.REFUSED
    assert [each.name for each in setup.books.failing()] == [leg.name]


def test_next_ordinal_needs_proof_from_the_chain(setup: LegSetup) -> None:
    """An expired leg that the chain shows as not landed is signed again under the next ordinal."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = ["drop"] * 3
    setup.tick()
    setup.ledger_setup.move_time(LEG_WINDOW_S + 300)
    setup.tick()
    assert setup.leg(paid).ordinal == 0, "its end has passed, but a block may still come late"
    setup.ledger_setup.move_time(CONFIRM_US // 1_000_000)
    setup.ledger_setup.facilitator.plan = []
    setup.tick()
    assert (setup.leg(paid).ordinal, setup.leg(paid).state) == (1, LegState.DUE)
    setup.tick()
    sent = setup.ledger_setup.facilitator.sent[-1]["payload"]["authorization"]
    assert sent["nonce"] == leg_nonce(LegKind.REFUND, key_of(paid.nonce), 1)
    assert setup.leg(paid).state is LegState.SETTLED and setup.back() == 10_000


def test_cancelled_leg_is_signed_under_the_next_ordinal(setup: LegSetup) -> None:
    """A nonce cancelled by its own wallet can never land, as the chain shows immediately."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = ["drop"]
    setup.tick()
    setup.ledger_setup.chain.cancel((WORKER, leg_nonce(LegKind.REFUND, key_of(paid.nonce), 0)))
    setup.ledger_setup.move_time(5)
    setup.tick()
    setup.tick()
    assert setup.leg(paid).ordinal == 1 and setup.back() == 10_000


def test_an_unreachable_chain_proves_nothing(setup: LegSetup) -> None:
    """While the chain is unreachable a leg past its end stays unknown under its ordinal."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = ["drop"] * 9
    setup.tick()
    setup.ledger_setup.move_time(LEG_WINDOW_S + 1200)
    setup.ledger_setup.chain.down = True
    setup.runner.attend(setup.leg(paid).name)
    assert (setup.leg(paid).ordinal, setup.leg(paid).state) == (0, LegState.UNKNOWN)


def test_used_nonce_after_our_call_is_presumed(client: redis.Redis) -> None:
    """A re-sent leg that meets a used nonce has landed; it is marked presumed and has no receipt."""
    setup = LegSetup(client, with_chain=False)
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = ["moved", USED]
    setup.tick_until_quiet()
    leg = setup.leg(paid)
    assert (leg.state, leg.how, leg.receipt) == (LegState.SETTLED, "presumed", "")
    assert setup.back() == 10_000


def test_used_nonce_on_a_first_call_is_not_believed(client: redis.Redis) -> None:
    """A used nonce on a first call proves nothing about our own transfer."""
    setup = LegSetup(client, with_chain=False)
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = [USED]
    setup.tick()
    assert setup.leg(paid).state is LegState.UNKNOWN


def test_unknown_leg_without_a_chain_needs_the_operator(client: redis.Redis) -> None:
    """Long past its end an unknown leg is not signed automatically; the operator's retry keeps the nonce."""
    setup = LegSetup(client, with_chain=False)
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = ["drop"] * 3
    setup.tick()
    leg = setup.leg(paid)
    assert setup.books.retry(leg.name) == "early"
    setup.ledger_setup.move_time(LEG_WINDOW_S + CONFIRM_US // 1_000_000 + 5)
    setup.tick()
    assert (setup.leg(paid).ordinal, setup.leg(paid).state) == (0, LegState.UNKNOWN)
    assert setup.books.retry(leg.name) == "due"
    setup.ledger_setup.facilitator.plan = []
    setup.tick()
    assert setup.leg(paid).state is LegState.SETTLED and setup.back() == 10_000
    nonces = {each["payload"]["authorization"]["nonce"] for each in setup.ledger_setup.facilitator.sent[1:]}
    assert len(nonces) == 1


def test_retry_of_an_unrefused_leg_changes_nothing(setup: LegSetup) -> None:
    """Due and settled legs need no retry."""
    paid = setup.ledger_setup.owed()
    assert setup.books.retry(setup.leg(paid).name) == "gone"
    setup.tick()
    assert setup.books.retry(setup.leg(paid).name) == "gone"
    assert setup.leg(paid).state is LegState.SETTLED


def test_payment_on_another_network_is_not_refunded(setup: LegSetup) -> None:
    """If the worker has changed networks, the old payment's refund is listed, not paid in another coin."""
    paid = setup.ledger_setup.owed()
    setup.runner = setup.make(network=BASE)
    setup.tick()
    assert (setup.leg(paid).state, setup.leg(paid).code) == (LegState.REFUSED, "paid_on_another_network")
    assert setup.back() == 0


# Single open call


def test_open_leg_call_excludes_other_clocks(setup: LegSetup) -> None:
    """A second clock that sees the same leg skips it, even past the first lease."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.sent.clear()
    other = setup.make()

    def meanwhile() -> None:
        setup.ledger_setup.facilitator.during = lambda: None
        for leg in other.due(setup.ledger_setup.now() + 2_000_000):
            other.attend(leg)
        other.attend(setup.leg(paid).name)

    setup.ledger_setup.facilitator.during = meanwhile
    setup.tick()
    assert len(setup.ledger_setup.facilitator.sent) == 1 and setup.back() == 10_000


def test_late_leg_answer_is_recorded_once(setup: LegSetup) -> None:
    """A call outlives its lease: another clock sends the same bytes, and the success is recorded once."""
    paid = setup.ledger_setup.owed()
    other = setup.make()

    def stopped() -> None:
        setup.ledger_setup.facilitator.during = lambda: None
        setup.ledger_setup.move_time(60)  # this process was stopped, its lease expired
        other.attend(setup.leg(paid).name)

    setup.ledger_setup.facilitator.during = stopped
    setup.tick()
    assert setup.leg(paid).state is LegState.SETTLED and setup.back() == 10_000
    assert setup.ledger_setup.sums["refunds_paid"] == 10_000 and setup.ledger_setup.sums["refunds_due"] == 0
    settled = [line for line in journal(setup.ledger_setup.client) if line[1] == "refund_settled"]
    assert len(settled) == 1


def test_lost_leg_lease_prevents_sending(setup: LegSetup) -> None:
    """A process that stalls between lease and journal finds its lease lost and sends nothing."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.sent.clear()
    slow = setup.make()
    other = setup.make()

    def point(name: str) -> None:
        if name == "before_leg_signed":
            setup.ledger_setup.move_time(60)
            other.attend(setup.leg(paid).name)

    slow.checkpoint = point
    slow.attend(setup.leg(paid).name)
    assert len(setup.ledger_setup.facilitator.sent) == 1 and setup.back() == 10_000


def test_leg_lease_is_renewed_by_its_holder(setup: LegSetup) -> None:
    """A lease lasts five seconds from its last renewal, and only its holder can renew it."""
    name = setup.leg(setup.ledger_setup.owed()).name
    assert setup.books.begin(name, "one") is not None
    for _ in range(3):
        setup.ledger_setup.move_time(4)
        assert setup.books.renew(name, "one") and not setup.books.renew(name, "two")
        assert setup.books.begin(name, "two") is None
    setup.ledger_setup.move_time(6)
    assert setup.books.begin(name, "two") is not None
    assert not setup.books.renew(name, "one")


def test_only_the_lease_holder_journals(setup: LegSetup) -> None:
    """A leg signed by the first holder is not stored once another has the lease, signed or not."""
    name = setup.leg(setup.ledger_setup.owed()).name
    setup.books.begin(name, "one")
    setup.ledger_setup.move_time(6)
    setup.books.begin(name, "two")
    assert not setup.books.signed(name, "one", "{}", "{}")
    assert setup.books.signed(name, "two", "{}", "{}")
    assert not setup.books.signed(name, "two", '{"other":1}', "{}"), "what was sent is never replaced"


def test_leg_refusal_after_an_unanswered_call_is_not_recorded(setup: LegSetup) -> None:
    """A leg whose call was begun and never answered is not recorded as refused, whoever reports it."""
    name = setup.leg(setup.ledger_setup.owed()).name
    setup.books.begin(name, "one")
    setup.books.signed(name, "one", "{}", "{}")
    setup.ledger_setup.move_time(6)
    setup.books.begin(name, "two")
    assert setup.books.refused(name, POOR) == "unknown"
    found = setup.books.get(name)
    assert found is not None and found.state is LegState.SETTLING


def test_ordinal_is_given_up_once(setup: LegSetup) -> None:
    """A report on an ordinal that is already over, or on a refused leg, changes nothing."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = ["drop"]
    setup.tick()
    name = setup.leg(paid).name
    assert setup.books.next_ordinal(name, 1) == "gone"
    assert setup.books.next_ordinal(name, 0) == "due"
    setup.books.begin(name, "one")
    assert setup.books.next_ordinal(name, 0) == "gone" and setup.leg(paid).ordinal == 1
    setup.books.refused(name, POOR)
    assert setup.books.next_ordinal(name, 1) == "gone" and setup.leg(paid).ordinal == 1


# Crash points

POINTS = [
    "before_leg_begin",
    "after_leg_begin",
    "before_leg_signed",
    "after_leg_signed",
    "after_leg_settle",
    "before_leg_settled",
    "after_leg_outcome",
]


@pytest.mark.parametrize("with_chain", [True, False])
@pytest.mark.parametrize("kind", ["refund", "fee"])
@pytest.mark.parametrize("point", POINTS)
def test_leg_survives_a_crash_at_any_point(
    client: redis.Redis, point: str, kind: str, with_chain: bool
) -> None:
    """Killed at any point and resumed by another process, a leg is paid exactly once."""
    rules = FeeRules(threshold=500, period_us=24 * HOUR_US)
    setup = LegSetup(client, with_chain=with_chain, rules=rules)
    if kind == "refund":
        setup.ledger_setup.owed()
        wallet, amount = SEEKER, 10_000
    else:
        setup.ledger_setup.paid(fee=700)
        wallet, amount = PLATFORM, 700
    setup.kill_at = point
    with pytest.raises(ProcessKilled):
        setup.tick()
    setup.tick_until_quiet()
    assert setup.back(wallet) == amount and setup.books.open() == []
    assert setup.ledger_setup.sums[f"{kind}s_due"] == 0 and setup.ledger_setup.sums[f"{kind}s_paid"] == amount


@pytest.mark.parametrize("first", POINTS)
@pytest.mark.parametrize("fault", ["drop", "moved"])
def test_two_crashes_and_a_lost_answer_pay_once(client: redis.Redis, first: str, fault: str) -> None:
    """A crash, a lost response and a crash before the response is recorded: still one transfer."""
    setup = LegSetup(client)
    setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = [fault]
    for point in (first, "after_leg_settle"):
        setup.kill_at = point
        with pytest.raises(ProcessKilled):
            for _ in range(10):
                setup.tick()
                setup.ledger_setup.move_time(10)
            raise ProcessKilled("the point was not met again, because nothing was left to do")
    setup.kill_at = ""
    setup.tick_until_quiet()
    assert setup.back() == 10_000 and setup.ledger_setup.sums["refunds_paid"] == 10_000


def test_crash_before_the_next_ordinal_skips_none(setup: LegSetup) -> None:
    """Killed between the chain's answer and its record, the leg takes the next ordinal once."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.facilitator.plan = ["drop"]
    setup.tick()
    setup.ledger_setup.move_time(LEG_WINDOW_S + CONFIRM_US // 1_000_000 + 5)
    setup.kill_at = "before_leg_again"
    with pytest.raises(ProcessKilled):
        setup.tick()
    setup.tick_until_quiet()
    assert setup.leg(paid).ordinal == 1 and setup.back() == 10_000


def test_rolled_back_store_does_not_refund_twice(setup: LegSetup) -> None:
    """Rolled back to before the settlement, the same nonce is signed again and found on the chain."""
    paid = setup.ledger_setup.owed()
    before = {key: setup.ledger_setup.client.dump(key) for key in setup.ledger_setup.client.keys("*")}
    setup.tick()
    setup.ledger_setup.client.flushall()
    for key, blob in before.items():
        setup.ledger_setup.client.restore(key, 0, blob)
    assert setup.leg(paid).state is LegState.DUE
    setup.tick_until_quiet()
    leg = setup.leg(paid)
    assert (leg.state, leg.how, leg.ordinal) == (LegState.SETTLED, "chain", 0) and setup.back() == 10_000


# Fees


def fee_name(number: int = 1, wallet: str = PLATFORM) -> LegKey:
    return LegKey(LegKind.FEE, wallet, number)


def test_small_fees_accumulate(setup: LegSetup) -> None:
    """Fees below the threshold accumulate unsigned."""
    for _ in range(3):
        setup.ledger_setup.paid(fee=100)
    assert setup.tick() == []
    assert setup.books.all_gathered() == {PLATFORM: 300} and setup.back(PLATFORM) == 0


def test_fee_threshold_creates_a_leg(client: redis.Redis) -> None:
    """Fees that reach the threshold become one leg over their sum."""
    setup = LegSetup(client, rules=FeeRules(threshold=300, period_us=24 * HOUR_US))
    setup.ledger_setup.paid(fee=200)
    assert setup.tick() == []
    setup.ledger_setup.paid(fee=100)
    assert setup.tick() == [fee_name()]
    assert setup.back(PLATFORM) == 300
    assert setup.ledger_setup.sums["fees_due"] == 0 and setup.ledger_setup.sums["fees_paid"] == 300
    assert setup.books.all_gathered() == {}


def test_fee_period_creates_a_leg(setup: LegSetup) -> None:
    """Fees are held no longer than the period, counted from the first of them."""
    setup.ledger_setup.paid(fee=100)
    setup.ledger_setup.move_time(23 * 3600)
    setup.ledger_setup.paid(fee=50)
    assert setup.tick() == []
    setup.ledger_setup.move_time(3600)
    assert setup.tick() == [fee_name()] and setup.back(PLATFORM) == 150


def test_later_fees_go_into_the_next_leg(client: redis.Redis) -> None:
    """Later fees do not change a created leg; they go into the next one with its own nonce."""
    setup = LegSetup(client, rules=FeeRules(threshold=100, period_us=24 * HOUR_US))
    setup.ledger_setup.paid(fee=100)
    setup.ledger_setup.facilitator.plan = ["drop"]
    assert setup.tick() == [fee_name(1)]
    setup.ledger_setup.paid(fee=60)
    setup.ledger_setup.paid(fee=70)
    assert fee_name(2) in setup.tick()
    setup.tick_until_quiet()
    amounts = [leg.amount for leg in setup.books.fee_legs(PLATFORM)]
    assert amounts == [100, 130] and setup.back(PLATFORM) == 230
    wanted = {leg_nonce(LegKind.FEE, fee_subject(BASE_SEPOLIA, PLATFORM, n), 0) for n in ("1", "2")}
    sent = {each["payload"]["authorization"]["nonce"] for each in setup.ledger_setup.facilitator.sent}
    assert wanted <= sent


def test_zero_fee_creates_no_leg(setup: LegSetup) -> None:
    """A fee that rounds to 0 units is not paid."""
    setup.ledger_setup.paid(fee=0)
    setup.ledger_setup.move_time(48 * 3600)
    assert setup.tick() == [] and setup.books.open() == [] and setup.ledger_setup.sums.get("fees_due", 0) == 0


def test_each_wallet_has_its_own_legs(client: redis.Redis) -> None:
    """Fees of two platforms are kept apart."""
    other = "0x" + "ab" * 20
    setup = LegSetup(client, rules=FeeRules(threshold=10, period_us=HOUR_US))
    setup.ledger_setup.paid(fee=30)
    setup.ledger_setup.paid(fee=40, fee_wallet=other)
    setup.tick()
    assert (setup.back(PLATFORM), setup.back(other)) == (30, 40)


def test_two_clocks_create_one_fee_leg(client: redis.Redis) -> None:
    """Due fees that two clocks see become one leg."""
    setup = LegSetup(client, rules=FeeRules(threshold=10, period_us=HOUR_US))
    setup.ledger_setup.paid(fee=30)
    rules = (10, HOUR_US)
    assert setup.books.fix(PLATFORM, *rules) == fee_name()
    assert setup.books.fix(PLATFORM, *rules) is None
    assert len(setup.books.fee_legs(PLATFORM)) == 1


def test_crash_while_creating_a_fee_leg_loses_no_fees(client: redis.Redis) -> None:
    """Killed before the leg is created, the fees still accumulate."""
    setup = LegSetup(client, rules=FeeRules(threshold=10, period_us=HOUR_US))
    setup.ledger_setup.paid(fee=30)
    setup.kill_at = "before_fix"
    with pytest.raises(ProcessKilled):
        setup.tick()
    assert setup.books.all_gathered() == {PLATFORM: 30}
    setup.tick_until_quiet()
    assert setup.back(PLATFORM) == 30


@pytest.mark.parametrize("wallet", [WORKER.lower(), "0xnot-an-address"])
def test_unpayable_fee_is_listed(client: redis.Redis, wallet: str) -> None:
    """A fee to ourselves or to no address is refused before it is signed, and stays due."""
    setup = LegSetup(client, rules=FeeRules(threshold=10, period_us=HOUR_US))
    setup.ledger_setup.paid(fee=30, fee_wallet=wallet)
    setup.tick()
    leg = setup.books.get(fee_name(wallet=wallet))
    assert leg is not None and (leg.state, leg.code) == (LegState.REFUSED, "leg_cannot_be_signed")
    assert setup.ledger_setup.sums["fees_due"] == 30 and setup.tick() == []


def test_forgotten_fee_leg_is_not_paid_with_another_amount(client: redis.Redis) -> None:
    """The store forgot a paid leg and recreated it with more fees: the spent nonce stops it."""
    setup = LegSetup(client, rules=FeeRules(threshold=100, period_us=HOUR_US))
    setup.ledger_setup.paid(fee=100)
    before = {key: client.dump(key) for key in client.keys("*")}
    setup.tick()
    client.flushall()
    for key, blob in before.items():
        client.restore(key, 0, blob)
    setup.ledger_setup.paid(fee=50)
    setup.tick()
    setup.ledger_setup.move_time(LEG_WINDOW_S + CONFIRM_US // 1_000_000 + 60)
    setup.tick_until_quiet()
    leg = setup.books.get(fee_name())
    assert leg is not None and (leg.state, leg.code) == (LegState.REFUSED, "nonce_paid_another_amount")
    assert setup.back(PLATFORM) == 100


def test_accumulating_fees_do_not_hide_refunds(client: redis.Redis) -> None:
    """However many wallets accumulate fees, a due refund is found."""
    setup = LegSetup(client)
    setup.ledger_setup.paid(fee=1)
    (line,) = client.zrange("w:legs", 0, -1)
    old = {f"fee 0x{number:040x}": 1 for number in range(1500)}
    client.zadd("w:legs", old)
    client.hset("w:wallets", mapping={name: 1 for name in old})
    client.zrem("w:legs", line)
    paid = setup.ledger_setup.owed()
    rules = FeeRules(threshold=10**9, period_us=10**18)
    found = setup.make(rules=rules).due(setup.ledger_setup.now())
    assert found == [LegKey(LegKind.REFUND, paid.id, paid.number)]


# Operator refunds


def test_operator_refunds_delivered_work(setup: LegSetup) -> None:
    """A completed execution can be refunded in parts, each with its own leg, nonce and receipt."""
    paid = setup.ledger_setup.paid()
    for amount in (4_000, 6_000):
        assert setup.books.owe(paid.id, 1, amount, "quality_rejected") == ("due", str(amount))
        setup.tick()
    receipts = setup.books.receipts(paid.id, 1)
    assert [receipt.amount for receipt in receipts] == [4_000, 6_000]
    assert len({receipt.transaction for receipt in receipts}) == 2
    assert all(json.loads(receipt.signed)["payload"]["amount"] in ("4000", "6000") for receipt in receipts)
    assert setup.back() == 10_000
    assert setup.books.owe(paid.id, 1, None, "other") == ("above", "0")
    assert setup.books.owe(paid.id, 1, 1, "other") == ("above", "0")


def test_refund_without_an_amount_returns_the_rest(setup: LegSetup) -> None:
    """Without an amount the rest of the payment is refunded."""
    paid = setup.ledger_setup.paid()
    setup.books.owe(paid.id, 1, 2_500, "other")
    setup.tick()
    assert setup.books.owe(paid.id, 1, None, "other") == ("due", "7500")


@pytest.mark.parametrize("amount", [0, -1, 10_001, 2**60])
def test_refund_above_the_settled_amount_is_refused(setup: LegSetup, amount: int) -> None:
    """Zero, negative and excessive amounts are refused and change no sum."""
    paid = setup.ledger_setup.paid()
    sums = setup.ledger_setup.sums
    assert setup.books.owe(paid.id, 1, amount, "other") == ("above", "10000")
    assert setup.ledger_setup.sums == sums and setup.books.open() == []


def test_one_open_refund_per_payment(setup: LegSetup) -> None:
    """While a leg is open no second one is created; a failed execution's refund is such a leg."""
    paid = setup.ledger_setup.owed()
    assert setup.books.owe(paid.id, 1, None, "other") == ("under_way", "due")
    setup.tick()
    assert setup.books.owe(paid.id, 1, None, "other") == ("above", "0")


def test_only_ended_and_settled_executions_are_refunded(setup: LegSetup) -> None:
    """Running work, unpaid work and unknown executions cannot be refunded."""
    running = setup.ledger_setup.claim(mode="before_work")
    assert setup.books.owe(running.id, 1, None, "other") == ("open", "")
    assert setup.books.owe(running.id, 2, None, "other") == ("none", "")
    assert setup.books.owe("nobody", 1, None, "other") == ("none", "")
    setup.ledger_setup.store.cancel(running.id, b"{}", by="operator")
    assert setup.books.owe(running.id, 1, None, "other") == ("unsettled", "released")


def test_leg_above_the_settled_amount_is_stopped(setup: LegSetup) -> None:
    """A ledger edited by hand does not make the worker pay more than it received."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.client.hset(f"w:money:{paid.id}", "1 refund amount", 10_001)
    setup.tick()
    assert setup.leg(paid).code == "above_settled" and setup.back() == 0


def test_leg_of_an_unsettled_payment_is_stopped(setup: LegSetup) -> None:
    """A payment that the ledger no longer shows as settled is not refunded."""
    paid = setup.ledger_setup.owed()
    setup.ledger_setup.client.hset(f"w:money:{paid.id}", "1 state", "refused")
    setup.tick()
    assert setup.leg(paid).code == "above_settled" and setup.back() == 0


def test_settlement_of_a_forgotten_leg_is_journaled(setup: LegSetup) -> None:
    """A success for a leg that no longer exists is still recorded."""
    name = LegKey(LegKind.REFUND, "gone", 1)
    assert setup.books.settled(name, "0x" + "ab" * 32, "facilitator", "") == "lost"
    assert journal(setup.ledger_setup.client)[-1][1] == "refund_settled_unknown_leg"


def test_chain_refuses_a_second_leg_with_the_same_nonce(setup: LegSetup) -> None:
    """The derived nonce is the last safeguard: the same leg signed with another end cannot land again."""
    paid = setup.ledger_setup.owed()
    setup.tick()
    nonce = leg_nonce(LegKind.REFUND, key_of(paid.nonce), 0)
    with pytest.raises(NotAccepted):
        setup.ledger_setup.chain.settle((WORKER, nonce), SEEKER, 10_000)


def test_journal_contains_no_secret(setup: LegSetup) -> None:
    """Neither a key nor a contract id appears in the journal."""
    paid = setup.ledger_setup.owed()
    setup.tick()
    text = json.dumps(journal(setup.ledger_setup.client))
    assert KEY[2:] not in text and "ctr_" not in text and paid.id in text
