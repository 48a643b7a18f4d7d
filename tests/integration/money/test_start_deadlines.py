"""An attempt starts only if it can still settle in time; its start script decides."""

from __future__ import annotations

import pytest

from tests.fakes.paid_door import Deal, PaidDoor, asked
from tests.fakes.paid_worker import SECOND
from worker.core.errors import Problem
from worker.engine.events import iso
from worker.engine.record import Execution
from worker.payments.payment import PaymentState

BODY = {"do": "ok"}
# An attempt of these capabilities may take 20 s, and its settlement another minute.
RUN, MARGIN = 20, 60


def ending_in(paid_door: PaidDoor, seconds: int, capability: str = "echo", **changes: object) -> Deal:
    """A contract that was signed some time ago."""
    before = 600
    deadline = iso(paid_door.now() + (before + seconds) * SECOND)
    deal = paid_door.deal(capability, terms={"deadline": deadline}, **changes)
    paid_door.jump(before)
    return deal


def verified(paid_door: PaidDoor, deal: Deal) -> str:
    id = deal.execute(BODY, deal.payment()).execution.id
    paid_door.step()
    return id


def ended_late(paid_door: PaidDoor, deal: Deal, id: str) -> Execution:
    """Ends with the next tick, with the deadline error, uncharged."""
    paid_door.tick()
    execution = paid_door.execution(id)
    assert (execution.state, execution.error["code"]) == ("failed", "DEADLINE_MISSED")
    assert paid_door.money(id).payments[0].state is PaymentState.RELEASED and deal.moved() == 0
    return execution


def test_paid_work_starts_when_offered_in_time(paid_door: PaidDoor) -> None:
    """Work paid immediately starts whatever the deadline: every offer can be accepted."""
    for seconds in (RUN + MARGIN + 5, RUN + MARGIN + 60, 3600):
        id = verified(paid_door, ending_in(paid_door, seconds))
        taken = paid_door.take(id)
        assert taken is not None and paid_door.seal(taken) == "settling"


def test_not_offered_when_it_could_not_settle_before_the_deadline(paid_door: PaidDoor) -> None:
    """The same calculation refuses the request before payment."""
    with pytest.raises(Problem) as caught:
        ending_in(paid_door, RUN + MARGIN - 1).execute(BODY)
    assert (caught.value.status, caught.value.code) == (409, "DEADLINE_TOO_SOON")


def test_attempt_that_could_not_settle_in_time_is_not_started(paid_door: PaidDoor) -> None:
    """Work that waited too long is not run, charged or counted; its end is not delayed."""
    deal = ending_in(paid_door, RUN + MARGIN + 30)
    id = verified(paid_door, deal)
    paid_door.jump(40)
    assert paid_door.take(id) is None and paid_door.take(id) is None
    ended_late(paid_door, deal, id)
    assert "execution.started" not in paid_door.kinds(id)
    assert not paid_door.parts.client.hexists(paid_door.parts.keys.wallets, f"runs {deal.wallet}")
    assert asked(lambda: paid_door.deal(key=deal.key).execute(BODY)).status == 402


def test_second_attempt_must_settle_in_time_too(paid_door: PaidDoor) -> None:
    """The first attempt was in time; after its process died no time is left for another."""
    deal = ending_in(paid_door, RUN + MARGIN + 30)
    id = verified(paid_door, deal)
    taken = paid_door.take(id)
    assert taken is not None
    paid_door.lose(taken)
    paid_door.jump(40)
    assert paid_door.take(id) is None
    ended_late(paid_door, deal, id)
    assert paid_door.kinds(id).count("execution.started") == 1


def test_expiring_authorization_waits_for_another_payment(paid_door: PaidDoor) -> None:
    """If the authorization expires before the deadline, the work waits for another payment."""
    deal = ending_in(paid_door, 3600)
    header = deal.payment(valid_before=paid_door.now() // SECOND + RUN + MARGIN + 30)
    id = deal.execute(BODY, header).execution.id
    paid_door.step()
    paid_door.jump(40)
    assert paid_door.take(id) is None
    assert (paid_door.execution(id).state, paid_door.execution(id).phase) == ("pending", "payment_due")
    assert asked(lambda: deal.execute(BODY)).status == 402


def test_promised_latency_shortens_the_run(paid_door: PaidDoor) -> None:
    """A run with a promised latency after the payment needs no more time because it waited."""
    for sla, begins in (({}, False), ({"max_latency_ms": RUN * 1000}, True)):
        id = verified(paid_door, ending_in(paid_door, RUN + MARGIN + 5, sla=sla))
        paid_door.jump(10)
        taken = paid_door.take(id)
        assert (taken is not None) is begins
    assert taken is not None and taken.run_until == paid_door.stored(taken.id, "sla_by")


def test_prepaid_work_starts_until_its_deadline(paid_door: PaidDoor) -> None:
    """Settled work only has to meet its deadline, which also limits the run."""
    deal = ending_in(paid_door, RUN + MARGIN + 30, "early")
    id = verified(paid_door, deal)
    paid_door.settle(id)
    paid_door.jump(RUN + MARGIN + 20)
    taken = paid_door.take(id)
    assert taken is not None
    assert taken.run_until <= taken.ends_by
