"""What one settle call can come to, and what is believed of it: one step at a time, on a chain in memory."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fakes.seeker import nonce_of
from tests.fakes.shop import SECOND
from tests.fakes.till import Crash, Deal, Till, asked
from worker.errors import Conflict
from worker.payments.evidence import look
from worker.payments.ledger import Payment, PaymentState
from worker.payments.wire import decode_payment

BODY = {"do": "ok"}


def paid(till: Till, deal: Deal, header: str | None = None) -> str:
    """Claims a payment and has it verified; the execution."""
    task = deal.execute(BODY, header or deal.payment())
    assert till.step()
    return task.execution.id


def sealed(till: Till, deal: Deal, header: str | None = None) -> str:
    """Work that is done and waits for its settlement."""
    id = paid(till, deal, header)
    taken = till.take(id)
    assert taken is not None and till.seal(taken) == "settling"
    return id


def payment(till: Till, id: str, number: int | None = None) -> Payment:
    found = till.money(id).payment(number)
    assert found is not None
    return found


def test_a_call_is_repeated_on_time_and_not_before(till: Till) -> None:
    """After a call without an answer nobody calls for a second, then the identical payment is sent."""
    deal = till.deal()
    id = sealed(till, deal)
    till.facilitator.planned["settle"].append("away")
    till.hiring.settler.settle(id)
    assert payment(till, id).state is PaymentState.UNKNOWN
    for settler in (till.hiring.settler, till.clock_settler):
        settler.settle(id)
    assert len(till.facilitator.settles) == 1, "called again at once"
    till.jump(1)
    till.tick()
    assert till.facilitator.settles == [nonce_of(deal.payments[0])] * 2
    assert till.execution(id).state == "completed" and deal.moved() == deal.price


def test_the_pauses_grow(till: Till) -> None:
    """Unknown answers are followed after 1, 2, 5, 10, 30 and then every 60 seconds."""
    id = sealed(till, till.deal())
    till.facilitator.planned["settle"].extend(["away"] * 20)
    till.hiring.settler.settle(id)
    at = till.now()
    moments = [at]
    for _ in range(200):
        till.jump(1)
        before = len(till.facilitator.settles)
        till.tick()
        if len(till.facilitator.settles) > before:
            moments.append(till.now())
    pauses = [(b - a) / SECOND for a, b in zip(moments, moments[1:], strict=False)]
    # Looked at once a second, and the test itself takes time.
    assert all(
        wanted <= pause < wanted + 2
        for wanted, pause in zip((1, 2, 5, 10, 30, 60, 60), pauses[:7], strict=True)
    ), pauses


def test_after_one_unknown_only_success_or_the_chain_ends_it(till: Till) -> None:
    """A refusal that comes after an unanswered call is not believed: no 402 while the money may move."""
    deal = till.deal()
    id = sealed(till, deal)
    till.facilitator.planned["settle"].extend(["away", "no", "no"])
    till.hiring.settler.settle(id)
    for _ in range(2):
        till.jump(3)
        till.tick()
    assert payment(till, id).state is PaymentState.UNKNOWN
    task = deal.execute(BODY, deal.payment())
    assert (task.execution.phase, task.paid_already) == ("settling", True)
    till.jump(10)
    till.tick()
    assert till.execution(id).state == "completed" and deal.moved() == deal.price


def test_what_can_never_land_is_refused_by_the_chain(till: Till) -> None:
    """Ten minutes after its end an authorization that no block shows is given up, and another is welcome."""
    deal = till.deal()
    id = sealed(till, deal)
    till.facilitator.planned["settle"].extend(["away"] * 99)
    till.hiring.settler.settle(id)
    ends = payment(till, id).valid_before_s
    till.jump(ends - till.now() // SECOND + 590)
    till.tick()
    assert payment(till, id).state is PaymentState.UNKNOWN
    till.jump(70)
    till.tick()
    assert (payment(till, id).state, till.execution(id).phase) == (PaymentState.REFUSED, "payment_due")
    assert asked(lambda: deal.execute(BODY)).message == "authorization_cannot_land"


def test_a_cancelled_authorization_is_refused_by_the_chain(till: Till) -> None:
    """A used nonce proves nothing: the event that the payer cancelled it ends the wait."""
    deal = till.deal()
    id = sealed(till, deal)
    till.chain.cancel((deal.wallet, nonce_of(deal.payments[0])))
    till.hiring.settler.settle(id)
    assert payment(till, id).state is PaymentState.UNKNOWN, "the web process cannot look"
    till.jump(1)
    till.tick()
    assert till.execution(id).phase == "payment_due" and deal.moved() == 0


@pytest.mark.parametrize("word", ["lost", "pending", "bare"])
def test_what_landed_without_a_clear_answer_is_found_on_the_chain(till: Till, word: str) -> None:
    """Money that moved while the answer was lost, pending or without a hash is settled by its events."""
    deal = till.deal()
    id = sealed(till, deal)
    till.facilitator.planned["settle"].append(word)
    till.hiring.settler.settle(id)
    assert payment(till, id).state is PaymentState.UNKNOWN
    till.jump(1)
    till.tick()
    found = payment(till, id)
    assert (found.state, found.how) == (PaymentState.SETTLED, "chain")
    assert till.execution(id).state == "completed" and len(till.facilitator.settles) == 1


def test_without_a_node_a_used_nonce_counts_only_after_our_own_call(till: Till) -> None:
    """A first call that meets a used nonce says that somebody else used it; nothing is presumed."""
    deal = till.deal()
    id = sealed(till, deal)
    till.chain.cancel((deal.wallet, nonce_of(deal.payments[0])))
    blind = till.settler(chain=None, presume=True)
    for _ in range(3):
        blind.settle(id)
        till.jump(11)
    assert len(till.facilitator.settles) == 3
    assert payment(till, id).state is PaymentState.UNKNOWN


def test_without_a_node_our_own_resend_that_meets_a_used_nonce_is_presumed(till: Till) -> None:
    """When a call of ours may have landed, a used nonce in answer to the next counts, and is marked."""
    deal = till.deal()
    id = sealed(till, deal)
    blind = till.settler(chain=None, presume=True)
    till.facilitator.planned["settle"].append("lost")
    blind.settle(id)
    till.jump(1)
    blind.settle(id)
    found = payment(till, id)
    assert (found.state, found.how, found.transaction) == (PaymentState.SETTLED, "presumed", "")
    assert till.execution(id).state == "completed"


def test_nothing_is_presumed_where_the_clock_has_a_node(till: Till) -> None:
    """A web process, which has no node itself, leaves a used nonce to the clock."""
    deal = till.deal()
    id = sealed(till, deal)
    till.facilitator.planned["settle"].append("away")
    till.hiring.settler.settle(id)
    till.chain.cancel((deal.wallet, nonce_of(deal.payments[0])))
    till.jump(1)
    till.hiring.settler.settle(id)
    assert payment(till, id).state is PaymentState.UNKNOWN
    till.jump(3)
    till.tick()
    assert till.execution(id).phase == "payment_due", "delivered on a cancelled authorization"


def test_a_process_that_slept_past_its_leave_does_not_call(till: Till) -> None:
    """Two calls for one payment never run side by side, also when a process was frozen before its own."""
    deal = till.deal()
    id = sealed(till, deal)
    till.facilitator.planned["settle"].append("away")
    till.hiring.settler.settle(id)
    till.jump(1)

    def frozen(*_: Any) -> None:
        till.chain.asked = lambda: None
        till.jump(6)
        till.clock_settler.settle(id)
        time.sleep(1.8)

    till.chain.asked = frozen
    till.facilitator.planned["settle"].append("away")
    till.clock_settler.settle(id)
    assert len(till.facilitator.settles) == 2, "the frozen process called too"
    till.jump(10)
    till.tick()
    assert till.execution(id).state == "completed" and deal.moved() == deal.price


def test_a_call_that_is_open_keeps_everybody_else_waiting(till: Till) -> None:
    """While one process calls, no other does; when it died its leave lapses and the next one goes on."""
    deal = till.deal()
    id = sealed(till, deal)
    inside: list[int] = []

    def meanwhile() -> None:
        till.facilitator.before_settle = lambda: None
        till.clock_settler.settle(id)
        inside.append(len(till.facilitator.settles))

    till.facilitator.before_settle = meanwhile
    till.crash_at = "after_settle"
    assert not till.attempt(lambda: till.hiring.settler.settle(id))
    assert inside == [1]
    till.jump(4)
    till.tick()
    assert len(till.facilitator.settles) == 1 and deal.moved() == deal.price
    till.jump(2)
    till.tick()
    assert payment(till, id).how == "chain" and till.execution(id).state == "completed"


def test_an_answer_is_written_whoever_holds_the_leave_by_then(till: Till) -> None:
    """A process that was frozen inside its call writes down the success that it wakes up to."""
    deal = till.deal()
    id = sealed(till, deal)

    def frozen() -> None:
        """Inside the first call: its lease lapses, another process calls and gets no answer."""
        till.facilitator.before_settle = lambda: None
        till.jump(6)
        till.facilitator.planned["settle"].append("away")
        till.clock_settler.settle(id)
        assert payment(till, id).state is PaymentState.UNKNOWN

    till.facilitator.before_settle = frozen
    till.hiring.settler.settle(id)
    assert payment(till, id).how == "facilitator" and till.execution(id).state == "completed"


def test_a_late_refusal_is_not_believed(till: Till) -> None:
    """A refusal that a frozen process wakes up to counts for nothing when another call was made meanwhile."""
    deal = till.deal()
    id = sealed(till, deal)

    def frozen() -> None:
        till.facilitator.before_settle = lambda: None
        till.jump(6)
        till.facilitator.planned["settle"].append("away")
        till.clock_settler.settle(id)
        till.facilitator.planned["settle"].append("no")

    till.facilitator.before_settle = frozen
    till.hiring.settler.settle(id)
    assert payment(till, id).state is PaymentState.UNKNOWN
    assert till.execution(id).phase == "settling"


def test_a_settlement_of_a_forgotten_payment_is_journaled(till: Till) -> None:
    """When the store has lost the record during the call, the fact still goes into the journal."""
    deal = till.deal()
    id = sealed(till, deal)
    till.facilitator.before_settle = lambda: till.parts.client.flushdb()
    till.hiring.settler.settle(id)
    lines: Any = till.parts.client.lrange(till.parts.keys.journal, 0, -1)
    hash = till.chain.transfers_to(till.pay_to, 0, till.chain.head().block)[0].tx_hash
    assert [line.decode().split(" ")[1:] for line in lines] == [
        ["settled_unknown_payment", id, "1", "0", hash]
    ]
    till.parts.client.flushdb()


def test_an_earlier_payment_that_lands_late_frees_the_next(till: Till) -> None:
    """A payment believed refused that lands after all pays; the one claimed after it is let go, uncharged."""
    deal = till.deal()
    id = sealed(till, deal)
    till.facilitator.planned["settle"].append("no")
    till.hiring.settler.settle(id)
    assert till.execution(id).phase == "payment_due"
    second = deal.payment()
    deal.execute(BODY, second)
    hash = till.chain.settle((deal.wallet, nonce_of(deal.payments[0])), till.pay_to, deal.price)
    assert till.clock_settler.record_settled(id, 1, hash, "chain") == "completed"
    till.step()
    till.jump(30)
    till.tick()
    assert [each.state for each in till.money(id).payments] == [PaymentState.SETTLED, PaymentState.RELEASED]
    assert till.facilitator.settles.count(nonce_of(second)) == 0 and deal.moved() == deal.price


def test_a_second_payment_that_may_have_moved_is_followed_after_the_first_landed(till: Till) -> None:
    """With both landed the work is delivered once and the second payment is owed back as a duplicate."""
    deal = till.deal()
    id = sealed(till, deal)
    till.facilitator.planned["settle"].append("no")
    till.hiring.settler.settle(id)
    deal.execute(BODY, deal.payment())
    till.step()
    till.facilitator.planned["settle"].append("lost")
    till.hiring.settler.settle(id)
    assert payment(till, id, 2).state is PaymentState.UNKNOWN
    hash = till.chain.settle((deal.wallet, nonce_of(deal.payments[0])), till.pay_to, deal.price)
    till.clock_settler.record_settled(id, 1, hash, "chain")
    assert till.execution(id).state == "completed"
    till.jump(2)
    till.tick()
    first, second = till.money(id).payments
    assert (first.state, first.refund) == (PaymentState.SETTLED, "")
    assert (second.state, second.refund, second.refund_amount) == (PaymentState.SETTLED, "due", deal.price)
    assert till.kinds(id)[-1] == "execution.completed", "something was said after the end"


def test_nothing_is_said_of_a_payment_after_the_end(till: Till) -> None:
    """A second payment whose call ends unknown when the first has landed is followed in silence."""
    deal = till.deal()
    id = sealed(till, deal)
    till.facilitator.planned["settle"].append("no")
    till.hiring.settler.settle(id)
    deal.execute(BODY, deal.payment())
    till.step()

    def lands() -> None:
        till.facilitator.before_settle = lambda: None
        hash = till.chain.settle((deal.wallet, nonce_of(deal.payments[0])), till.pay_to, deal.price)
        assert till.clock_settler.record_settled(id, 1, hash, "chain") == "completed"

    till.facilitator.before_settle = lands
    till.facilitator.planned["settle"].append("lost")
    till.hiring.settler.settle(id)
    assert payment(till, id, 2).state is PaymentState.UNKNOWN
    assert till.kinds(id)[-1] == "execution.completed"
    till.jump(2)
    till.tick()
    assert payment(till, id, 2).refund == "due" and till.kinds(id)[-1] == "execution.completed"


def test_a_claim_is_let_go_when_an_earlier_payment_starts_the_work(till: Till) -> None:
    """Under before_work a late landing starts the work; the payment claimed after it is let go."""
    deal = till.deal("early")
    id = paid(till, deal)
    till.facilitator.planned["settle"].append("no")
    till.hiring.settler.settle(id)
    deal.execute(BODY, deal.payment())
    hash = till.chain.settle((deal.wallet, nonce_of(deal.payments[0])), till.pay_to, deal.price)
    assert till.clock_settler.record_settled(id, 1, hash, "chain") == "working"
    assert payment(till, id, 2).state is PaymentState.RELEASED
    till.jump(30)
    assert till.parts.ledger.due(till.now()) == [], "the clock still asks about it"


def test_a_second_payment_refused_after_the_first_landed_changes_nothing(till: Till) -> None:
    """Under before_work a late landing starts the work; the other payment's refusal does not stop it."""
    deal = till.deal("early")
    id = paid(till, deal)
    till.facilitator.planned["settle"].append("no")
    till.hiring.settler.settle(id)
    assert till.execution(id).phase == "offered"
    deal.execute(BODY, deal.payment())
    till.step()

    def lands() -> None:
        till.facilitator.before_settle = lambda: None
        hash = till.chain.settle((deal.wallet, nonce_of(deal.payments[0])), till.pay_to, deal.price)
        assert till.clock_settler.record_settled(id, 1, hash, "chain") == "working"

    till.facilitator.before_settle = lands
    till.facilitator.planned["settle"].append("no")
    till.hiring.settler.settle(id)
    assert till.execution(id).phase == "working"
    taken = till.take(id)
    assert taken is not None and till.seal(taken) == "ok"
    assert till.execution(id).state == "completed" and deal.moved() == deal.price


def test_an_old_payment_does_not_buy_a_new_contract(till: Till) -> None:
    """A transfer older than the contract is not taken for its payment, also by a clock that sees it."""
    first = till.deal()
    header = first.payment()
    till.chain.settle((first.wallet, nonce_of(header)), till.pay_to, first.price)
    till.jump(60)
    second = Deal(till, first.key, till.deal(key=first.key).document)
    task = second.execute(BODY, header)
    till.step()
    assert till.execution(task.execution.id).phase == "verifying", "the web process cannot tell"
    till.jump(2)
    till.tick()
    assert till.execution(task.execution.id).phase == "offered"
    assert asked(lambda: second.execute(BODY, header)).code == "PAYMENT_INVALID"


def test_a_payment_that_the_store_forgot_is_recognised(till: Till) -> None:
    """A transfer younger than the contract, made by this very authorization, pays for it."""
    deal = till.deal()
    header = deal.payment()
    till.chain.settle((deal.wallet, nonce_of(header)), till.pay_to, deal.price)
    id = paid(till, deal, header)
    till.jump(2)
    till.tick()
    assert payment(till, id).how == "chain"
    taken = till.take(id)
    assert taken is not None and till.seal(taken) == "ok"
    assert till.facilitator.settles == [] and deal.moved() == deal.price


def test_a_payment_in_the_ledger_pays_for_its_own_contract_only(till: Till) -> None:
    """Any payment that was ever claimed is 409 on another contract, settled or not."""
    first = till.deal()
    second = Deal(till, first.key, till.deal(key=first.key).document)
    sealed(till, first)
    with pytest.raises(Conflict) as caught:
        second.execute(BODY, first.payments[0])
    assert caught.value.code == "PAYMENT_USED"
    till.tick()
    till.jump(1)
    till.tick()
    with pytest.raises(Conflict):
        second.execute(BODY, first.payments[0])
    assert second.id is None


def test_the_look_back_covers_the_longest_authorization(till: Till) -> None:
    """Two days are the longest validity; a transfer made at its start is still found at its end."""
    deal = till.deal()
    day = 86_400
    header = deal.payment(valid_before=till.now() // SECOND + 2 * day)
    till.chain.settle((deal.wallet, nonce_of(header)), till.pay_to, deal.price)
    till.jump(2 * day + 700)
    verdict = look(till.chain, decode_payment(header))
    assert verdict.transaction and not verdict.impossible


def test_a_crash_between_claim_and_verify_is_made_good(till: Till) -> None:
    """A claim that nobody verified is verified by the clock, and the seeker pays once."""
    deal = till.deal()
    till.crash_at = "after_claim"
    with pytest.raises(Crash):
        deal.execute(BODY, deal.payment())
    id = deal.id
    assert id is not None and till.execution(id).phase == "verifying"
    till.jump(21)
    till.tick()
    assert till.execution(id).phase == "working"
