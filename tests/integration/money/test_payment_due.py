"""Sealed work that is unpaid, and work that needs another payment before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.paid_door import Deal, PaidDoor, asked
from tests.fakes.paid_worker import SECOND
from worker.core.errors import Conflict, Unavailable
from worker.engine.events import iso
from worker.payments.payment import PaymentState
from worker.queue.runner import TOO_OLD

BODY, OTHER = {"do": "ok"}, {"do": "other"}
HOUR = 3600


def begun(paid_door: PaidDoor, deal: Deal, body: Any = BODY) -> str:
    """A claimed and verified payment."""
    id = deal.execute(body, deal.payment()).execution.id
    paid_door.step()
    return id


def unpaid(paid_door: PaidDoor, deal: Deal) -> str:
    """Sealed work whose payment was refused at settlement."""
    id = begun(paid_door, deal)
    taken = paid_door.take(id)
    assert taken is not None and paid_door.seal(taken) == "settling"
    paid_door.refuse(id)
    assert paid_door.execution(id).phase == "payment_due"
    return id


def settle(paid_door: PaidDoor, id: str) -> None:
    while paid_door.beside:
        paid_door.step()
    paid_door.settle(id)


def test_new_payment_releases_the_sealed_result(paid_door: PaidDoor) -> None:
    """A refusal after the seal: 402 again, and the next payment releases the result."""
    deal = paid_door.deal()
    id = unpaid(paid_door, deal)
    output = paid_door.output(id)
    assert asked(lambda: deal.execute(BODY)).message == "invalid_exact_evm_insufficient_balance"
    deal.execute(BODY, deal.payment())
    settle(paid_door, id)
    assert paid_door.execution(id).state == "completed" and paid_door.output(id) == output
    assert paid_door.kinds(id).count("execution.started") == 1 and deal.moved() == deal.price


def test_refused_payment_is_not_tried_again(paid_door: PaidDoor) -> None:
    """A copy of the refused payment gets 402 with the reason of its refusal."""
    deal = paid_door.deal()
    id = unpaid(paid_door, deal)
    required = asked(lambda: deal.execute(BODY, deal.payments[0]))
    assert required.code == "PAYMENT_SETTLEMENT_FAILED"
    assert required.details["reason"] == "invalid_exact_evm_insufficient_balance"
    assert required.response is not None and required.response["success"] is False
    assert len(paid_door.money(id).payments) == 1


def test_sealed_work_can_be_paid_for_24_hours_after_its_deadline(paid_door: PaidDoor) -> None:
    """The deadline limits the work, which is done; the result stays payable for at least 24 hours."""
    deal = paid_door.deal()
    paid_door.jump(0)
    id = unpaid(paid_door, deal)
    paid_door.jump(23 * HOUR + 1800)
    paid_door.tick()
    assert paid_door.execution(id).phase == "payment_due"
    assert asked(lambda: deal.execute(BODY)).code == "PAYMENT_REQUIRED"
    deal.execute(BODY, deal.payment())
    settle(paid_door, id)
    assert paid_door.execution(id).state == "completed"


def test_unpaid_sealed_result_expires_uncharged(paid_door: PaidDoor) -> None:
    """An unpaid result ends as failed; a later payment is not claimed."""
    deal = paid_door.deal()
    id = unpaid(paid_door, deal)
    paid_door.jump(24 * HOUR + 1)
    paid_door.tick()
    execution = paid_door.execution(id)
    assert (execution.state, execution.error["code"]) == ("failed", "PAYMENT_MISSING")
    task = deal.execute(BODY, deal.payment())
    assert task.execution.state == "failed" and deal.moved() == 0


def test_sealed_work_can_be_paid_while_the_worker_is_full(paid_door: PaidDoor) -> None:
    """A worker at capacity still accepts payments for finished work."""
    deal = paid_door.deal()
    id = unpaid(paid_door, deal)
    paid_door.change_conditions(queue_limit=0)
    paid_door.parts.client.delete(paid_door.parts.keys.takers("express"))
    deal.execute(BODY, deal.payment())
    settle(paid_door, id)
    assert paid_door.execution(id).state == "completed"


def test_sealed_work_can_be_paid_beyond_the_budget(paid_door: PaidDoor) -> None:
    """The budget limits unpaid work, not payments for finished work."""
    deal = paid_door.deal()
    ids = [unpaid(paid_door, each) for each in [deal, *(paid_door.deal(key=deal.key) for _ in range(2))]]
    with pytest.raises(Unavailable) as caught:
        more = paid_door.deal(key=deal.key)
        more.execute(BODY, more.payment())
    assert caught.value.code == "UNPAID_WORK_LIMIT"
    deal.execute(BODY, deal.payment())
    settle(paid_door, ids[0])
    assert paid_door.execution(ids[0]).state == "completed"


def test_different_input_does_not_get_the_sealed_result(paid_door: PaidDoor) -> None:
    """A sealed result belongs to its input; a payment with another input is 409 and not charged."""
    deal = paid_door.deal()
    unpaid(paid_door, deal)
    for header in (None, deal.payment()):
        with pytest.raises(Conflict):
            deal.execute(OTHER, header)
    assert deal.moved() == 0


def test_sealed_work_cannot_be_cancelled(paid_door: PaidDoor) -> None:
    """After the seal only the settlement changes the execution."""
    deal = paid_door.deal()
    id = unpaid(paid_door, deal)
    with pytest.raises(Conflict):
        deal.cancel(id)
    assert paid_door.execution(id).phase == "payment_due"


def test_no_402_while_no_clock_ticks(paid_door: PaidDoor) -> None:
    """Without a clock, 503 instead of 402: for a new contract, a sealed result, a parked task."""
    due, parked, fresh = paid_door.deal(), paid_door.deal(), paid_door.deal()
    unpaid(paid_door, due)
    id = begun(paid_door, parked)
    taken = paid_door.take(id)
    assert taken is not None
    paid_door.park(taken, "retry")
    paid_door.parts.client.incrby(paid_door.parts.keys.test_clock, 2000 * SECOND)
    for deal in (due, parked, fresh):
        for header in (None, deal.payment()):
            with pytest.raises(Unavailable) as caught:
                deal.execute(BODY, header)
            assert caught.value.code == "WORKER_BUSY"
    assert paid_door.money(id).payment().state is PaymentState.VERIFIED  # type: ignore[union-attr]
    paid_door.alive()
    asked(lambda: fresh.execute(BODY))


def test_work_is_not_started_when_its_authorization_expires_first(paid_door: PaidDoor) -> None:
    """Run limit and settle margin must fit the authorization's remaining time when the work is taken."""
    deal = paid_door.deal()
    id = deal.execute(BODY, deal.payment(valid_before=paid_door.now() // SECOND + 200)).execution.id
    paid_door.step()
    paid_door.jump(200 - 20 - 60 + 1)
    assert paid_door.take(id) is None
    assert paid_door.execution(id).phase == "payment_due"
    assert paid_door.money(id).payments[0].state is PaymentState.RELEASED
    assert paid_door.kinds(id)[-1] == "payment.refused", "a request that waits must hear of it"
    deal.execute(BODY, deal.payment())
    paid_door.step()
    assert paid_door.take(id) is not None


def test_work_is_started_when_its_authorization_just_fits(paid_door: PaidDoor) -> None:
    """Work is taken until the last moment at which it can still be settled."""
    deal = paid_door.deal()
    id = deal.execute(BODY, deal.payment(valid_before=paid_door.now() // SECOND + 200)).execution.id
    paid_door.step()
    paid_door.jump(200 - 20 - 60 - 3)
    assert paid_door.take(id) is not None


def test_retry_with_an_expiring_authorization_asks_for_another(paid_door: PaidDoor) -> None:
    """An authorization that can no longer be settled is released, and the seeker gets another 402."""
    deal = paid_door.deal()
    id = begun(paid_door, deal)
    taken = paid_door.take(id)
    assert taken is not None
    paid_door.park(taken, "retry")
    paid_door.jump(1000)
    with pytest.raises(Conflict):
        deal.execute(OTHER)
    assert paid_door.execution(id).parked == "retry", "let go for somebody else's input"
    assert asked(lambda: deal.execute(BODY)).message == "the authorization has expired"
    assert paid_door.money(id).payments[0].state is PaymentState.RELEASED
    deal.execute(OTHER, deal.payment())
    paid_door.step()
    again = paid_door.take(id)
    assert again is not None and again.input == b'{"do":"other"}'


def test_unclaimed_retry_ends_at_the_deadline(paid_door: PaidDoor) -> None:
    """A parked task fails at its deadline; before_work its payment is refunded."""
    deal = paid_door.deal("early")
    id = begun(paid_door, deal)
    paid_door.settle(id)
    taken = paid_door.take(id)
    assert taken is not None and paid_door.park(taken, "retry") == "parked"
    paid_door.jump(6 * HOUR)
    paid_door.tick()
    assert paid_door.execution(id).error["code"] == "DEADLINE_MISSED"
    payment = paid_door.money(id).payments[0]
    assert (payment.state, payment.refund, payment.refund_amount) == (
        PaymentState.SETTLED,
        "due",
        deal.price,
    )


@pytest.mark.parametrize("limit", ["deadline", "latency"])
def test_late_prepaid_settlement_is_refunded(paid_door: PaidDoor, limit: str) -> None:
    """A settlement later than the deadline or the promised latency ends in a refund."""
    if limit == "deadline":
        deal = paid_door.deal("early", terms={"deadline": iso(paid_door.now() + 150 * SECOND)})
    else:
        deal = paid_door.deal("early", sla={"max_latency_ms": 149_000})
    id = begun(paid_door, deal)
    paid_door.facilitator.planned["settle"].append("lost")
    paid_door.settle(id)
    paid_door.jump(151)
    paid_door.clock.tick()
    assert paid_door.execution(id).phase == "settling", "the settlement was cut off"
    paid_door.tick()
    assert paid_door.money(id).payments[0].state is PaymentState.SETTLED
    paid_door.jump(2)
    paid_door.tick()
    code = "DEADLINE_MISSED" if limit == "deadline" else "SLA_TIMEOUT"
    assert paid_door.execution(id).error["code"] == code
    assert (
        paid_door.money(id).payments[0].refund == "due"
        and paid_door.kinds(id).count("execution.started") == 0
    )


def test_cancelling_before_the_start_is_free(paid_door: PaidDoor) -> None:
    """Before the start: the authorization is released; a payment settled before the work is refunded."""
    after, before = paid_door.deal(), paid_door.deal("early")
    ids = begun(paid_door, after), begun(paid_door, before)
    paid_door.settle(ids[1])
    for deal, id in zip((after, before), ids, strict=True):
        deal.cancel(id)
    assert paid_door.money(ids[0]).payments[0].state is PaymentState.RELEASED
    assert paid_door.money(ids[1]).payments[0].refund == "due"


def test_cancelled_running_work_counts_as_unpaid(paid_door: PaidDoor) -> None:
    """Cancelled running work costs nothing; a new wallet may cancel three times an hour."""
    key = paid_door.deal().key
    for _ in range(3):
        deal = paid_door.deal(key=key)
        id = begun(paid_door, deal)
        assert paid_door.take(id) is not None
        deal.cancel(id)
        assert paid_door.money(id).payments[0].state is PaymentState.RELEASED
    deal = paid_door.deal(key=key)
    with pytest.raises(Unavailable) as caught:
        deal.execute(BODY, deal.payment())
    assert (caught.value.code, caught.value.details["limit"]) == ("UNPAID_WORK_LIMIT", "uncharged")
    other = paid_door.deal()
    other.execute(BODY, other.payment())
    paid_door.jump(HOUR + 1)
    deal.execute(BODY, deal.payment())


def paid_and_running(paid_door: PaidDoor, *, park: bool = False) -> tuple[Deal, str]:
    """Prepaid work that is running, or has failed and waits for its free retry."""
    deal = paid_door.deal("early")
    id = begun(paid_door, deal)
    paid_door.settle(id)
    taken = paid_door.take(id)
    assert taken is not None
    if park:
        paid_door.park(taken, "retry")
    return deal, id


def test_cancelling_prepaid_work_requires_forfeit(paid_door: PaidDoor) -> None:
    """A cancel that forfeits money is refused, saying so; with `forfeit` the task ends unrefunded."""
    deal, id = paid_and_running(paid_door)
    before = paid_door.kinds(id)
    with pytest.raises(Conflict) as caught:
        deal.cancel(id)
    assert (caught.value.code, caught.value.charged) == ("CANCEL_FORFEITS_PAYMENT", True)
    assert "forfeit=true" in caught.value.advice
    assert (paid_door.execution(id).state, paid_door.kinds(id)) == ("running", before)
    deal.cancel(id, forfeit=True)
    assert paid_door.execution(id).state == "cancelled"
    assert paid_door.money(id).payments[0].refund == ""


def test_cancelling_failed_prepaid_work_is_refunded(paid_door: PaidDoor) -> None:
    """The attempt failed, so the payment is refunded whoever cancels."""
    deal, id = paid_and_running(paid_door, park=True)
    deal.cancel(id)
    assert paid_door.execution(id).state == "cancelled"
    assert paid_door.money(id).payments[0].refund == "due"


def test_cancelling_prepaid_work_that_never_began_is_refunded(paid_door: PaidDoor) -> None:
    """A process took its lease ahead, and left it when it was asked to stop."""
    deal, id = paid_and_running(paid_door)
    assert paid_door.parts.store.requeue(id, 1, "not_begun")[0] == "queued"
    deal.cancel(id)
    assert paid_door.execution(id).state == "cancelled"
    assert paid_door.money(id).payments[0].refund == "due"


def test_operator_cancel_owes_a_refund(paid_door: PaidDoor) -> None:
    """Paid work that the operator cancels is refunded to its payer."""
    _, id = paid_and_running(paid_door)
    paid_door.parts.executions.cancel(id)
    assert paid_door.execution(id).state == "cancelled"
    assert paid_door.money(id).payments[0].refund == "due"


def test_open_payments_per_wallet_are_limited(paid_door: PaidDoor) -> None:
    """Open payments of a wallet that has paid are limited by number and by share of capacity."""
    key = paid_door.deal().key
    id = begun(paid_door, paid_door.deal("early", key=key))
    paid_door.settle(id)
    for _ in range(20):
        deal = paid_door.deal(key=key)
        begun(paid_door, deal)
    deal = paid_door.deal(key=key)
    with pytest.raises(Unavailable) as caught:
        deal.execute(BODY, deal.payment())
    assert (caught.value.code, caught.value.details["limit"]) == ("UNPAID_WORK_LIMIT", "open")
    other = paid_door.deal()
    other.execute(BODY, other.payment())


def test_failed_work_is_uncharged_or_refunded(paid_door: PaidDoor) -> None:
    """A failure releases the authorization under after_work and owes a refund under before_work."""
    after, before = paid_door.deal(), paid_door.deal("early")
    ids = begun(paid_door, after), begun(paid_door, before)
    paid_door.settle(ids[1])
    for id in ids:
        taken = paid_door.take(id)
        assert taken is not None and paid_door.seal(taken, "failed") == "ok"
    assert paid_door.money(ids[0]).payments[0].state is PaymentState.RELEASED and after.moved() == 0
    refunded = paid_door.money(ids[1]).payments[0]
    assert (refunded.state, refunded.refund, refunded.refund_amount) == (
        PaymentState.SETTLED,
        "due",
        before.price,
    )
    assert paid_door.parts.ledger.sums()["refunds_due"] == before.price


def test_platform_fee_is_owed_only_for_delivered_work(paid_door: PaidDoor) -> None:
    """One percent of the amount settled for a result, once; nothing for failed work."""
    good, bad = paid_door.deal("early"), paid_door.deal("early")
    for deal, outcome in ((good, "completed"), (bad, "failed")):
        id = begun(paid_door, deal)
        paid_door.settle(id)
        taken = paid_door.take(id)
        assert taken is not None and paid_door.seal(taken, outcome) == "ok"
        paid_door.seal(taken, outcome)
    assert paid_door.parts.ledger.sums()["fees_due"] == good.price // 100


def test_settling_work_never_expires(paid_door: PaidDoor) -> None:
    """Neither deadline nor age affects sealed work whose settlement is open."""
    deal = paid_door.deal()
    id = begun(paid_door, deal)
    taken = paid_door.take(id)
    assert taken is not None and paid_door.seal(taken) == "settling"
    paid_door.jump(6 * HOUR)
    for _ in range(2):
        outcome = paid_door.parts.store.expire(
            id, age=TOO_OLD, latency=TOO_OLD, unpaid=TOO_OLD, deadline=TOO_OLD
        )
        assert outcome == "gone"
    assert paid_door.execution(id).phase == "settling"
