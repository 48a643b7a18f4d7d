"""Work that is done and not paid, and work that another payment is wanted for before it may start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.shop import SECOND
from tests.fakes.till import Deal, Till, asked
from worker.errors import Conflict, Unavailable
from worker.executions.events import iso
from worker.payments.ledger import PaymentState
from worker.queue.runner import TOO_OLD

BODY, OTHER = {"do": "ok"}, {"do": "other"}
HOUR = 3600


def begun(till: Till, deal: Deal, body: Any = BODY) -> str:
    """A claimed and verified payment."""
    id = deal.execute(body, deal.payment()).execution.id
    till.step()
    return id


def unpaid(till: Till, deal: Deal) -> str:
    """Work that is sealed, and whose payment was refused at settlement."""
    id = begun(till, deal)
    taken = till.take(id)
    assert taken is not None and till.seal(taken) == "settling"
    till.facilitator.planned["settle"].append("no")
    till.hiring.settler.settle(id)
    assert till.execution(id).phase == "payment_due"
    return id


def settle(till: Till, id: str) -> None:
    while till.beside:
        till.step()
    till.hiring.settler.settle(id)


def test_a_new_payment_releases_the_same_result_without_a_second_run(till: Till) -> None:
    """Refused after the seal: 402 again, and the next payment delivers what was made."""
    deal = till.deal()
    id = unpaid(till, deal)
    made = till.output(id)
    assert asked(lambda: deal.execute(BODY)).message == "invalid_exact_evm_insufficient_balance"
    deal.execute(BODY, deal.payment())
    settle(till, id)
    assert till.execution(id).state == "completed" and till.output(id) == made
    assert till.kinds(id).count("execution.started") == 1 and deal.moved() == deal.price


def test_the_refused_payment_itself_is_not_tried_again(till: Till) -> None:
    """A copy of the payment that was refused is answered 402 with what was wrong with it."""
    deal = till.deal()
    id = unpaid(till, deal)
    required = asked(lambda: deal.execute(BODY, deal.payments[0]))
    assert required.code == "PAYMENT_SETTLEMENT_FAILED"
    assert required.details["reason"] == "invalid_exact_evm_insufficient_balance"
    assert required.response is not None and required.response["success"] is False
    assert len(till.money(id).payments) == 1


def test_sealed_work_can_be_paid_for_a_day_after_its_deadline(till: Till) -> None:
    """The deadline binds the work, which is done; the result waits at least 24 hours for its money."""
    deal = till.deal()
    till.jump(0)
    id = unpaid(till, deal)
    till.jump(23 * HOUR + 1800)
    till.tick()
    assert till.execution(id).phase == "payment_due"
    assert asked(lambda: deal.execute(BODY)).code == "PAYMENT_REQUIRED"
    deal.execute(BODY, deal.payment())
    settle(till, id)
    assert till.execution(id).state == "completed"


def test_after_that_day_the_result_is_gone_and_nobody_is_charged(till: Till) -> None:
    """An unpaid result ends as failed; a payment that comes then is not taken."""
    deal = till.deal()
    id = unpaid(till, deal)
    till.jump(24 * HOUR + 1)
    till.tick()
    execution = till.execution(id)
    assert (execution.state, execution.error["code"]) == ("failed", "PAYMENT_MISSING")
    task = deal.execute(BODY, deal.payment())
    assert task.execution.state == "failed" and deal.moved() == 0


def test_sealed_work_needs_no_room(till: Till) -> None:
    """A worker that takes no work still takes the money for work that it has done."""
    deal = till.deal()
    id = unpaid(till, deal)
    till.hiring.asking = replace(till.hiring.asking, queue_limit=0)
    till.parts.client.delete(till.parts.keys.takers("express"))
    deal.execute(BODY, deal.payment())
    settle(till, id)
    assert till.execution(id).state == "completed"


def test_sealed_work_can_be_paid_by_a_wallet_that_used_up_its_budget(till: Till) -> None:
    """The budget bounds unpaid work, never payments for work that is done."""
    deal = till.deal()
    ids = [unpaid(till, each) for each in [deal, *(till.deal(key=deal.key) for _ in range(4))]]
    with pytest.raises(Unavailable) as caught:
        more = till.deal(key=deal.key)
        more.execute(BODY, more.payment())
    assert caught.value.code == "UNPAID_WORK_LIMIT"
    deal.execute(BODY, deal.payment())
    settle(till, ids[0])
    assert till.execution(ids[0]).state == "completed"


def test_another_input_does_not_get_the_sealed_result(till: Till) -> None:
    """A sealed result belongs to its input; paying with another one is a conflict and costs nothing."""
    deal = till.deal()
    unpaid(till, deal)
    for header in (None, deal.payment()):
        with pytest.raises(Conflict):
            deal.execute(OTHER, header)
    assert deal.moved() == 0


def test_sealed_work_cannot_be_cancelled(till: Till) -> None:
    """After the seal only money decides."""
    deal = till.deal()
    id = unpaid(till, deal)
    with pytest.raises(Conflict):
        till.hiring.cancel(till.hiring.find(deal.document["contract_id"], id))
    assert till.execution(id).phase == "payment_due"


def test_nobody_is_asked_to_pay_while_no_clock_ticks(till: Till) -> None:
    """Without a clock there is 503 instead of 402: for a new contract, a sealed result, a parked task."""
    due, parked, fresh = till.deal(), till.deal(), till.deal()
    unpaid(till, due)
    id = begun(till, parked)
    taken = till.take(id)
    assert taken is not None
    till.park(taken, "retry")
    till.parts.client.incrby(till.parts.keys.test_clock, 2000 * SECOND)
    for deal in (due, parked, fresh):
        for header in (None, deal.payment()):
            with pytest.raises(Unavailable) as caught:
                deal.execute(BODY, header)
            assert caught.value.code == "WORKER_BUSY"
    assert till.money(id).payment().state is PaymentState.VERIFIED  # type: ignore[union-attr]
    till.alive()
    asked(lambda: fresh.execute(BODY))


def test_work_whose_authorization_would_end_first_is_not_started(till: Till) -> None:
    """Run limit and settle margin must fit what is left of the authorization when the work is taken."""
    deal = till.deal()
    id = deal.execute(BODY, deal.payment(valid_before=till.now() // SECOND + 200)).execution.id
    till.step()
    till.jump(200 - 20 - 60 + 1)
    assert till.take(id) is None
    assert till.execution(id).phase == "payment_due"
    assert till.money(id).payments[0].state is PaymentState.RELEASED
    assert till.kinds(id)[-1] == "payment.refused", "a request that waits must hear of it"
    deal.execute(BODY, deal.payment())
    till.step()
    assert till.take(id) is not None


def test_work_whose_authorization_just_fits_is_started(till: Till) -> None:
    """Up to the last moment at which it can still be settled, work is taken."""
    deal = till.deal()
    id = deal.execute(BODY, deal.payment(valid_before=till.now() // SECOND + 200)).execution.id
    till.step()
    till.jump(200 - 20 - 60 - 3)
    assert till.take(id) is not None


def test_a_free_retry_with_a_short_authorization_asks_for_another(till: Till) -> None:
    """What was never charged and cannot be any more is let go, and the seeker is asked again."""
    deal = till.deal()
    id = begun(till, deal)
    taken = till.take(id)
    assert taken is not None
    till.park(taken, "retry")
    till.jump(1000)
    with pytest.raises(Conflict):
        deal.execute(OTHER)
    assert till.execution(id).raw["parked"] == b"retry", "let go for somebody else's input"
    assert asked(lambda: deal.execute(BODY)).message == "the authorization has run out"
    assert till.money(id).payments[0].state is PaymentState.RELEASED
    deal.execute(OTHER, deal.payment())
    till.step()
    again = till.take(id)
    assert again is not None and again.input == b'{"do":"other"}'


def test_a_retry_that_nobody_asked_for_ends_at_the_deadline(till: Till) -> None:
    """A parked task fails when its time is over; before_work its payment is owed back."""
    deal = till.deal("early")
    id = begun(till, deal)
    till.hiring.settler.settle(id)
    taken = till.take(id)
    assert taken is not None and till.park(taken, "retry") == "parked"
    till.jump(6 * HOUR)
    till.tick()
    assert till.execution(id).error["code"] == "DEADLINE_MISSED"
    payment = till.money(id).payments[0]
    assert (payment.state, payment.refund, payment.refund_amount) == (
        PaymentState.SETTLED,
        "due",
        deal.price,
    )


@pytest.mark.parametrize("limit", ["deadline", "latency"])
def test_paid_before_work_and_too_late_is_owed_back(till: Till, limit: str) -> None:
    """A settlement that takes longer than deadline or promised latency allow ends in a refund."""
    if limit == "deadline":
        deal = till.deal("early", terms={"deadline": iso(till.now() + 150 * SECOND)})
    else:
        deal = till.deal("early", sla={"max_latency_ms": 149_000})
    id = begun(till, deal)
    till.facilitator.planned["settle"].append("lost")
    till.hiring.settler.settle(id)
    till.jump(151)
    till.clock.tick()
    assert till.execution(id).phase == "settling", "the settlement was cut off"
    till.tick()
    assert till.money(id).payments[0].state is PaymentState.SETTLED
    till.jump(2)
    till.tick()
    code = "DEADLINE_MISSED" if limit == "deadline" else "SLA_TIMEOUT"
    assert till.execution(id).error["code"] == code
    assert till.money(id).payments[0].refund == "due" and till.kinds(id).count("execution.started") == 0


def test_cancelling_before_the_start_is_free_in_both_modes(till: Till) -> None:
    """Not started: the authorization is let go; what was settled before the work is owed back."""
    after, before = till.deal(), till.deal("early")
    ids = begun(till, after), begun(till, before)
    till.hiring.settler.settle(ids[1])
    for deal, id in zip((after, before), ids, strict=True):
        till.hiring.cancel(till.hiring.find(deal.document["contract_id"], id))
    assert till.money(ids[0]).payments[0].state is PaymentState.RELEASED
    assert till.money(ids[1]).payments[0].refund == "due"


def test_cancelling_work_under_way_counts_as_unpaid_work(till: Till) -> None:
    """Work that its seeker orders and cancels costs nothing, and a wallet may do so five times an hour."""
    key = till.deal().key
    for _ in range(5):
        deal = till.deal(key=key)
        id = begun(till, deal)
        assert till.take(id) is not None
        till.hiring.cancel(till.hiring.find(deal.document["contract_id"], id))
        assert till.money(id).payments[0].state is PaymentState.RELEASED
    deal = till.deal(key=key)
    with pytest.raises(Unavailable) as caught:
        deal.execute(BODY, deal.payment())
    assert (caught.value.code, caught.value.details["limit"]) == ("UNPAID_WORK_LIMIT", "refused")
    other = till.deal()
    other.execute(BODY, other.payment())
    till.jump(HOUR + 1)
    deal.execute(BODY, deal.payment())


def test_cancelling_paid_work_under_way_keeps_the_payment_unless_the_work_had_failed(till: Till) -> None:
    """Under before_work a seeker who cancels running work has bought it; one whose attempt failed has not."""
    running, parked = till.deal("early"), till.deal("early")
    for deal in (running, parked):
        id = begun(till, deal)
        till.hiring.settler.settle(id)
        taken = till.take(id)
        assert taken is not None
        if deal is parked:
            till.park(taken, "retry")
        till.hiring.cancel(till.hiring.find(deal.document["contract_id"], id))
        assert till.execution(id).state == "cancelled"
        assert till.money(id).payments[0].refund == ("due" if deal is parked else "")


def test_a_wallet_has_only_so_much_open_at_once(till: Till) -> None:
    """Open payments of one wallet are bounded, by number and by the share of all places."""
    key = till.deal().key
    for _ in range(20):
        deal = till.deal(key=key)
        begun(till, deal)
    deal = till.deal(key=key)
    with pytest.raises(Unavailable) as caught:
        deal.execute(BODY, deal.payment())
    assert (caught.value.code, caught.value.details["limit"]) == ("UNPAID_WORK_LIMIT", "open")
    other = till.deal()
    other.execute(BODY, other.payment())


def test_failed_work_is_not_charged_after_it_and_owed_back_before_it(till: Till) -> None:
    """A failure lets the authorization go under after_work, and under before_work owes a refund."""
    after, before = till.deal(), till.deal("early")
    ids = begun(till, after), begun(till, before)
    till.hiring.settler.settle(ids[1])
    for id in ids:
        taken = till.take(id)
        assert taken is not None and till.seal(taken, "failed") == "ok"
    assert till.money(ids[0]).payments[0].state is PaymentState.RELEASED and after.moved() == 0
    refunded = till.money(ids[1]).payments[0]
    assert (refunded.state, refunded.refund, refunded.refund_amount) == (
        PaymentState.SETTLED,
        "due",
        before.price,
    )
    assert till.parts.ledger.sums()["refunds_due"] == before.price


def test_a_fee_is_owed_for_delivered_work_alone(till: Till) -> None:
    """One percent of what was settled for a result, once, and nothing for work that failed."""
    good, bad = till.deal("early"), till.deal("early")
    for deal, outcome in ((good, "completed"), (bad, "failed")):
        id = begun(till, deal)
        till.hiring.settler.settle(id)
        taken = till.take(id)
        assert taken is not None and till.seal(taken, outcome) == "ok"
        till.seal(taken, outcome)
    assert till.parts.ledger.sums()["fees_due"] == good.price // 100


def test_work_never_ends_by_age_while_it_settles(till: Till) -> None:
    """Neither deadline nor age touch sealed work whose money is on its way."""
    deal = till.deal()
    id = begun(till, deal)
    taken = till.take(id)
    assert taken is not None and till.seal(taken) == "settling"
    till.jump(6 * HOUR)
    for _ in range(2):
        what = till.parts.store.expire(id, age=TOO_OLD, latency=TOO_OLD, unpaid=TOO_OLD, deadline=TOO_OLD)
        assert what == "gone"
    assert till.execution(id).phase == "settling"
