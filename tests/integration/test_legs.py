"""Refunds and fees on a real store: paid once, whatever breaks on the way, and never forgotten."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from tests.fakes.chain import NotAccepted
from tests.fakes.desk import KEY, PLATFORM, SEEKER, WORKER, Desk, Paid, key_of, sign
from tests.fakes.facilitator_memory import POOR, USED
from worker.contracts.signatures import recover_digest
from worker.payments.leg_books import CONFIRM_US, LEG_WINDOW_S, Leg, LegBooks, LegName
from worker.payments.leg_runner import FeeRules, LegRunner
from worker.payments.legs import LegKind, LegState, fee_subject, leg_nonce
from worker.payments.networks import BASE, BASE_SEPOLIA
from worker.payments.receipts import refund_digest
from worker.payments.typed_data import transfer_digest
from worker.payments.wire import restore

HOUR_US = 3_600_000_000
RULES = FeeRules(threshold=1_000_000, period_us=24 * HOUR_US)


class Killed(BaseException):
    """The process ended here."""


class Bench:
    """A desk with a leg runner; `kill_at` ends the runner at a named point."""

    def __init__(self, client: redis.Redis, *, with_chain: bool = True, rules: FeeRules = RULES) -> None:
        self.desk = Desk(client)
        self.books = LegBooks(client, self.desk.keys, test_clock=True)
        self.passed: list[str] = []
        self.kill_at = ""
        self.runner = self.make(with_chain=with_chain, rules=rules)

    def make(self, *, with_chain: bool = True, rules: FeeRules = RULES, **options: Any) -> LegRunner:
        given: dict[str, Any] = {"wallet": WORKER, "network": BASE_SEPOLIA, "sign": sign} | options
        return LegRunner(
            self.books,
            self.desk.facilitator,
            fees=rules,
            chain=self.desk.chain if with_chain else None,
            checkpoint=self._point,
            **given,
        )

    def _point(self, name: str) -> None:
        self.passed.append(name)
        if name == self.kill_at:
            self.kill_at = ""
            raise Killed(name)

    def tick(self) -> list[LegName]:
        """What a clock does once a second."""
        due = self.runner.due(self.desk.now())
        for leg in due:
            self.runner.attend(leg)
        return due

    def tick_until_quiet(self, seconds: int = 10, most: int = 12) -> None:
        """Ticks while the store's time goes on, until no leg is due any more."""
        for _ in range(most):
            self.tick()
            self.desk.move_time(seconds)

    def leg(self, paid: Paid) -> Leg:
        found = self.books.get(LegName(LegKind.REFUND, paid.id, paid.number))
        assert found is not None
        return found

    def back(self, wallet: str = SEEKER) -> int:
        """What the worker's wallet has sent to a wallet, by the chain."""
        chain = self.desk.chain
        sent = chain.transfers_to(wallet, 0, chain.head().block)
        return sum(each.amount for each in sent if each.payer == WORKER.lower())


@pytest.fixture(name="bench")
def _bench(client: redis.Redis) -> Bench:
    return Bench(client)


def journal(client: redis.Redis) -> list[list[str]]:
    return [line.decode().split(" ") for line in client.lrange("w:journal", 0, -1)]


# Refunds


def test_a_refund_goes_back_to_its_payer(bench: Bench) -> None:
    """Money that bought nothing returns in full, once, and the books say so."""
    paid = bench.desk.owed()
    assert bench.desk.sums["refunds_due"] == 10_000
    bench.tick()
    leg = bench.leg(paid)
    assert (leg.state, leg.how, leg.amount) == (LegState.SETTLED, "facilitator", 10_000)
    assert bench.back() == 10_000
    assert bench.desk.sums["refunds_due"] == 0 and bench.desk.sums["refunds_paid"] == 10_000
    assert bench.tick() == [] and bench.books.open() == []


def test_a_refund_is_signed_by_the_workers_wallet_with_its_derived_nonce(bench: Bench) -> None:
    """The authorization is ours, to the payer, and its nonce follows from the payment that goes back."""
    paid = bench.desk.owed()
    bench.tick()
    sent = restore(json.dumps(bench.desk.facilitator.sent[-1]))
    given = sent.authorization
    assert (given.payer, given.to, given.value) == (WORKER.lower(), SEEKER.lower(), 10_000)
    assert given.nonce == leg_nonce(LegKind.REFUND, key_of(paid.nonce), 0)
    digest = transfer_digest(BASE_SEPOLIA.domain, given)
    assert recover_digest(digest, sent.signature_bytes) == WORKER
    left = given.valid_before - bench.desk.now() // 1_000_000
    assert LEG_WINDOW_S - 5 <= left <= LEG_WINDOW_S


def test_a_settled_refund_has_a_signed_receipt(bench: Bench) -> None:
    """The receipt names both transactions, the amount and the contract's hash, and recovers to us."""
    paid = bench.desk.owed("output_schema_invalid")
    bench.tick()
    (receipt,) = bench.books.receipts(paid.id, paid.number)
    signed = json.loads(receipt.signed)
    payload = signed["payload"]
    money = bench.desk.ledger.money(paid.id)
    payment = money.payment(paid.number) if money else None
    assert payment is not None
    assert (payload["payment"], payload["refund"]) == (payment.transaction, receipt.transaction)
    assert payload["amount"] == "10000" and payload["reason"] == "service_defective"
    assert payload["contract"] == "sha256:" + "ab" * 32 and payload["payer"] == SEEKER.lower()
    assert recover_digest(refund_digest(payload), bytes.fromhex(signed["signature"][2:])) == WORKER


def test_a_second_payment_that_landed_goes_back(bench: Bench) -> None:
    """Of two payments that both landed one bought the result and the other returns."""
    desk = bench.desk
    first = desk.claim()
    desk.seal(first)
    desk.facilitator.plan = [POOR]
    desk.settler.settle(first.id)  # refused: the result waits for another payment
    second = desk.claim(first.ref, first.id)
    desk.seal(second)
    desk.settler.settle(first.id)
    assert desk.state(second) == "settled"
    landed = desk.chain.settle(first.authorization, WORKER, 10_000)
    assert desk.settler.record_settled(first.id, first.number, landed, "chain") == "refund"
    bench.tick()
    assert bench.leg(first).reason == "duplicate_payment" and bench.back() == 10_000
    assert bench.books.get(LegName(LegKind.REFUND, second.id, second.number)) is None


def test_what_is_signed_is_in_the_journal_before_it_is_sent(bench: Bench) -> None:
    """When the facilitator hears of a leg, the books already have all that it was sent."""
    paid = bench.desk.owed()
    seen: list[Any] = []

    def look() -> None:
        leg = bench.leg(paid)
        seen.append((leg.state, json.loads(leg.payload), [line[1] for line in journal(bench.desk.client)]))

    bench.desk.facilitator.during = look
    bench.tick()
    ((state, payload, facts),) = seen
    assert state is LegState.SETTLING and payload == bench.desk.facilitator.sent[-1]
    assert facts[-3:] == ["refund_due", "refund_begun", "refund_call"]


# Outcomes


@pytest.mark.parametrize("word", ["drop", "moved", "pending", "unexpected_settle_error"])
def test_an_unknown_leg_is_sent_again_unchanged(bench: Bench, word: str) -> None:
    """After a lost answer the identical bytes go out again, or the chain ends it; it is paid once."""
    paid = bench.desk.owed()
    bench.desk.facilitator.sent.clear()
    bench.desk.facilitator.plan = [word]
    bench.tick()
    bench.tick_until_quiet()
    assert bench.leg(paid).state is LegState.SETTLED and bench.back() == 10_000
    assert all(each == bench.desk.facilitator.sent[0] for each in bench.desk.facilitator.sent)


def test_an_unknown_leg_waits_longer_each_time(bench: Bench) -> None:
    """The identical call is made again after 1, 2, 5, 10, 30 s, then each minute."""
    paid = bench.desk.owed()
    bench.desk.facilitator.sent.clear()
    bench.desk.facilitator.plan = ["drop"] * 8
    waits = []
    for _ in range(8):
        bench.tick()
        (score,) = [s for _, s in bench.desk.client.zrange("w:legs", 0, -1, withscores=True)]
        waits.append(round((score - bench.desk.now()) / 1e6))
        bench.desk.move_time(waits[-1] + 1)
    assert waits == [1, 2, 5, 10, 30, 60, 60, 60]
    assert bench.leg(paid).state is LegState.UNKNOWN
    assert len(bench.desk.facilitator.sent) == 8


def test_after_an_unknown_no_refusal_is_believed(bench: Bench) -> None:
    """A leg that may have moved is not given up for a code that would refuse a fresh one."""
    paid = bench.desk.owed()
    bench.desk.facilitator.plan = ["drop", POOR, POOR]
    bench.tick_until_quiet(most=3)
    assert bench.leg(paid).state is LegState.UNKNOWN
    bench.tick_until_quiet(seconds=70, most=2)
    assert bench.leg(paid).state is LegState.SETTLED and bench.back() == 10_000


def test_a_refused_leg_stays_due_and_can_be_tried_again(bench: Bench) -> None:
    """What a facilitator refuses for good is listed with its code; a retry has the same nonce."""
    paid = bench.desk.owed()
    bench.desk.facilitator.plan = [POOR]
    bench.tick()
    leg = bench.leg(paid)
    assert (leg.state, leg.code) == (LegState.REFUSED, POOR)
    assert bench.desk.sums["refunds_due"] == 10_000 and bench.books.open() == [leg.name]
    bench.desk.move_time(30 * 86_400)
    assert bench.tick() == []
    assert bench.books.retry(leg.name) == "due"
    bench.tick()
    nonces = {
        json.dumps(each["payload"]["authorization"]["nonce"]) for each in bench.desk.facilitator.sent[1:]
    }
    assert len(nonces) == 1 and bench.leg(paid).state is LegState.SETTLED and bench.back() == 10_000


def test_a_worker_without_money_pays_when_it_has_some(bench: Bench) -> None:
    """An empty wallet refuses the leg at the facilitator; nothing is lost and nothing is paid twice."""
    paid = bench.desk.owed()
    chain = bench.desk.chain
    chain.transfer(WORKER, "0x" + "99" * 20, 10_000)
    bench.tick()
    assert bench.leg(paid).code == POOR
    chain.mint(WORKER, 50_000)
    bench.books.retry(bench.leg(paid).name)
    bench.tick()
    assert bench.back() == 10_000 and chain.balance(WORKER) == 40_000


def test_the_next_ordinal_needs_the_chains_word(bench: Bench) -> None:
    """Past its end and shown not to have landed, a leg is signed anew under the next ordinal."""
    paid = bench.desk.owed()
    bench.desk.facilitator.plan = ["drop"] * 3
    bench.tick()
    bench.desk.move_time(LEG_WINDOW_S + 300)
    bench.tick()
    assert bench.leg(paid).ordinal == 0, "its end has passed, but a block may still come late"
    bench.desk.move_time(CONFIRM_US // 1_000_000)
    bench.desk.facilitator.plan = []
    bench.tick()
    assert (bench.leg(paid).ordinal, bench.leg(paid).state) == (1, LegState.DUE)
    bench.tick()
    sent = bench.desk.facilitator.sent[-1]["payload"]["authorization"]
    assert sent["nonce"] == leg_nonce(LegKind.REFUND, key_of(paid.nonce), 1)
    assert bench.leg(paid).state is LegState.SETTLED and bench.back() == 10_000


def test_a_cancelled_leg_is_signed_under_the_next_ordinal(bench: Bench) -> None:
    """A nonce that its own wallet cancelled can never land, which the chain shows at once."""
    paid = bench.desk.owed()
    bench.desk.facilitator.plan = ["drop"]
    bench.tick()
    bench.desk.chain.cancel((WORKER, leg_nonce(LegKind.REFUND, key_of(paid.nonce), 0)))
    bench.desk.move_time(5)
    bench.tick()
    bench.tick()
    assert bench.leg(paid).ordinal == 1 and bench.back() == 10_000


def test_an_unreachable_chain_proves_nothing(bench: Bench) -> None:
    """While the chain is away a leg past its end stays unknown under its ordinal."""
    paid = bench.desk.owed()
    bench.desk.facilitator.plan = ["drop"] * 9
    bench.tick()
    bench.desk.move_time(LEG_WINDOW_S + 1200)
    bench.desk.chain.down = True
    bench.runner.attend(bench.leg(paid).name)
    assert (bench.leg(paid).ordinal, bench.leg(paid).state) == (0, LegState.UNKNOWN)


def test_without_a_chain_a_used_nonce_is_presumed_ours(client: redis.Redis) -> None:
    """Our own re-send that meets a used nonce has landed; it is marked presumed and has no receipt."""
    bench = Bench(client, with_chain=False)
    paid = bench.desk.owed()
    bench.desk.facilitator.plan = ["moved", USED]
    bench.tick_until_quiet()
    leg = bench.leg(paid)
    assert (leg.state, leg.how, leg.receipt) == (LegState.SETTLED, "presumed", "")
    assert bench.back() == 10_000


def test_without_a_chain_a_first_used_nonce_is_not_believed(client: redis.Redis) -> None:
    """A used nonce in answer to a first call says nothing about our own transfer."""
    bench = Bench(client, with_chain=False)
    paid = bench.desk.owed()
    bench.desk.facilitator.plan = [USED]
    bench.tick()
    assert bench.leg(paid).state is LegState.UNKNOWN


def test_without_a_chain_only_the_operator_signs_anew(client: redis.Redis) -> None:
    """Long past its end an unknown leg is not signed by itself; the operator's retry keeps the nonce."""
    bench = Bench(client, with_chain=False)
    paid = bench.desk.owed()
    bench.desk.facilitator.plan = ["drop"] * 3
    bench.tick()
    leg = bench.leg(paid)
    assert bench.books.retry(leg.name) == "early"
    bench.desk.move_time(LEG_WINDOW_S + CONFIRM_US // 1_000_000 + 5)
    bench.tick()
    assert (bench.leg(paid).ordinal, bench.leg(paid).state) == (0, LegState.UNKNOWN)
    assert bench.books.retry(leg.name) == "due"
    bench.desk.facilitator.plan = []
    bench.tick()
    assert bench.leg(paid).state is LegState.SETTLED and bench.back() == 10_000
    nonces = {each["payload"]["authorization"]["nonce"] for each in bench.desk.facilitator.sent[1:]}
    assert len(nonces) == 1


def test_a_retry_of_a_leg_that_is_not_refused_changes_nothing(bench: Bench) -> None:
    """Due and settled legs need no retry."""
    paid = bench.desk.owed()
    assert bench.books.retry(bench.leg(paid).name) == "gone"
    bench.tick()
    assert bench.books.retry(bench.leg(paid).name) == "gone"
    assert bench.leg(paid).state is LegState.SETTLED


def test_a_payment_on_another_network_is_not_refunded_on_this_one(bench: Bench) -> None:
    """The worker moved to another network: the old payment's refund is listed, not paid in another coin."""
    paid = bench.desk.owed()
    bench.runner = bench.make(network=BASE)
    bench.tick()
    assert (bench.leg(paid).state, bench.leg(paid).code) == (LegState.REFUSED, "paid_on_another_network")
    assert bench.back() == 0


# One call at a time


def test_nobody_else_calls_while_a_call_is_open(bench: Bench) -> None:
    """A second clock that sees the same leg leaves it alone, also past the first lease."""
    paid = bench.desk.owed()
    bench.desk.facilitator.sent.clear()
    other = bench.make()

    def meanwhile() -> None:
        bench.desk.facilitator.during = lambda: None
        for leg in other.due(bench.desk.now() + 2_000_000):
            other.attend(leg)
        other.attend(bench.leg(paid).name)

    bench.desk.facilitator.during = meanwhile
    bench.tick()
    assert len(bench.desk.facilitator.sent) == 1 and bench.back() == 10_000


def test_a_late_answer_is_written_by_whoever_has_it(bench: Bench) -> None:
    """A call that outlived its lease: another clock sent the same bytes, and the success is kept once."""
    paid = bench.desk.owed()
    other = bench.make()

    def stopped() -> None:
        bench.desk.facilitator.during = lambda: None
        bench.desk.move_time(60)  # this process was stopped, its lease lapsed
        other.attend(bench.leg(paid).name)

    bench.desk.facilitator.during = stopped
    bench.tick()
    assert bench.leg(paid).state is LegState.SETTLED and bench.back() == 10_000
    assert bench.desk.sums["refunds_paid"] == 10_000 and bench.desk.sums["refunds_due"] == 0
    settled = [line for line in journal(bench.desk.client) if line[1] == "refund_settled"]
    assert len(settled) == 1


def test_who_lost_the_leg_before_sending_does_not_send(bench: Bench) -> None:
    """A process that stood still between leave and journal finds its leave gone and sends nothing."""
    paid = bench.desk.owed()
    bench.desk.facilitator.sent.clear()
    slow = bench.make()
    other = bench.make()

    def point(name: str) -> None:
        if name == "before_leg_signed":
            bench.desk.move_time(60)
            other.attend(bench.leg(paid).name)

    slow.checkpoint = point
    slow.attend(bench.leg(paid).name)
    assert len(bench.desk.facilitator.sent) == 1 and bench.back() == 10_000


def test_a_leave_is_kept_while_it_is_renewed(bench: Bench) -> None:
    """A lease lasts five seconds from its last renewal, and only its holder can renew it."""
    name = bench.leg(bench.desk.owed()).name
    assert bench.books.begin(name, "one") is not None
    for _ in range(3):
        bench.desk.move_time(4)
        assert bench.books.renew(name, "one") and not bench.books.renew(name, "two")
        assert bench.books.begin(name, "two") is None
    bench.desk.move_time(6)
    assert bench.books.begin(name, "two") is not None
    assert not bench.books.renew(name, "one")


def test_only_the_holder_of_the_leave_journals_what_is_sent(bench: Bench) -> None:
    """What the first one signed is not kept once another has the leave, even before that one signed."""
    name = bench.leg(bench.desk.owed()).name
    bench.books.begin(name, "one")
    bench.desk.move_time(6)
    bench.books.begin(name, "two")
    assert not bench.books.signed(name, "one", "{}", "{}")
    assert bench.books.signed(name, "two", "{}", "{}")
    assert not bench.books.signed(name, "two", '{"other":1}', "{}"), "what was sent is never replaced"


def test_the_books_do_not_believe_a_refusal_after_an_unanswered_call(bench: Bench) -> None:
    """A leg whose call was begun and never answered is not refused, whoever says so."""
    name = bench.leg(bench.desk.owed()).name
    bench.books.begin(name, "one")
    bench.books.signed(name, "one", "{}", "{}")
    bench.desk.move_time(6)
    bench.books.begin(name, "two")
    assert bench.books.refused(name, POOR) == "unknown"
    found = bench.books.get(name)
    assert found is not None and found.state is LegState.SETTLING


def test_an_ordinal_is_given_up_once(bench: Bench) -> None:
    """Word of an ordinal that is over already, or of a refused leg, changes nothing."""
    paid = bench.desk.owed()
    bench.desk.facilitator.plan = ["drop"]
    bench.tick()
    name = bench.leg(paid).name
    assert bench.books.next_ordinal(name, 1) == "gone"
    assert bench.books.next_ordinal(name, 0) == "due"
    bench.books.begin(name, "one")
    assert bench.books.next_ordinal(name, 0) == "gone" and bench.leg(paid).ordinal == 1
    bench.books.refused(name, POOR)
    assert bench.books.next_ordinal(name, 1) == "gone" and bench.leg(paid).ordinal == 1


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
def test_a_leg_survives_the_end_of_its_process(
    client: redis.Redis, point: str, kind: str, with_chain: bool
) -> None:
    """Killed at any point and taken up by another process, a leg is paid exactly once."""
    rules = FeeRules(threshold=500, period_us=24 * HOUR_US)
    bench = Bench(client, with_chain=with_chain, rules=rules)
    if kind == "refund":
        bench.desk.owed()
        wallet, amount = SEEKER, 10_000
    else:
        bench.desk.paid(fee=700)
        wallet, amount = PLATFORM, 700
    bench.kill_at = point
    with pytest.raises(Killed):
        bench.tick()
    bench.tick_until_quiet()
    assert bench.back(wallet) == amount and bench.books.open() == []
    assert bench.desk.sums[f"{kind}s_due"] == 0 and bench.desk.sums[f"{kind}s_paid"] == amount


@pytest.mark.parametrize("first", POINTS)
@pytest.mark.parametrize("fault", ["drop", "moved"])
def test_two_crashes_and_a_lost_answer_pay_once(client: redis.Redis, first: str, fault: str) -> None:
    """A crash, a lost answer and another crash before the answer is written: still one transfer."""
    bench = Bench(client)
    bench.desk.owed()
    bench.desk.facilitator.plan = [fault]
    for point in (first, "after_leg_settle"):
        bench.kill_at = point
        with pytest.raises(Killed):
            for _ in range(10):
                bench.tick()
                bench.desk.move_time(10)
            raise Killed("the point was not met again, because nothing was left to do")
    bench.kill_at = ""
    bench.tick_until_quiet()
    assert bench.back() == 10_000 and bench.desk.sums["refunds_paid"] == 10_000


def test_a_crash_before_the_next_ordinal_does_not_skip_one(bench: Bench) -> None:
    """Killed between the chain's word and its record, the leg takes the next ordinal once."""
    paid = bench.desk.owed()
    bench.desk.facilitator.plan = ["drop"]
    bench.tick()
    bench.desk.move_time(LEG_WINDOW_S + CONFIRM_US // 1_000_000 + 5)
    bench.kill_at = "before_leg_again"
    with pytest.raises(Killed):
        bench.tick()
    bench.tick_until_quiet()
    assert bench.leg(paid).ordinal == 1 and bench.back() == 10_000


def test_the_store_forgot_that_a_refund_was_paid(bench: Bench) -> None:
    """Rolled back to before the settlement, the same nonce is signed again and the chain knows it."""
    paid = bench.desk.owed()
    before = {key: bench.desk.client.dump(key) for key in bench.desk.client.keys("*")}
    bench.tick()
    bench.desk.client.flushall()
    for key, blob in before.items():
        bench.desk.client.restore(key, 0, blob)
    assert bench.leg(paid).state is LegState.DUE
    bench.tick_until_quiet()
    leg = bench.leg(paid)
    assert (leg.state, leg.how, leg.ordinal) == (LegState.SETTLED, "chain", 0) and bench.back() == 10_000


# Fees


def fee_name(number: int = 1, wallet: str = PLATFORM) -> LegName:
    return LegName(LegKind.FEE, wallet, number)


def test_small_fees_wait_for_each_other(bench: Bench) -> None:
    """Below the threshold fees gather and nothing is signed."""
    for _ in range(3):
        bench.desk.paid(fee=100)
    assert bench.tick() == []
    assert bench.books.all_gathered() == {PLATFORM: 300} and bench.back(PLATFORM) == 0


def test_the_threshold_makes_a_leg(client: redis.Redis) -> None:
    """Fees that reach the threshold become one leg over their sum."""
    bench = Bench(client, rules=FeeRules(threshold=300, period_us=24 * HOUR_US))
    bench.desk.paid(fee=200)
    assert bench.tick() == []
    bench.desk.paid(fee=100)
    assert bench.tick() == [fee_name()]
    assert bench.back(PLATFORM) == 300
    assert bench.desk.sums["fees_due"] == 0 and bench.desk.sums["fees_paid"] == 300
    assert bench.books.all_gathered() == {}


def test_the_period_makes_a_leg(bench: Bench) -> None:
    """A fee is not kept longer than the period, counted from the first that gathered."""
    bench.desk.paid(fee=100)
    bench.desk.move_time(23 * 3600)
    bench.desk.paid(fee=50)
    assert bench.tick() == []
    bench.desk.move_time(3600)
    assert bench.tick() == [fee_name()] and bench.back(PLATFORM) == 150


def test_later_fees_gather_for_the_next_leg(client: redis.Redis) -> None:
    """What comes after a leg was fixed does not change it, and goes into the next with its own nonce."""
    bench = Bench(client, rules=FeeRules(threshold=100, period_us=24 * HOUR_US))
    bench.desk.paid(fee=100)
    bench.desk.facilitator.plan = ["drop"]
    assert bench.tick() == [fee_name(1)]
    bench.desk.paid(fee=60)
    bench.desk.paid(fee=70)
    assert fee_name(2) in bench.tick()
    bench.tick_until_quiet()
    amounts = [leg.amount for leg in bench.books.fee_legs(PLATFORM)]
    assert amounts == [100, 130] and bench.back(PLATFORM) == 230
    wanted = {leg_nonce(LegKind.FEE, fee_subject(BASE_SEPOLIA, PLATFORM, n), 0) for n in ("1", "2")}
    sent = {each["payload"]["authorization"]["nonce"] for each in bench.desk.facilitator.sent}
    assert wanted <= sent


def test_a_contract_without_a_fee_makes_no_leg(bench: Bench) -> None:
    """A fee that rounds to 0 units is nothing to pay."""
    bench.desk.paid(fee=0)
    bench.desk.move_time(48 * 3600)
    assert bench.tick() == [] and bench.books.open() == [] and bench.desk.sums.get("fees_due", 0) == 0


def test_each_wallet_has_its_own_legs(client: redis.Redis) -> None:
    """Fees of two platforms do not mix."""
    other = "0x" + "ab" * 20
    bench = Bench(client, rules=FeeRules(threshold=10, period_us=HOUR_US))
    bench.desk.paid(fee=30)
    bench.desk.paid(fee=40, fee_wallet=other)
    bench.tick()
    assert (bench.back(PLATFORM), bench.back(other)) == (30, 40)


def test_two_clocks_fix_one_leg(client: redis.Redis) -> None:
    """Ripe fees that two clocks see become one leg."""
    bench = Bench(client, rules=FeeRules(threshold=10, period_us=HOUR_US))
    bench.desk.paid(fee=30)
    rules = (10, HOUR_US)
    assert bench.books.fix(PLATFORM, *rules) == fee_name()
    assert bench.books.fix(PLATFORM, *rules) is None
    assert len(bench.books.fee_legs(PLATFORM)) == 1


def test_a_crash_while_fees_are_fixed_loses_none(client: redis.Redis) -> None:
    """Killed before the leg is made, the fees still gather."""
    bench = Bench(client, rules=FeeRules(threshold=10, period_us=HOUR_US))
    bench.desk.paid(fee=30)
    bench.kill_at = "before_fix"
    with pytest.raises(Killed):
        bench.tick()
    assert bench.books.all_gathered() == {PLATFORM: 30}
    bench.tick_until_quiet()
    assert bench.back(PLATFORM) == 30


@pytest.mark.parametrize("wallet", [WORKER.lower(), "0xnot-an-address"])
def test_a_fee_that_cannot_be_sent_is_listed(client: redis.Redis, wallet: str) -> None:
    """A fee to ourselves or to no address is refused before it is signed, and stays due."""
    bench = Bench(client, rules=FeeRules(threshold=10, period_us=HOUR_US))
    bench.desk.paid(fee=30, fee_wallet=wallet)
    bench.tick()
    leg = bench.books.get(fee_name(wallet=wallet))
    assert leg is not None and (leg.state, leg.code) == (LegState.REFUSED, "leg_cannot_be_signed")
    assert bench.desk.sums["fees_due"] == 30 and bench.tick() == []


def test_a_forgotten_fee_leg_is_not_paid_with_another_amount(client: redis.Redis) -> None:
    """The store forgot a paid leg and made it anew over more fees: the spent nonce stops it."""
    bench = Bench(client, rules=FeeRules(threshold=100, period_us=HOUR_US))
    bench.desk.paid(fee=100)
    before = {key: client.dump(key) for key in client.keys("*")}
    bench.tick()
    client.flushall()
    for key, blob in before.items():
        client.restore(key, 0, blob)
    bench.desk.paid(fee=50)
    bench.tick()
    bench.desk.move_time(LEG_WINDOW_S + CONFIRM_US // 1_000_000 + 60)
    bench.tick_until_quiet()
    leg = bench.books.get(fee_name())
    assert leg is not None and (leg.state, leg.code) == (LegState.REFUSED, "nonce_paid_another_amount")
    assert bench.back(PLATFORM) == 100


def test_gathering_fees_do_not_hide_refunds(client: redis.Redis) -> None:
    """However many wallets gather fees, a refund that is due is found."""
    bench = Bench(client)
    bench.desk.paid(fee=1)
    (line,) = client.zrange("w:legs", 0, -1)
    old = {f"fee 0x{number:040x}": 1 for number in range(1500)}
    client.zadd("w:legs", old)
    client.hset("w:wallets", mapping={name: 1 for name in old})
    client.zrem("w:legs", line)
    paid = bench.desk.owed()
    rules = FeeRules(threshold=10**9, period_us=10**18)
    found = bench.make(rules=rules).due(bench.desk.now())
    assert found == [LegName(LegKind.REFUND, paid.id, paid.number)]


# The operator's refunds


def test_the_operator_refunds_what_was_delivered(bench: Bench) -> None:
    """A completed execution can be refunded in parts, each with its own leg, nonce and receipt."""
    paid = bench.desk.paid()
    for amount in (4_000, 6_000):
        assert bench.books.owe(paid.id, 1, amount, "quality_rejected") == ("due", str(amount))
        bench.tick()
    receipts = bench.books.receipts(paid.id, 1)
    assert [receipt.amount for receipt in receipts] == [4_000, 6_000]
    assert len({receipt.transaction for receipt in receipts}) == 2
    assert all(json.loads(receipt.signed)["payload"]["amount"] in ("4000", "6000") for receipt in receipts)
    assert bench.back() == 10_000
    assert bench.books.owe(paid.id, 1, None, "other") == ("above", "0")
    assert bench.books.owe(paid.id, 1, 1, "other") == ("above", "0")


def test_a_refund_of_no_amount_is_all_that_is_left(bench: Bench) -> None:
    """Without an amount the rest of the payment goes back."""
    paid = bench.desk.paid()
    bench.books.owe(paid.id, 1, 2_500, "other")
    bench.tick()
    assert bench.books.owe(paid.id, 1, None, "other") == ("due", "7500")


@pytest.mark.parametrize("amount", [0, -1, 10_001, 2**60])
def test_no_refund_is_above_what_was_settled(bench: Bench, amount: int) -> None:
    """Nothing, less than nothing and more than was paid are refused and change no sum."""
    paid = bench.desk.paid()
    sums = bench.desk.sums
    assert bench.books.owe(paid.id, 1, amount, "other") == ("above", "10000")
    assert bench.desk.sums == sums and bench.books.open() == []


def test_one_refund_of_a_payment_at_a_time(bench: Bench) -> None:
    """While a leg is under way no second one is made, and a failed execution's refund is such a leg."""
    paid = bench.desk.owed()
    assert bench.books.owe(paid.id, 1, None, "other") == ("under_way", "due")
    bench.tick()
    assert bench.books.owe(paid.id, 1, None, "other") == ("above", "0")


def test_only_ended_and_settled_is_refunded(bench: Bench) -> None:
    """Work under way, unpaid work and unknown executions have nothing to give back."""
    running = bench.desk.claim(mode="before_work")
    assert bench.books.owe(running.id, 1, None, "other") == ("open", "")
    assert bench.books.owe(running.id, 2, None, "other") == ("none", "")
    assert bench.books.owe("nobody", 1, None, "other") == ("none", "")
    bench.desk.store.cancel(running.id, b"{}", by="operator")
    assert bench.books.owe(running.id, 1, None, "other") == ("unsettled", "released")


def test_a_leg_above_what_was_settled_is_stopped(bench: Bench) -> None:
    """Books that were changed by hand do not make the worker pay more than it got."""
    paid = bench.desk.owed()
    bench.desk.client.hset(f"w:money:{paid.id}", "1 refund amount", 10_001)
    bench.tick()
    assert bench.leg(paid).code == "above_settled" and bench.back() == 0


def test_a_leg_of_an_unsettled_payment_is_stopped(bench: Bench) -> None:
    """Nothing goes back of a payment that the books no longer have as settled."""
    paid = bench.desk.owed()
    bench.desk.client.hset(f"w:money:{paid.id}", "1 state", "refused")
    bench.tick()
    assert bench.leg(paid).code == "above_settled" and bench.back() == 0


def test_a_leg_that_the_books_do_not_have_is_noted(bench: Bench) -> None:
    """A success for a leg that is gone is a fact all the same."""
    name = LegName(LegKind.REFUND, "gone", 1)
    assert bench.books.settled(name, "0x" + "ab" * 32, "facilitator", "") == "lost"
    assert journal(bench.desk.client)[-1][1] == "refund_settled_unknown_leg"


def test_the_chain_refuses_what_the_books_would_pay_twice(bench: Bench) -> None:
    """The derived nonce is the last guard: the same leg signed with another end cannot land again."""
    paid = bench.desk.owed()
    bench.tick()
    nonce = leg_nonce(LegKind.REFUND, key_of(paid.nonce), 0)
    with pytest.raises(NotAccepted):
        bench.desk.chain.settle((WORKER, nonce), SEEKER, 10_000)


def test_no_secret_is_in_the_books(bench: Bench) -> None:
    """Neither key nor contract id stands in any line of the journal."""
    paid = bench.desk.owed()
    bench.tick()
    text = json.dumps(journal(bench.desk.client))
    assert KEY[2:] not in text and "ctr_" not in text and paid.id in text
