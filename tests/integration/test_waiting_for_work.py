"""How a warm process waits for short work: the store grants the lease as soon as there is some."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from rq.exceptions import StopRequested

from tests.engine import LEASE, SECOND, Engine
from tests.waiting import eventually
from worker.core.settings import Settings
from worker.core.states import Lane, State
from worker.engine.record import Execution
from worker.local.valkey import EmbeddedStore
from worker.queue import express_lane, warm
from worker.queue.express_lane import ExpressLane
from worker.queue.status_page import AskedRun, StatusPage
from worker.queue.supervisor import requeue_lost
from worker.store.client import connect_waiting
from worker.store.commands import replies_together
from worker.store.link import Link


@pytest.fixture(name="asked")
def _asked() -> list[AskedRun]:
    """What the process told its parent."""
    return []


@pytest.fixture(name="waiting")
def _waiting(valkey: EmbeddedStore) -> Iterator[redis.Redis]:
    client = connect_waiting(Settings.load({"REDIS_URL": valkey.url}), role="express", wait=30.0)
    yield client
    client.close()


@pytest.fixture(name="lane")
def _lane(
    engine: Engine, waiting: redis.Redis, asked: list[AskedRun], monkeypatch: pytest.MonkeyPatch
) -> ExpressLane:
    monkeypatch.setattr(express_lane, "_POP_SECONDS", 0.05)
    return ExpressLane(
        waiting,
        engine.store,
        worker="w1",
        lease_us=LEASE,
        asks=lambda runs: asked.extend(AskedRun(*run) for run in runs),
    )


def short_work(engine: Engine) -> str:
    return engine.new(lane=Lane.EXPRESS)


def leased(lane: ExpressLane) -> Execution:
    found = lane.leased()
    assert found is not None
    return found[0]


def trips(engine: Engine) -> int:
    stats: Any = engine.client.info("stats")
    return int(stats["total_reads_processed"])


def lose_the_answer(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The store does what was sent; the process does not hear of it."""
    send = replies_together

    def cut(*parts: Any) -> Any:
        send(*parts)
        raise error

    monkeypatch.setattr(express_lane, "replies_together", cut)


def test_work_comes_with_its_lease_in_one_trip(engine: Engine, lane: ExpressLane) -> None:
    """The same record, indexes and events as if it had been taken by itself."""
    lane.take()
    id = short_work(engine)
    before = trips(engine)
    assert lane.take() == ""
    assert trips(engine) - before == 2  # this look at the figures is one
    alone = engine.take(short_work(engine))
    execution = leased(lane)
    assert (execution.id, execution.state, execution.worker) == (id, State.RUNNING, "w1")
    assert (execution.attempt, execution.fence) == (1, 1)
    assert execution.run_until - execution.started == alone.run_until - alone.started
    assert engine.kinds(id) == engine.kinds(alone.id)
    assert engine.client.zscore(engine.keys.leases, id) == execution.started + LEASE
    assert engine.client.zscore(engine.keys.queued, id) is None
    assert engine.client.llen(engine.keys.express) == 1


def test_work_that_comes_later_is_granted_when_it_comes(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease begins then, not when the process began to wait."""
    monkeypatch.setattr(lane, "_pop_seconds", 5)
    waiting = threading.Thread(target=lane.take)
    waiting.start()
    eventually(lambda: engine.client.info("clients")["blocked_clients"] == 1)
    engine.advance(2 * LEASE / SECOND)
    id = short_work(engine)
    waiting.join(5)
    execution = leased(lane)
    assert execution.id == id
    assert engine.client.zscore(engine.keys.leases, id) == execution.started + LEASE > engine.now()


def test_a_wait_without_work_leaves_nothing(engine: Engine, lane: ExpressLane) -> None:
    """One list at a time is kept of what a process was handed, for as long as a lease."""
    assert lane.take() == "" and not lane.has_lease
    short_work(engine)
    lane.take()
    leased(lane)
    [kept] = engine.client.keys(engine.keys.handed("*"))
    assert 0 < engine.client.pttl(kept) <= LEASE / 1_000
    assert lane.take() == "" and not lane.has_lease
    assert engine.client.keys(engine.keys.handed("*")) == []


def test_work_that_may_not_begin_is_passed_over(engine: Engine, lane: ExpressLane) -> None:
    cancelled, late, good = (short_work(engine) for _ in range(3))
    engine.cancel(cancelled)
    engine.client.hset(engine.keys.record(late), "ends_by", engine.now())
    for _ in range(2):
        assert lane.take() == "" and not lane.has_lease
    lane.take()
    assert leased(lane).id == good


def test_process_that_cannot_run_everything_sees_the_id_first(engine: Engine, lane: ExpressLane) -> None:
    """It passes on what only another tree can run."""
    lane.takes_any = lambda: False
    id = short_work(engine)
    assert lane.take() == id
    assert engine.get(id).state is State.PENDING


def test_a_last_attempt_is_leased_by_a_process_that_is_there(engine: Engine, lane: ExpressLane) -> None:
    """One that is frozen or cut off while it waits would lose it, and the work would fail unbegun."""
    id = engine.new(lane=Lane.EXPRESS, attempts=1)
    assert lane.take() == id and not lane.has_lease
    assert (engine.get(id).state, engine.get(id).attempt) == (State.PENDING, 0)
    assert engine.take(id).attempt == 1


def test_a_process_that_stood_still_runs_nothing(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease may have lapsed and be another process's; if not, it is handed back."""
    id = short_work(engine)
    send = replies_together
    standstill = lane._pop_seconds + lane._begins_within + 0.01

    def late(*parts: Any) -> Any:
        replies = send(*parts)
        time.sleep(standstill)
        return replies

    with monkeypatch.context() as frozen:
        frozen.setattr(express_lane, "replies_together", late)
        assert lane.take() == "" and not lane.has_lease
    assert engine.store.express_messages() == [id]
    lane.take()
    assert (leased(lane).id, engine.get(id).attempt) == (id, 1)


def test_a_lease_that_was_waited_for_holds_until_its_first_renewal(engine: Engine) -> None:
    """However long ago in the wait it was granted."""
    for lease_us in (1 * SECOND, LEASE, 60 * SECOND):
        lane = ExpressLane(engine.client, engine.store, worker="w1", lease_us=lease_us)
        assert lane._pop_seconds + lane._begins_within + lease_us / 3e6 < lease_us / 1e6


def test_parent_hands_back_what_a_dead_process_was_handed(
    engine: Engine, lane: ExpressLane, asked: list[AskedRun]
) -> None:
    """The parent knows only the session. It costs no attempt, and later it changes nothing."""
    id = short_work(engine)
    lane.take()
    requeue = requeue_lost(engine.store, push=lambda id: None)
    requeue(asked[-1])
    assert engine.get(id).state is State.PENDING
    assert engine.store.express_messages() == [id]
    assert engine.client.keys(engine.keys.handed("*")) == []
    again = engine.take(id)
    assert again.attempt == 1
    requeue(asked[-1])
    assert (engine.get(id).state, engine.get(id).fence) == (State.RUNNING, again.fence)


def test_parent_hands_back_nothing_of_a_wait_without_work(
    engine: Engine, lane: ExpressLane, asked: list[AskedRun]
) -> None:
    lane.take()
    requeue_lost(engine.store, push=lambda id: None)(asked[-1])
    assert engine.store.express_messages() == []


def test_a_run_that_has_begun_is_no_longer_waited_for() -> None:
    """The parent then hands back the run itself, which costs an attempt."""
    page = StatusPage()
    page.asks([("", "s1")])
    assert page.asked() == [AskedRun("", "s1")]
    page.running("x", 1, 60)
    assert page.asked() == []
    page.close()


@pytest.mark.parametrize("error", [redis.TimeoutError("no answer"), redis.ConnectionError("lost")])
@pytest.mark.parametrize("then", ["goes on", "leaves"])
def test_lease_whose_answer_is_lost_is_handed_back(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch, error: Exception, then: str
) -> None:
    """It would lapse and cost an attempt."""
    id = short_work(engine)
    with monkeypatch.context() as cut_off:
        lose_the_answer(cut_off, error)
        with pytest.raises(type(error)):
            lane.take()
    assert engine.get(id).state is State.RUNNING and not lane.has_lease
    if then == "leaves":
        lane.give_back()
        assert engine.store.express_messages() == [id]
    lane.take()
    execution = leased(lane)
    assert (execution.id, execution.attempt, execution.fence) == (id, 1, 2)


def test_process_that_is_told_to_stop_while_it_waits_keeps_no_lease(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal may come when the store has granted it already."""
    id = short_work(engine)
    lose_the_answer(monkeypatch, StopRequested())
    leaving: Any = SimpleNamespace(
        asked=False, worn=False, relieved=False, takes_ahead=lambda: 8, patience=0.0
    )
    presence: Any = SimpleNamespace(sign=lambda: None)
    with pytest.raises(StopRequested):
        warm.express(lane, engine.runner(), presence, leaving)
    assert engine.store.express_messages() == [id]
    assert engine.take(id).attempt == 1


def test_a_connection_left_in_the_middle_is_not_used_again(
    engine: Engine, lane: ExpressLane, waiting: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a wait that was broken off must not be taken for another one's."""

    class Stopped(Exception):
        pass

    def stop(*args: Any, **options: Any) -> Any:
        raise Stopped

    with monkeypatch.context() as signalled:
        signalled.setattr(Link, "_read", stop)
        with pytest.raises(Stopped):
            lane.take()
    assert waiting.ping()
    id = short_work(engine)
    lane.take()
    assert leased(lane).id == id


def test_a_store_without_the_script_grants_all_the_same(engine: Engine, lane: ExpressLane) -> None:
    id = short_work(engine)
    engine.client.script_flush()
    lane.take()
    assert leased(lane).id == id


def test_work_whose_record_cannot_be_read_costs_an_attempt(engine: Engine, lane: ExpressLane) -> None:
    """Its lease lapses, so that it ends at last; the process goes on with other work."""
    spoiled = short_work(engine)
    engine.client.hset(engine.keys.record(spoiled), "inputs_used", "many")
    other = short_work(engine)
    lane.take()
    assert not lane.has_lease and not lane._unsure
    lane.take()
    assert leased(lane).id == other
    assert engine.client.hget(engine.keys.record(spoiled), "state") == b"running"
