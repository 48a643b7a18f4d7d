"""The lease of the settlement call comes with the seal, to the process whose request waits for short work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import redis

from tests.engine import in_thread
from tests.fakes.paid_door import Deal, PaidDoor
from tests.fakes.paid_worker import SECOND
from tests.fakes.seeker import nonce_of
from tests.waiting import eventually
from worker.core.ids import new_id
from worker.engine.record import Execution
from worker.hiring.task import Task
from worker.payments.ledger import Ledger
from worker.payments.payment import Payment, PaymentState

BODY = {"do": "ok"}
CHANNEL_CONFIRMED = 30


def payment(paid_door: PaidDoor, id: str) -> Payment:
    found = paid_door.money(id).payment()
    assert found is not None
    return found


def listens(paid_door: PaidDoor) -> None:
    """The web process has subscribed to its channel, as after its first request."""
    own = paid_door.parts.executions.own_channel
    with paid_door.parts.executions.decisions(new_id(), 1) as other:
        eventually(lambda: other.began < float("inf"), CHANNEL_CONFIRMED)
    assert dict(paid_door.parts.client.pubsub_numsub(own.channel))[own.channel.encode()] == 1


def begun(paid_door: PaidDoor, deal: Deal) -> tuple[Task, Execution]:
    """Paid work that a process has just taken, and the task as its request has it."""
    task = deal.execute(BODY, deal.payment())
    assert paid_door.step()
    taken = paid_door.take(task.id)
    assert taken is not None
    verified(paid_door, task.id, ago_us=0)
    return task, taken


def verified(paid_door: PaidDoor, id: str, *, ago_us: int) -> None:
    """While its request waited, the payment was verified so long ago, however slow this machine is."""
    facts = {"1 verified": paid_door.now() - ago_us, "1 waits": "1"}
    paid_door.parts.client.hset(paid_door.parts.keys.money(id), mapping=facts)


@contextmanager
def waiting(paid_door: PaidDoor, task: Task) -> Iterator[list[Task]]:
    """The request waits for its task in a thread; what it got is there when the block has ended."""
    answers: list[Task] = []
    until = time.monotonic() + 30
    with in_thread(lambda: answers.append(paid_door.parts.tasks.wait(task, until))):
        own = paid_door.parts.executions.own_channel
        eventually(lambda: task.id in own._requests, 30)
        yield answers
    assert answers


def steps_until(paid_door: PaidDoor, what: list[Any]) -> None:
    """Runs what the web process has to do until there is an answer."""

    def stepped() -> bool:
        paid_door.step()
        return bool(what)

    eventually(stepped, 30)


def settle_calls(paid_door: PaidDoor, id: str) -> list[str]:
    """What the journal says of its settlement."""
    lines = [
        line.decode().split(" ")
        for line in paid_door.parts.client.lrange(paid_door.parts.keys.journal, 0, -1)
    ]
    return [line[1] for line in lines if line[2] == id and line[1] in ("settling", "settle_call", "settled")]


def test_settles_without_another_script(paid_door: PaidDoor) -> None:
    """The seal journals the call, and the waiting request makes it at once; nobody else may."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    with waiting(paid_door, task) as answers:
        assert paid_door.seal(taken) == "settling"
        assert payment(paid_door, task.id).state is PaymentState.SETTLING
        assert settle_calls(paid_door, task.id) == ["settling", "settle_call"]
        assert paid_door.clock_settler.settle(task.id) is None
        steps_until(paid_door, answers)
    assert answers[0].execution.state == "completed" and answers[0].charged
    assert paid_door.facilitator.settles == [nonce_of(deal.payments[0])]
    assert settle_calls(paid_door, task.id) == ["settling", "settle_call", "settled"]
    assert payment(paid_door, task.id).calls == 1 and deal.moved() == deal.price


def test_long_work_is_settled_with_a_lease_of_its_own(paid_door: PaidDoor) -> None:
    """Its request may have gone meanwhile; if it still waits, it asks for the lease."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    verified(paid_door, task.id, ago_us=2 * SECOND)
    with waiting(paid_door, task) as answers:
        assert paid_door.seal(taken) == "settling"
        assert settle_calls(paid_door, task.id) == []
        steps_until(paid_door, answers)
    assert answers[0].charged and deal.moved() == deal.price


def test_nobody_listens(paid_door: PaidDoor) -> None:
    """A process that has died, or has lost its subscription, gets no lease: the clock settles as ever."""
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    assert paid_door.seal(taken) == "settling"
    assert payment(paid_door, task.id).state is PaymentState.VERIFIED
    paid_door.jump(1)
    paid_door.tick()
    assert paid_door.execution(task.id).state == "completed" and deal.moved() == deal.price


def test_request_that_does_not_wait_gets_none(paid_door: PaidDoor) -> None:
    """What no request waits for when its payment is verified is settled by the clock, as ever."""
    listens(paid_door)
    deal = paid_door.deal()
    task = deal.execute(BODY, deal.payment())
    assert paid_door.step()
    taken = paid_door.take(task.id)
    assert taken is not None and paid_door.seal(taken) == "settling"
    assert payment(paid_door, task.id).state is PaymentState.VERIFIED


def test_request_that_waits_says_so(paid_door: PaidDoor) -> None:
    """What records the verification tells that the request is there; what settles removes that again."""
    listens(paid_door)
    parts, deal = paid_door.parts, paid_door.deal()
    task = deal.execute(BODY, deal.payment())
    with waiting(paid_door, task) as answers:
        assert paid_door.step()
        assert parts.client.hget(parts.keys.money(task.id), "1 waits") == b"1"
        taken = paid_door.take(task.id)
        assert taken is not None and paid_door.seal(taken) == "settling"
        steps_until(paid_door, answers)
    assert not parts.client.hexists(parts.keys.money(task.id), "1 waits") and deal.moved() == deal.price


def test_store_with_replicas_grants_none(paid_door: PaidDoor) -> None:
    """The lease must be on a replica before the call, and only who wrote it can wait for that."""
    listens(paid_door)
    parts, deal = paid_door.parts, paid_door.deal()
    task, taken = begun(paid_door, deal)
    parts.client.hset(parts.keys.life, "replica_at", paid_door.now())
    assert paid_door.seal(taken) == "settling"
    assert payment(paid_door, task.id).state is PaymentState.VERIFIED


def test_store_that_forbids_to_ask_who_listens(paid_door: PaidDoor) -> None:
    """The work is sealed as ever, and settled with a lease of its own."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    user = paid_door.parts.client.acl_whoami()
    paid_door.parts.client.execute_command("ACL", "SETUSER", user, "-pubsub")
    try:
        assert paid_door.seal(taken) == "settling"
    finally:
        paid_door.parts.client.execute_command("ACL", "SETUSER", user, "+pubsub")
    assert payment(paid_door, task.id).state is PaymentState.VERIFIED


def test_request_that_has_gone_gives_the_lease_back(paid_door: PaidDoor) -> None:
    """The clock settles at once, and its call counts as the first."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    assert paid_door.seal(taken) == "settling"
    assert payment(paid_door, task.id).state is PaymentState.SETTLING
    eventually(lambda: paid_door.beside, 30)
    assert paid_door.step()
    assert payment(paid_door, task.id).state is PaymentState.VERIFIED
    paid_door.tick()
    assert paid_door.execution(task.id).state == "completed" and deal.moved() == deal.price
    found = payment(paid_door, task.id)
    assert found.calls == 1 and found.how == "facilitator"


def test_lease_that_was_not_heard_of(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request finds its lease in the record, gives it back and settles; what it hears later is old."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    own, late = paid_door.parts.executions.own_channel, list[bytes]()
    hear = own.hear
    monkeypatch.setattr(own, "hear", late.append)
    paid_door.facilitator.before_settle = lambda: [hear(each) for each in late]
    with waiting(paid_door, task) as answers:
        assert paid_door.seal(taken) == "settling"
        steps_until(paid_door, answers)
    assert late and answers[0].charged
    found = payment(paid_door, task.id)
    assert len(paid_door.facilitator.settles) == found.calls == 1 and deal.moved() == deal.price


def test_lease_is_used_once(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a call whose outcome could not be recorded, neither record nor message lends it again."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    own, channel_says = paid_door.parts.executions.own_channel, list[bytes]()
    hear = own.hear

    def noted(message: bytes) -> None:
        channel_says.append(message)
        hear(message)

    monkeypatch.setattr(own, "hear", noted)

    def told_again() -> None:
        hear(f"{task.id} settle".encode())
        hear(channel_says[0])

    paid_door.facilitator.before_settle = told_again
    with waiting(paid_door, task) as answers:
        paid_door.crash_at = "before_settled"
        assert paid_door.seal(taken) == "settling"
        until = time.monotonic() + 1
        while time.monotonic() < until:
            paid_door.step()
            time.sleep(0.01)
        assert payment(paid_door, task.id).state is PaymentState.SETTLING
        assert len(paid_door.facilitator.settles) == 1
        paid_door.jump(2)
        paid_door.tick()
        steps_until(paid_door, answers)
    assert deal.moved() == deal.price and set(paid_door.facilitator.settles) == {nonce_of(deal.payments[0])}


def test_another_request_goes_on_when_a_lease_is_given_back(paid_door: PaidDoor) -> None:
    """One that waits elsewhere asked for the lease too early: it is told when it may."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    poll = paid_door.parts.tasks.find(deal.document["contract_id"], task.id)
    answers: list[Task] = []
    until = time.monotonic() + 30
    with in_thread(lambda: answers.append(paid_door.parts.tasks.wait(poll, until))):
        listeners, key = paid_door.parts.client.pubsub_numsub, paid_door.parts.keys.record(task.id)
        eventually(lambda: dict(listeners(key))[key.encode()] == 1, 30)
        verified(paid_door, task.id, ago_us=0)
        assert paid_door.seal(taken) == "settling"
        eventually(lambda: len(paid_door.beside) == 2, 30)
        steps_until(paid_door, answers)
    assert answers[0].charged and deal.moved() == deal.price


def test_refusal_after_an_outage_is_believed(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is away for a moment when the lease is given back, or renewed before the call."""
    listens(paid_door)
    for name in ("settle_back", "settle_renew"):
        deal, away = paid_door.deal(), [redis.ConnectionError("away")]
        task, taken = begun(paid_door, deal)
        assert task.calls is not None
        task.calls.began_after = float("-inf")
        work = getattr(Ledger, name)

        def once(*args: Any, work: Any = work, away: list[Exception] = away, **named: Any) -> Any:
            if away:
                raise away.pop()
            return work(*args, **named)

        monkeypatch.setattr(Ledger, name, once)
        paid_door.facilitator.planned["settle"].append("no")
        with waiting(paid_door, task) if name == "settle_renew" else nullcontext():
            assert paid_door.seal(taken) == "settling"
            eventually(lambda: paid_door.beside, 30)
            assert paid_door.step() and not away
            paid_door.tick()
            paid_door.tick()
            assert paid_door.execution(task.id).phase == "payment_due"
        assert deal.moved() == 0


def test_lost_renewal_opens_no_second_call(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again before the lease ends."""
    listens(paid_door)
    deal, away = paid_door.deal(), [redis.ConnectionError("away")] * 2
    task, taken = begun(paid_door, deal)
    renew = Ledger.settle_renew

    def lost(*args: Any) -> bool:
        if away:
            raise away.pop()
        return renew(*args)

    monkeypatch.setattr(Ledger, "settle_renew", lost)
    slowly_settled(paid_door, task, taken)
    assert not away and deal.moved() == deal.price


@pytest.mark.parametrize("point", ["before_settle_begin", "before_settle", "after_settle", "before_settled"])
def test_process_that_dies_with_the_lease(paid_door: PaidDoor, point: str) -> None:
    """The clock makes the identical call after two seconds, and the contract is charged once."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    with waiting(paid_door, task) as answers:
        paid_door.crash_at = point
        assert paid_door.seal(taken) == "settling"
        eventually(lambda: paid_door.beside, 30)
        assert not paid_door.step()
        paid_door.tick()
        assert payment(paid_door, task.id).state is PaymentState.SETTLING, "the lease still holds"
        paid_door.jump(2)
        paid_door.tick()
        assert paid_door.execution(task.id).state == "completed"
        steps_until(paid_door, answers)
    assert deal.moved() == deal.price and set(paid_door.facilitator.settles) <= {nonce_of(deal.payments[0])}


def test_lease_that_has_lapsed_makes_no_call(paid_door: PaidDoor) -> None:
    """A process that stood still asks the store before it calls, and the clock has settled meanwhile."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    assert task.calls is not None
    task.calls.began_after = time.monotonic() - 60
    with waiting(paid_door, task) as answers:
        assert paid_door.seal(taken) == "settling"
        eventually(lambda: paid_door.beside, 30)
        paid_door.jump(2)
        paid_door.tick()
        assert paid_door.execution(task.id).state == "completed"
        steps_until(paid_door, answers)
    assert len(paid_door.facilitator.settles) == 1 and deal.moved() == deal.price


def test_lease_of_unknown_age_is_renewed_first(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has verified the payment, so nothing says when its work was sealed; once is enough."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    assert task.calls is not None
    task.calls.began_after = float("-inf")
    held: list[float] = []
    renewed: list[str] = []
    renew = Ledger.settle_renew

    def counted(self: Ledger, id: str, number: int, token: str) -> bool:
        renewed.append(token)
        return renew(self, id, number, token)

    monkeypatch.setattr(Ledger, "settle_renew", counted)

    def lease_s() -> None:
        until = paid_door.parts.client.hget(paid_door.parts.keys.money(task.id), "1 lease")
        held.append((int(until or 0) - paid_door.now()) / SECOND)
        time.sleep(0.7)

    paid_door.facilitator.before_settle = lease_s
    with waiting(paid_door, task) as answers:
        assert paid_door.seal(taken) == "settling"
        steps_until(paid_door, answers)
    assert len(renewed) == 1 and 2 < held[0] <= 5 and deal.moved() == deal.price


def test_slow_facilitator_keeps_the_lease(paid_door: PaidDoor) -> None:
    """The first renewal comes before the short lease ends, so the clock makes no second call."""
    listens(paid_door)
    deal = paid_door.deal()
    slowly_settled(paid_door, *begun(paid_door, deal))
    assert deal.moved() == deal.price


def slowly_settled(paid_door: PaidDoor, task: Task, taken: Execution) -> None:
    """The facilitator takes its time, and the clock looks all the while."""
    calling, answered = threading.Event(), threading.Event()

    def slow() -> None:
        calling.set()
        assert answered.wait(30)

    paid_door.facilitator.before_settle = slow
    with waiting(paid_door, task) as answers:
        assert paid_door.seal(taken) == "settling"
        eventually(lambda: paid_door.beside, 30)
        with in_thread(paid_door.step):
            assert calling.wait(30)
            until = time.monotonic() + 3.5
            while time.monotonic() < until:
                assert paid_door.clock_settler.settle(task.id) is None
                time.sleep(0.05)
            answered.set()
        steps_until(paid_door, answers)
    assert len(paid_door.facilitator.settles) == payment(paid_door, task.id).calls == 1


def test_refusal_is_believed(paid_door: PaidDoor) -> None:
    """No earlier call has ended unknown, so the clock's look at the chain ends it."""
    listens(paid_door)
    deal = paid_door.deal()
    task, taken = begun(paid_door, deal)
    paid_door.facilitator.planned["settle"].append("no")
    with waiting(paid_door, task) as answers:
        assert paid_door.seal(taken) == "settling"
        eventually(lambda: paid_door.beside, 30)
        assert paid_door.step()
        paid_door.tick()
        steps_until(paid_door, answers)
    assert answers[0].execution.phase == "payment_due" and not answers[0].charged
    assert deal.moved() == 0
