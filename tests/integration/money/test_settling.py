"""Outcomes of a settle call and which are believed, step by step on an in-memory chain."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from tests.engine import in_thread
from tests.fakes.paid_door import BALANCE, Crash, Deal, PaidDoor, asked
from tests.fakes.paid_worker import SECOND
from tests.fakes.seeker import nonce_of
from worker.core.errors import Conflict
from worker.payments.evidence import look
from worker.payments.payment import Payment, PaymentState
from worker.store.outage import is_outage
from worker.x402.wire import decode_payment

BODY = {"do": "ok"}


def paid(paid_door: PaidDoor, deal: Deal, header: str | None = None) -> str:
    """Claims a payment, has it verified and returns the execution."""
    task = deal.execute(BODY, header or deal.payment())
    assert paid_door.step()
    return task.execution.id


def sealed(paid_door: PaidDoor, deal: Deal, header: str | None = None) -> str:
    """Finished work that awaits settlement."""
    id = paid(paid_door, deal, header)
    taken = paid_door.take(id)
    assert taken is not None and paid_door.seal(taken) == "settling"
    return id


def payment(paid_door: PaidDoor, id: str, number: int | None = None) -> Payment:
    found = paid_door.money(id).payment(number)
    assert found is not None
    return found


def test_one_line_says_how_a_payment_settled(paid_door: PaidDoor) -> None:
    """It has the transaction and how long the facilitator took."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    with capture_logs() as lines:
        paid_door.settle(id)
    (line,) = lines
    assert line["event"] == "payment.settled" and line["execution_id"] == id
    assert line["transaction"] == payment(paid_door, id).transaction and line["how"] == "facilitator"
    assert isinstance(line["settle_ms"], int)


def test_unanswered_settle_is_repeated_after_one_second(paid_door: PaidDoor) -> None:
    """After an unanswered call nobody calls for a second; then the identical payment is resent."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.facilitator.planned["settle"].append("away")
    paid_door.settle(id)
    assert payment(paid_door, id).state is PaymentState.UNKNOWN
    for settler in (paid_door.web_settler, paid_door.clock_settler):
        settler.settle(id)
    assert len(paid_door.facilitator.settles) == 1, "called again at once"
    paid_door.jump(1)
    paid_door.tick()
    assert paid_door.facilitator.settles == [nonce_of(deal.payments[0])] * 2
    assert paid_door.execution(id).state == "completed" and deal.moved() == deal.price


def test_unknown_settlement_backs_off(paid_door: PaidDoor) -> None:
    """Unknown answers are followed up after 1, 2, 5, 10, 30 and then every 60 seconds."""
    id = sealed(paid_door, paid_door.deal())
    paid_door.facilitator.planned["settle"].extend(["away"] * 20)
    paid_door.settle(id)
    at = paid_door.now()
    moments = [at]
    for _ in range(200):
        paid_door.jump(1)
        before = len(paid_door.facilitator.settles)
        paid_door.tick()
        if len(paid_door.facilitator.settles) > before:
            moments.append(paid_door.now())
    pauses = [(b - a) / SECOND for a, b in zip(moments, moments[1:], strict=False)]
    # The test polls once a second and takes time itself.
    assert all(
        wanted <= pause < wanted + 2
        for wanted, pause in zip((1, 2, 5, 10, 30, 60, 60), pauses[:7], strict=True)
    ), pauses


def test_refusal_after_an_unknown_is_not_believed(paid_door: PaidDoor) -> None:
    """A refusal after an unanswered call is not believed: no 402 while the money may move."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.facilitator.planned["settle"].extend(["away", "no", "no"])
    paid_door.settle(id)
    for _ in range(2):
        paid_door.jump(3)
        paid_door.tick()
    assert payment(paid_door, id).state is PaymentState.UNKNOWN
    task = deal.execute(BODY, deal.payment())
    assert (task.execution.phase, task.paid_already) == ("settling", True)
    paid_door.jump(10)
    paid_door.tick()
    assert paid_door.execution(id).state == "completed" and deal.moved() == deal.price


def test_expired_authorization_is_given_up_by_the_chain(paid_door: PaidDoor) -> None:
    """Ten minutes after its end, an authorization found in no block is given up; another is accepted."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.facilitator.planned["settle"].extend(["away"] * 99)
    paid_door.settle(id)
    ends = payment(paid_door, id).valid_before_s
    paid_door.jump(ends - paid_door.now() // SECOND + 590)
    paid_door.tick()
    assert payment(paid_door, id).state is PaymentState.UNKNOWN
    paid_door.jump(70)
    paid_door.tick()
    assert (payment(paid_door, id).state, paid_door.execution(id).phase) == (
        PaymentState.REFUSED,
        "payment_due",
    )
    assert asked(lambda: deal.execute(BODY)).message == "authorization_cannot_land"


def test_cancelled_authorization_is_refused_by_the_chain(paid_door: PaidDoor) -> None:
    """A used nonce alone proves nothing; the payer's cancellation event ends the wait."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.chain.cancel((deal.wallet, nonce_of(deal.payments[0])))
    paid_door.settle(id)
    assert payment(paid_door, id).state is PaymentState.UNKNOWN, "the web process cannot look"
    paid_door.jump(1)
    paid_door.tick()
    assert paid_door.execution(id).phase == "payment_due" and deal.moved() == 0


@pytest.mark.parametrize("word", ["lost", "pending", "bare"])
def test_unclear_settlement_is_found_on_the_chain(paid_door: PaidDoor, word: str) -> None:
    """A transfer whose response was lost, pending or without a hash is settled by its events."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.facilitator.planned["settle"].append(word)
    paid_door.settle(id)
    assert payment(paid_door, id).state is PaymentState.UNKNOWN
    paid_door.jump(1)
    paid_door.tick()
    found = payment(paid_door, id)
    assert (found.state, found.how) == (PaymentState.SETTLED, "chain")
    assert paid_door.execution(id).state == "completed" and len(paid_door.facilitator.settles) == 1


def test_used_nonce_before_our_own_call_is_not_presumed(paid_door: PaidDoor) -> None:
    """A used nonce on the first call was used by somebody else; nothing is presumed."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.chain.cancel((deal.wallet, nonce_of(deal.payments[0])))
    blind = paid_door.new_settler(chain=None, presume=True)
    for _ in range(3):
        blind.settle(id)
        paid_door.jump(11)
    assert len(paid_door.facilitator.settles) == 3
    assert payment(paid_door, id).state is PaymentState.UNKNOWN


def test_used_nonce_after_our_own_call_is_presumed(paid_door: PaidDoor) -> None:
    """If an earlier call of ours may have landed, a used nonce on the next call settles, marked presumed."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    blind = paid_door.new_settler(chain=None, presume=True)
    paid_door.facilitator.planned["settle"].append("lost")
    blind.settle(id)
    paid_door.jump(1)
    blind.settle(id)
    found = payment(paid_door, id)
    assert (found.state, found.how, found.transaction) == (PaymentState.SETTLED, "presumed", "")
    assert paid_door.execution(id).state == "completed"


def test_web_process_never_presumes(paid_door: PaidDoor) -> None:
    """A web process, which has no node, leaves a used nonce to the clock."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.facilitator.planned["settle"].append("away")
    paid_door.settle(id)
    paid_door.chain.cancel((deal.wallet, nonce_of(deal.payments[0])))
    paid_door.jump(1)
    paid_door.settle(id)
    assert payment(paid_door, id).state is PaymentState.UNKNOWN
    paid_door.jump(3)
    paid_door.tick()
    assert paid_door.execution(id).phase == "payment_due", "delivered on a cancelled authorization"


def test_expired_settlement_lease_prevents_the_call(paid_door: PaidDoor) -> None:
    """A process frozen past its settlement lease does not call, so two calls never overlap."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.facilitator.planned["settle"].append("away")
    paid_door.settle(id)
    paid_door.jump(1)

    def frozen(*_: Any) -> None:
        paid_door.chain.asked = lambda: None
        paid_door.jump(6)
        paid_door.clock_settler.settle(id)
        time.sleep(1.8)

    paid_door.chain.asked = frozen
    paid_door.facilitator.planned["settle"].append("away")
    paid_door.clock_settler.settle(id)
    assert len(paid_door.facilitator.settles) == 2, "the frozen process called too"
    paid_door.jump(10)
    paid_door.tick()
    assert paid_door.execution(id).state == "completed" and deal.moved() == deal.price


def test_open_settle_call_excludes_others(paid_door: PaidDoor) -> None:
    """One process calls at a time; if it dies, its lease expires and the next continues."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    inside: list[int] = []

    def meanwhile() -> None:
        paid_door.facilitator.before_settle = lambda: None
        paid_door.clock_settler.settle(id)
        inside.append(len(paid_door.facilitator.settles))

    paid_door.facilitator.before_settle = meanwhile
    paid_door.crash_at = "after_settle"
    assert not paid_door.attempt(lambda: paid_door.settle(id))
    assert inside == [1]
    paid_door.jump(4)
    paid_door.tick()
    assert len(paid_door.facilitator.settles) == 1 and deal.moved() == deal.price
    paid_door.jump(2)
    paid_door.tick()
    assert payment(paid_door, id).how == "chain" and paid_door.execution(id).state == "completed"


def freeze_first_call(paid_door: PaidDoor, id: str, *planned: str) -> None:
    """Inside the first settle call its lease lapses, and another process calls and gets no response.

    `planned`: what the facilitator then answers to the first call.
    """

    def frozen() -> None:
        paid_door.facilitator.before_settle = lambda: None
        paid_door.jump(6)
        paid_door.facilitator.planned["settle"].append("away")
        paid_door.clock_settler.settle(id)
        assert payment(paid_door, id).state is PaymentState.UNKNOWN
        paid_door.facilitator.planned["settle"].extend(planned)

    paid_door.facilitator.before_settle = frozen


def test_settlement_success_is_recorded_without_the_lease(paid_door: PaidDoor) -> None:
    """A process frozen inside its call records the success it receives after resuming."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    freeze_first_call(paid_door, id)
    paid_door.settle(id)
    assert payment(paid_door, id).how == "facilitator" and paid_door.execution(id).state == "completed"


def test_late_refusal_is_not_believed(paid_door: PaidDoor) -> None:
    """A frozen process's refusal does not count if another call was made meanwhile."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    freeze_first_call(paid_door, id, "no")
    paid_door.settle(id)
    assert payment(paid_door, id).state is PaymentState.UNKNOWN
    assert paid_door.execution(id).phase == "settling"


def test_chain_is_queried_once_per_round(paid_door: PaidDoor) -> None:
    """Each round sends the node one query, however the unknown settlement is followed up."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.facilitator.planned["settle"].extend(["away"] * 3)
    for _ in range(3):
        asked_before = paid_door.chain.rounds
        paid_door.jump(61)
        paid_door.clock_settler.attend(id)
        assert paid_door.chain.rounds == asked_before + 1
    assert len(paid_door.facilitator.settles) == 3


def test_moved_but_refused_payment_is_found(paid_door: PaidDoor) -> None:
    """The facilitator moves the money but refuses: no second 402, and the result is released."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.facilitator.planned["settle"].append("denied")
    paid_door.settle(id)
    waits = deal.execute(BODY)
    assert (waits.execution.phase, payment(paid_door, id).state) == ("settling", PaymentState.UNKNOWN)
    paid_door.tick()
    assert paid_door.execution(id).state == "completed" and len(paid_door.money(id).payments) == 1
    assert payment(paid_door, id).how == "chain" and deal.moved() == deal.price
    assert len(paid_door.facilitator.settles) == 1


def test_refusal_needs_one_look_at_the_chain(paid_door: PaidDoor) -> None:
    """Nothing moved: the clock's look at the chain confirms it, and the next request gets another 402."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.facilitator.planned["settle"].append("no")
    paid_door.settle(id)
    assert paid_door.execution(id).phase == "settling"
    paid_door.settle(id)  # a copy of the request: nothing is resent
    paid_door.tick()
    assert paid_door.execution(id).phase == "payment_due" and len(paid_door.facilitator.settles) == 1
    assert asked(lambda: deal.execute(BODY)).message == BALANCE


@pytest.mark.parametrize("trouble", ["down", "behind"])
def test_refusal_waits_for_an_up_to_date_node(paid_door: PaidDoor, trouble: str) -> None:
    """An absent node, or one whose newest block is older than the refusal, proves nothing yet."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.chain.down = trouble == "down"
    paid_door.chain.asked = lambda: None
    paid_door.facilitator.planned["settle"].append("no")
    paid_door.settle(id)
    for _ in range(3):
        paid_door.clock_settler.attend(id)
        assert paid_door.execution(id).phase == "settling" and deal.execute(BODY).execution.id == id
        paid_door.parts.client.incrby(paid_door.parts.keys.test_clock, 61 * SECOND)
    paid_door.chain.down = False
    paid_door.chain.catch_up(paid_door.now())
    paid_door.clock_settler.attend(id)
    assert paid_door.execution(id).phase == "payment_due" and len(paid_door.facilitator.settles) == 1


def test_settlement_of_a_forgotten_payment_is_journaled(paid_door: PaidDoor) -> None:
    """If the store lost the record during the call, the journal still records the settlement."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.facilitator.before_settle = lambda: paid_door.parts.client.flushdb()
    paid_door.settle(id)
    lines: Any = paid_door.parts.client.lrange(paid_door.parts.keys.journal, 0, -1)
    hash = paid_door.chain.transfers_to(paid_door.pay_to, 0, paid_door.chain.head().block)[0].tx_hash
    assert [line.decode().split(" ")[1:] for line in lines] == [
        ["settled_unknown_payment", id, "1", "0", hash]
    ]
    paid_door.parts.client.flushdb()


@pytest.mark.parametrize("answer", ["settled", "no", "away"])
def test_unwritable_settlement_is_left_to_the_clock(paid_door: PaidDoor, answer: str) -> None:
    """A failing script is not retried: the call raises its error, and the clock completes the settlement."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    key, client = paid_door.parts.keys.money(id), paid_door.parts.client
    if answer != "settled":
        paid_door.facilitator.planned["settle"].append(answer)

    def spoil() -> None:
        client.rename(key, "aside")
        client.rpush(key, "of a wrong type")

    paid_door.facilitator.before_settle = spoil
    errors: list[redis.RedisError] = []

    def settle() -> None:
        try:
            paid_door.settle(id)
        except redis.ResponseError as error:
            errors.append(error)

    with in_thread(settle):
        pass
    assert len(errors) == 1 and not is_outage(errors[0])
    paid_door.facilitator.before_settle = lambda: None
    client.rename("aside", key)
    for _ in range(100):
        paid_door.jump(1)
        paid_door.tick()
    assert paid_door.execution(id).state == "completed"
    assert deal.moved() == deal.price, "charged once"


def test_late_first_payment_releases_the_second(paid_door: PaidDoor) -> None:
    """A payment believed refused that lands after all pays; the one claimed later is released uncharged."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.refuse(id)
    assert paid_door.execution(id).phase == "payment_due"
    second = deal.payment()
    deal.execute(BODY, second)
    hash = paid_door.chain.settle((deal.wallet, nonce_of(deal.payments[0])), paid_door.pay_to, deal.price)
    assert paid_door.clock_settler.record_settled(id, 1, hash, "chain") == "completed"
    paid_door.step()
    paid_door.jump(30)
    paid_door.tick()
    assert [each.state for each in paid_door.money(id).payments] == [
        PaymentState.SETTLED,
        PaymentState.RELEASED,
    ]
    assert paid_door.facilitator.settles.count(nonce_of(second)) == 0 and deal.moved() == deal.price


def test_second_landed_payment_is_refunded_as_duplicate(paid_door: PaidDoor) -> None:
    """If both land, the work is delivered once and the second payment is refunded as a duplicate."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.refuse(id)
    deal.execute(BODY, deal.payment())
    paid_door.step()
    paid_door.facilitator.planned["settle"].append("lost")
    paid_door.settle(id)
    assert payment(paid_door, id, 2).state is PaymentState.UNKNOWN
    hash = paid_door.chain.settle((deal.wallet, nonce_of(deal.payments[0])), paid_door.pay_to, deal.price)
    paid_door.clock_settler.record_settled(id, 1, hash, "chain")
    assert paid_door.execution(id).state == "completed"
    paid_door.jump(2)
    paid_door.tick()
    first, second = paid_door.money(id).payments
    assert (first.state, first.refund) == (PaymentState.SETTLED, "")
    assert (second.state, second.refund, second.refund_amount) == (PaymentState.SETTLED, "due", deal.price)
    assert paid_door.kinds(id)[-1] == "execution.completed", "something was said after the end"


def test_later_payment_events_stay_out_of_an_ended_log(paid_door: PaidDoor) -> None:
    """A second payment that ends unknown after the first landed is followed up without log events."""
    deal = paid_door.deal()
    id = sealed(paid_door, deal)
    paid_door.refuse(id)
    deal.execute(BODY, deal.payment())
    paid_door.step()

    def lands() -> None:
        paid_door.facilitator.before_settle = lambda: None
        hash = paid_door.chain.settle((deal.wallet, nonce_of(deal.payments[0])), paid_door.pay_to, deal.price)
        assert paid_door.clock_settler.record_settled(id, 1, hash, "chain") == "completed"

    paid_door.facilitator.before_settle = lands
    paid_door.facilitator.planned["settle"].append("lost")
    paid_door.settle(id)
    assert payment(paid_door, id, 2).state is PaymentState.UNKNOWN
    assert paid_door.kinds(id)[-1] == "execution.completed"
    paid_door.jump(2)
    paid_door.tick()
    assert payment(paid_door, id, 2).refund == "due" and paid_door.kinds(id)[-1] == "execution.completed"


def test_late_first_payment_releases_the_claimed_second(paid_door: PaidDoor) -> None:
    """Under before_work a late landing starts the work; the payment claimed after it is released."""
    deal = paid_door.deal("early")
    id = paid(paid_door, deal)
    paid_door.refuse(id)
    deal.execute(BODY, deal.payment())
    hash = paid_door.chain.settle((deal.wallet, nonce_of(deal.payments[0])), paid_door.pay_to, deal.price)
    assert paid_door.clock_settler.record_settled(id, 1, hash, "chain") == "working"
    assert payment(paid_door, id, 2).state is PaymentState.RELEASED
    paid_door.jump(30)
    assert paid_door.parts.ledger.due(paid_door.now()) == [], "the clock still asks about it"


def test_refused_second_payment_does_not_stop_started_work(paid_door: PaidDoor) -> None:
    """Under before_work a late landing starts the work; the other payment's refusal does not stop it."""
    deal = paid_door.deal("early")
    id = paid(paid_door, deal)
    paid_door.refuse(id)
    assert paid_door.execution(id).phase == "offered"
    deal.execute(BODY, deal.payment())
    paid_door.step()

    def lands() -> None:
        paid_door.facilitator.before_settle = lambda: None
        hash = paid_door.chain.settle((deal.wallet, nonce_of(deal.payments[0])), paid_door.pay_to, deal.price)
        assert paid_door.clock_settler.record_settled(id, 1, hash, "chain") == "working"

    paid_door.facilitator.before_settle = lands
    paid_door.refuse(id)
    assert paid_door.execution(id).phase == "working"
    taken = paid_door.take(id)
    assert taken is not None and paid_door.seal(taken) == "ok"
    assert paid_door.execution(id).state == "completed" and deal.moved() == deal.price


def test_transfer_older_than_the_contract_is_not_taken(paid_door: PaidDoor) -> None:
    """A transfer older than the contract does not count as its payment, even for a clock that sees it."""
    first = paid_door.deal()
    header = first.payment()
    paid_door.chain.settle((first.wallet, nonce_of(header)), paid_door.pay_to, first.price)
    paid_door.jump(60)
    second = Deal(paid_door, first.key, paid_door.deal(key=first.key).document)
    task = second.execute(BODY, header)
    paid_door.step()
    assert paid_door.execution(task.execution.id).phase == "verifying", "the web process cannot tell"
    paid_door.jump(2)
    paid_door.tick()
    assert paid_door.execution(task.execution.id).phase == "offered"
    assert asked(lambda: second.execute(BODY, header)).code == "PAYMENT_INVALID"


def test_forgotten_payment_is_recognised_on_the_chain(paid_door: PaidDoor) -> None:
    """A transfer younger than the contract, made by this authorization, pays for it."""
    deal = paid_door.deal()
    header = deal.payment()
    paid_door.chain.settle((deal.wallet, nonce_of(header)), paid_door.pay_to, deal.price)
    id = paid(paid_door, deal, header)
    paid_door.jump(2)
    paid_door.tick()
    assert payment(paid_door, id).how == "chain"
    taken = paid_door.take(id)
    assert taken is not None and paid_door.seal(taken) == "ok"
    assert paid_door.facilitator.settles == [] and deal.moved() == deal.price


def test_ledger_payment_pays_only_its_own_contract(paid_door: PaidDoor) -> None:
    """Any payment ever claimed is 409 on another contract, settled or not."""
    first = paid_door.deal()
    second = Deal(paid_door, first.key, paid_door.deal(key=first.key).document)
    sealed(paid_door, first)
    with pytest.raises(Conflict) as caught:
        second.execute(BODY, first.payments[0])
    assert caught.value.code == "PAYMENT_USED"
    paid_door.tick()
    paid_door.jump(1)
    paid_door.tick()
    with pytest.raises(Conflict):
        second.execute(BODY, first.payments[0])
    assert second.id is None


def test_lookback_covers_the_longest_authorization(paid_door: PaidDoor) -> None:
    """The longest validity is two days; a transfer made at its start is still found at its end."""
    deal = paid_door.deal()
    day = 86_400
    header = deal.payment(valid_before=paid_door.now() // SECOND + 2 * day)
    paid_door.chain.settle((deal.wallet, nonce_of(header)), paid_door.pay_to, deal.price)
    paid_door.jump(2 * day + 700)
    verdict = look(paid_door.chain, decode_payment(header))
    assert verdict.transaction and not verdict.impossible


def test_crash_between_claim_and_verify_is_recovered(paid_door: PaidDoor) -> None:
    """The clock verifies an unverified claim, and the seeker pays once."""
    deal = paid_door.deal()
    paid_door.crash_at = "after_claim"
    with pytest.raises(Crash):
        deal.execute(BODY, deal.payment())
    id = deal.id
    assert id is not None and paid_door.execution(id).phase == "verifying"
    paid_door.jump(21)
    paid_door.tick()
    assert paid_door.execution(id).phase == "working"


def test_returned_settlement_lease_undoes_no_call(paid_door: PaidDoor) -> None:
    """Only a counted call is uncounted, however often no replica has the lease."""
    deal = paid_door.deal()
    id = deal.execute({"do": "ok"}, deal.payment()).execution.id
    paid_door.step()
    taken = paid_door.take(id)
    assert taken is not None and paid_door.seal(taken) == "settling"
    ledger = paid_door.parts.ledger
    assert ledger.settle_begin(id, "first") is not None
    assert ledger.settle_doubted(id, 1, "first", "insufficient_funds") == "unknown"
    for _ in range(2):
        lease = ledger.settle_begin(id, "look")
        assert lease is not None and lease.refusal
        ledger.settle_back(id, 1, "look")
        paid_door.jump(2)
    assert paid_door.money(id).payments[0].calls == 1
