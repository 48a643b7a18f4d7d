"""How a warm process takes work from the express lane: alone, or with the seal of the run before."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from rq.exceptions import StopRequested

from tests.engine import ERROR, LEASE, SECOND, Engine
from tests.waiting import eventually
from worker.core.sockets import is_quiet
from worker.core.states import Lane, State
from worker.engine.answers import SealAnswer
from worker.engine.record import Execution
from worker.queue import warm
from worker.queue.express_lane import _HAND_SECONDS, _LOOK_EVERY, _SHORT_SECONDS, ExpressLane, _SentSeal
from worker.queue.lease_keeper import LeaseKeeper
from worker.queue.presence import Presence
from worker.queue.process_limits import ProcessLimits, ProcessWear
from worker.queue.status_page import MOST_ASKED, AskedRun, StatusPage
from worker.queue.supervisor import requeue_lost
from worker.store.connections import CurrentPrimary, StoreConnection
from worker.store.link import Begun
from worker.store.linked_client import LinkedClient
from worker.store.scripts import ScriptCall


def lane_of(engine: Engine, worker: str = "w1") -> ExpressLane:
    return ExpressLane(engine.client, engine.store, worker=worker, lease_us=LEASE)


@pytest.fixture(name="lane")
def _lane(engine: Engine) -> ExpressLane:
    return lane_of(engine)


def short_work(engine: Engine, count: int) -> list[str]:
    return [engine.new(lane=Lane.EXPRESS) for _ in range(count)]


def next_run(engine: Engine, lane: ExpressLane) -> Execution:
    """The next execution, under its lease."""
    id = "" if lane.has_lease else lane.take()
    if id:
        return engine.take(id)
    leased = lane.leased()
    assert leased is not None
    return leased[0]


def seal(engine: Engine, lane: ExpressLane, execution: Execution) -> SealAnswer | None:
    return engine.store.seal(
        execution.id, execution.fence, "completed", output=b"1", result=b"{}", error=b"", payload=b"{}",
        send=lane.seal,
    )  # fmt: skip


def seal_without_an_answer(
    engine: Engine, lane: ExpressLane, execution: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has the seal and the leases that it asks for; the process hears of neither."""
    send_each = engine.store.scripts.send_each

    def cut(*parts: Any) -> Any:
        send_each(*parts)
        raise redis.TimeoutError("no answer")

    with monkeypatch.context() as cut_off:
        cut_off.setattr(engine.store.scripts, "send_each", cut)
        with pytest.raises(redis.TimeoutError):
            seal(engine, lane, execution)


def run_next(engine: Engine, lane: ExpressLane) -> str:
    """Takes the next execution and seals its work; returns its id."""
    execution = next_run(engine, lane)
    assert seal(engine, lane, execution) in (SealAnswer.OK, None)
    return execution.id


def under_load(engine: Engine, lane: ExpressLane, left: int) -> list[str]:
    """Runs work once, so that a lease comes with its seal; returns the ids left, of which one is leased."""
    ids = short_work(engine, 1 + left)
    assert run_next(engine, lane) == ids[0]
    assert [lease.execution.id for lease in lane._hand] == ids[1:2]
    return ids[1:]


def trips(engine: Engine) -> int:
    stats: Any = engine.client.info("stats")
    return int(stats["total_reads_processed"])


def test_work_comes_in_order_with_fewer_round_trips(engine: Engine, lane: ExpressLane) -> None:
    """Once work waits, a run costs one trip: the seal that brings the lease of the next."""
    rest = under_load(engine, lane, 20)
    before = trips(engine)
    found = [run_next(engine, lane) for _ in rest]
    assert found == rest
    assert trips(engine) - before <= len(rest) + 1
    assert all(engine.get(id).state is State.COMPLETED for id in rest)
    assert all((engine.get(id).attempt, engine.get(id).fence) == (1, 1) for id in rest)
    assert engine.client.llen(engine.keys.express) == 0


def test_lease_that_comes_with_a_seal_is_like_any_other(engine: Engine, lane: ExpressLane) -> None:
    """The same record, indexes and event as if it had been taken alone."""
    [id] = under_load(engine, lane, 1)
    alone = engine.take(engine.new(lane=Lane.EXPRESS))
    leased = lane.leased()
    assert leased is not None
    execution, at = leased
    assert (execution.id, execution.state, execution.worker) == (id, State.RUNNING, "w1")
    assert execution.started <= at
    assert execution.run_until - execution.started == alone.run_until - alone.started
    assert engine.kinds(id) == engine.kinds(alone.id)
    assert engine.client.zscore(engine.keys.leases, id) == execution.started + LEASE
    assert engine.client.zscore(engine.keys.queued, id) is None


def test_two_processes_share_the_lane(engine: Engine, lane: ExpressLane) -> None:
    """Neither works on what the other has, and after a few collisions both get their leases with seals."""
    other = lane_of(engine, "w2")
    ids = short_work(engine, 80)
    running = [(each, next_run(engine, each)) for each in (lane, other)]
    done = []
    while running:
        each, execution = running.pop(0)
        if len(done) == 40:
            before = trips(engine)
        assert seal(engine, each, execution) in (SealAnswer.OK, None)
        done.append(execution.id)
        if each.has_lease or each._next or engine.client.llen(engine.keys.express):
            running.append((each, next_run(engine, each)))
    assert trips(engine) - before - 40 <= 40 * 1.4  # the loop looks at the lane's length each time
    assert sorted(done) == sorted(ids)
    assert all(engine.get(id).fence == 1 for id in ids)


def test_head_of_a_shared_lane_does_not_wait_for_a_long_run(engine: Engine, lane: ExpressLane) -> None:
    """A process that leaves the head to another one takes it itself after some runs."""
    head, *_ = under_load(engine, lane, 3 * _LOOK_EVERY)[1:]
    lane._place, lane._head_by = 1, float("inf")
    assert engine.store.express_messages()[0] == head
    done = [run_next(engine, lane) for _ in range(2 * _LOOK_EVERY)]
    assert head in done


def test_head_of_a_shared_lane_waits_for_one_run_at_most_where_runs_take_long(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes whose runs take about a second begin the work in its order, but for the run under way."""
    varies, now = random.Random(2), 0.0
    monkeypatch.setattr("worker.queue.express_lane.time.monotonic", lambda: now)
    ids = short_work(engine, 100)
    idle = [lane, lane_of(engine, "w2")]
    running: list[tuple[float, ExpressLane, Execution]] = []
    begun = []
    while idle or running:
        for each in idle:
            if each.has_lease or each._next or engine.client.llen(engine.keys.express):
                running.append((now + varies.uniform(0.95, 1.05), each, next_run(engine, each)))
                begun.append(running[-1][2].id)
        idle = []
        if running:
            running.sort(key=lambda run: run[0])
            now, each, execution = running.pop(0)
            assert seal(engine, each, execution) is SealAnswer.OK
            idle = [each]
    assert sorted(begun) == sorted(ids)
    assert max(begun.index(id) - place for place, id in enumerate(ids)) <= 1


def test_lease_is_not_taken_for_work_that_cannot_begin(engine: Engine, lane: ExpressLane) -> None:
    """Cancelled, expired and taken work is skipped, and another id comes with the seal."""
    ids = under_load(engine, lane, 6)
    execution = next_run(engine, lane)
    engine.cancel(ids[1])
    assert seal(engine, lane, execution) is SealAnswer.OK
    assert not lane.has_lease
    execution = next_run(engine, lane)
    assert execution.id == ids[2]
    engine.client.hset(engine.keys.record(ids[3]), "ends_by", engine.now())
    assert seal(engine, lane, execution) is SealAnswer.OK
    execution = next_run(engine, lane)
    assert execution.id == ids[4]
    engine.take(ids[5])
    assert seal(engine, lane, execution) is SealAnswer.OK
    assert not lane.has_lease
    assert engine.get(ids[1]).state is State.CANCELLED
    assert engine.kinds(ids[3]) == ["execution.created"]
    assert engine.get(ids[5]).fence == 1


@pytest.mark.parametrize("asked", ["before", "after"])
def test_process_that_is_asked_to_stop_keeps_no_lease(engine: Engine, lane: ExpressLane, asked: str) -> None:
    """Asked before the seal it takes none; asked after it, the lease goes back and costs no attempt."""
    ids = under_load(engine, lane, 3)
    execution = next_run(engine, lane)
    lane.takes_ahead = lambda: asked == "after"
    assert seal(engine, lane, execution) is SealAnswer.OK
    assert lane.has_lease is (asked == "after")
    lane.give_back()
    lane.give_back()
    assert engine.store.express_messages() == ids[1:]
    back = engine.get(ids[1])
    assert (back.state, back.first_started) == (State.PENDING, 0)
    assert engine.take(ids[1]).attempt == 1


def test_lease_handed_back_after_an_earlier_run_forgets_no_start(engine: Engine, lane: ExpressLane) -> None:
    """Its seeker may no longer cancel it and keep the payment."""
    id = engine.new(lane=Lane.EXPRESS)
    engine.take(id)
    engine.store.requeue(id, 1, "handed_back")
    began = engine.get(id).first_started
    engine.advance(1)
    again = engine.take(id)
    engine.store.requeue(id, again.fence, "not_begun")
    assert engine.get(id).first_started == began > 0
    assert engine.take(id).attempt == 1


def test_stop_request_between_two_runs_hands_the_lease_back(engine: Engine, lane: ExpressLane) -> None:
    """The signal may come at any point between two runs."""
    ids = under_load(engine, lane, 3)

    def asked_to_stop() -> None:
        raise StopRequested

    presence: Any = SimpleNamespace(sign=asked_to_stop)
    leaving: Any = SimpleNamespace(
        asked=False, worn=False, relieved=False, takes_ahead=lambda: MOST_ASKED, patience=0.0
    )
    with pytest.raises(StopRequested):
        warm.express(lane, engine.runner(), presence, leaving)
    assert engine.store.express_messages() == ids
    assert engine.store.takers("express") == 0
    assert engine.take(ids[0]).attempt == 1


def test_worn_process_hands_its_lease_back(engine: Engine, lane: ExpressLane) -> None:
    """Memory and open files are known to be too many only after the run."""
    ids = under_load(engine, lane, 2)
    leaving: Any = SimpleNamespace(asked=False, worn=True, takes_ahead=lambda: MOST_ASKED, patience=0.0)
    presence: Any = SimpleNamespace(sign=lambda: None)
    warm.express(lane, engine.runner(), presence, leaving)
    assert engine.store.express_messages() == ids


@pytest.mark.parametrize(("processes", "taken"), [(1, 6), (2, 3), (4, 2)])
def test_process_that_waited_takes_its_share_of_what_came(engine: Engine, processes: int, taken: int) -> None:
    """Another one may wait beside it, and would else run nothing of a small burst."""
    lane = ExpressLane(engine.client, engine.store, worker="w1", lease_us=LEASE, processes=processes)
    lane._most = MOST_ASKED
    ids = short_work(engine, 7)
    run_next(engine, lane)
    assert [lease.execution.id for lease in lane._hand] == ids[1 : 1 + taken]


def test_relieved_process_finishes_what_it_has_in_hand(engine: Engine, lane: ExpressLane) -> None:
    """Its successor takes the rest."""
    ids = under_load(engine, lane, 5)
    mine = [lease.execution.id for lease in lane._hand]
    leaving: Any = SimpleNamespace(
        asked=False,
        worn=False,
        relieved=True,
        takes_ahead=lambda: 0,
        ran=lambda taken: None,
        look_ahead=lambda: None,
        patience=0.0,
    )
    warm.express(lane, engine.runner(), SimpleNamespace(sign=lambda: None), leaving)  # type: ignore[arg-type]
    assert {engine.get(id).state for id in mine} == {State.FAILED}  # no such agent here
    assert engine.store.express_messages() == ids[len(mine) :] and ids[0] in mine


def test_process_asks_for_its_successor_once_and_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as it is not relieved, to the last of its runs."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(warm, "end_children", list)
    asked: list[str] = []
    parent: Any = SimpleNamespace(relieved=False, replace_me=lambda: asked.append("successor"))
    keeper: Any = None
    leaving = warm.Shutdown(engine.runner(), keeper, 0.0, ProcessWear(ProcessLimits(runs=100)), parent)
    before = []
    while not leaving.worn:
        before.append(len(asked))
        leaving.ran(True)
        leaving.look_ahead()
    assert before == sorted(before) and 3 <= before.count(1) <= 5 and asked == ["successor"]
    assert not leaving.relieved
    parent.relieved = True
    assert leaving.relieved and not leaving.takes_more()


def test_process_takes_no_lease_with_its_last_run() -> None:
    wear = ProcessWear(ProcessLimits(runs=2))
    few = ProcessWear(ProcessLimits(runs=1))
    old = ProcessWear(ProcessLimits(seconds=0))
    assert [each.ends_after_this() for each in (wear, few, old)] == [False, True, True]
    assert [each.runs_after_this() for each in (wear, few, old)] == [1, 0, 0]
    wear.ran()
    assert wear.ends_after_this()


def test_work_that_only_another_tree_can_run_is_not_leased(engine: Engine, lane: ExpressLane) -> None:
    """Its id comes with the seal, so that it can be passed on."""
    ids = under_load(engine, lane, 3)
    lane.takes_ahead = lambda: False
    execution = next_run(engine, lane)
    assert seal(engine, lane, execution) is SealAnswer.OK
    assert not lane.has_lease
    assert lane.take() == ids[1]
    assert engine.get(ids[1]).state is State.PENDING


def dies(work: Callable[[], object]) -> None:
    """Does this in a process of its own, which kills itself right afterwards."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_process_killed_between_seal_and_start_loses_nothing(engine: Engine) -> None:
    """The lease lapses like any other: its work is queued again, and only the next holder may write."""
    ids = short_work(engine, 3)

    def until_leased() -> None:
        other = Engine(redis.Redis(connection_pool=_copied(engine.client)), engine.files)
        lane = lane_of(other)
        run_next(other, lane)
        assert lane.has_lease

    dies(until_leased)
    leased = engine.get(ids[1])
    assert (leased.state, leased.fence) == (State.RUNNING, 1)
    assert engine.get(ids[0]).state is State.COMPLETED
    engine.clock().tick()
    assert engine.get(leased.id).state is State.RUNNING
    engine.advance(LEASE / SECOND + 1)
    engine.clock().tick()
    assert engine.store.express_messages() == [leased.id, ids[-1]]
    assert engine.seal(leased.id, leased.fence) is SealAnswer.LOST
    lane = lane_of(engine)
    assert [run_next(engine, lane) for _ in range(2)] == [leased.id, ids[-1]]
    assert (engine.get(leased.id).attempt, engine.get(leased.id).fence) == (2, 2)
    assert (
        engine.log(leased.id, "execution.started")[0].payload
        != engine.log(leased.id, "execution.started")[1].payload
    )


@pytest.mark.parametrize("granted", [True, False])
def test_parent_hands_back_the_lease_of_a_run_that_a_dead_process_had_not_begun(
    engine: Engine, granted: bool
) -> None:
    """Known from before the seal was sent; it costs no attempt, and later it changes nothing."""
    asked: list[AskedRun] = []
    lane = ExpressLane(
        engine.client,
        engine.store,
        worker="w1",
        lease_us=LEASE,
        asks=lambda runs: asked.extend(AskedRun(*run) for run in runs),
    )
    ids = under_load(engine, lane, 3)
    requeue = requeue_lost(engine.store, push=lambda id: None)
    if not granted:
        lane.give_back()
        engine.take(ids[0])
    requeue(asked[-1])
    assert engine.get(ids[0]).state is (State.PENDING if granted else State.RUNNING)
    assert engine.store.express_messages() == ids
    if granted:
        assert engine.take(ids[0]).attempt == 1
    requeue(asked[-1])
    assert engine.get(ids[0]).state is State.RUNNING


def _copied(client: redis.Redis) -> redis.ConnectionPool:
    pool = client.connection_pool
    return redis.ConnectionPool(connection_class=pool.connection_class, **pool.connection_kwargs)


@pytest.fixture(name="linked")
def _linked(engine: Engine) -> Engine:
    """The same engine on a link, as processes have it, where seals go ahead of their answers."""
    options = {**engine.client.connection_pool.connection_kwargs, "home": CurrentPrimary()}
    pool = redis.BlockingConnectionPool(connection_class=StoreConnection, max_connections=1, **options)
    return Engine(LinkedClient(pool), engine.files)


def with_a_hand(engine: Engine, lane: ExpressLane, left: int = 0) -> list[str]:
    """Runs work until it has the most leases in hand; returns the ids left, of which the first are leased."""
    ids = short_work(engine, 3 * _LOOK_EVERY + MOST_ASKED + left)
    for number in range(len(ids)):
        if len(lane._hand) == MOST_ASKED:
            return ids[number:]
        run_next(engine, lane)
    raise AssertionError("the hand was never full")


def test_short_runs_share_a_round_trip(linked: Engine) -> None:
    """With leases in hand a seal waits for nothing; the last one brings the answers and the next leases."""
    lane = lane_of(linked)
    ids = with_a_hand(linked, lane, 4 * MOST_ASKED)
    before = trips(linked)
    assert [run_next(linked, lane) for _ in ids] == ids
    assert not lane.has_lease
    lane.give_back()
    assert trips(linked) - before <= len(ids) * 1.2, "the store may read each seal as it comes"
    assert {linked.get(id).state for id in ids} == {State.COMPLETED}
    assert {(linked.get(id).attempt, linked.get(id).fence) for id in ids} == {(1, 1)}
    assert not lane._sent and linked.client.zcard(linked.keys.leases) == 0


def test_a_long_run_takes_one_lease(linked: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits behind such a run stays in the lane, where others take it."""
    lane = lane_of(linked)
    with_a_hand(linked, lane, 40)
    while lane.has_lease:
        execution = next_run(linked, lane)
        time.sleep(0.0 if lane.has_lease else 2 * _SHORT_SECONDS)
        seal(linked, lane, execution)
        if not lane._sent:
            break
    for _ in range(MOST_ASKED):
        execution = next_run(linked, lane)
        time.sleep(2 * _SHORT_SECONDS)
        seal(linked, lane, execution)
    assert len(lane._hand) + bool(lane._next) <= 1


def test_no_more_is_taken_than_may_still_run(linked: Engine) -> None:
    """A process that is replaced after so many runs hands nothing back, which would begin it twice."""
    lane = lane_of(linked)
    lane.takes_ahead = lambda: 3
    short_work(linked, 4 * _LOOK_EVERY)
    most = 0
    for _ in range(3 * _LOOK_EVERY):
        run_next(linked, lane)
        most = max(most, len(lane._hand))
    assert most == 3


def test_a_last_attempt_does_not_wait_in_hand(linked: Engine) -> None:
    """A lease that lapses there would fail it without a run; it is taken when it is the next one."""
    lane = lane_of(linked)
    with_a_hand(linked, lane)
    lasts = [linked.new(lane=Lane.EXPRESS, attempts=1) for _ in range(3 * MOST_ASKED)]
    ran: list[str] = []
    while len(ran) < 3 * MOST_ASKED:
        assert len({lease.execution.id for lease in lane._hand} & set(lasts)) <= 1
        ran += {run_next(linked, lane)} & set(lasts)
    assert ran == lasts
    assert {(linked.get(id).state, linked.get(id).attempt) for id in lasts} == {(State.COMPLETED, 1)}


def test_leases_that_a_long_run_keeps_waiting_go_back(linked: Engine) -> None:
    """Another process may run them at once, and no attempt is lost; the long run ends as usual."""
    lane = lane_of(linked)
    ids = with_a_hand(linked, lane)
    execution = next_run(linked, lane)
    waiting = ids[1:MOST_ASKED]
    assert lane.lighten() and lane.has_lease, "it has not waited for long"
    time.sleep(_HAND_SECONDS * 1.1)
    assert not lane.lighten() and not lane.has_lease
    assert set(waiting) <= set(linked.store.express_messages())
    assert {(linked.get(id).state, linked.get(id).attempt) for id in waiting} == {(State.PENDING, 0)}
    assert seal(linked, lane, execution) is SealAnswer.OK


def test_the_keeper_looks_after_leases_that_wait(linked: Engine) -> None:
    """Its thread, while the long run is the author's function."""
    lane = ExpressLane(
        linked.client, linked.store, worker="w1", lease_us=LEASE, loaded=lambda: keeper.loaded()
    )
    keeper = LeaseKeeper(
        linked.store,
        lease_us=LEASE,
        parent=linked.parent,
        presence=Presence(linked.store, "express", "w1"),
        lighten=lane.lighten,
    )
    with_a_hand(linked, lane)
    execution = next_run(linked, lane)
    job: Any = SimpleNamespace(seconds_left=lambda: 60.0, flush_when_old=lambda: None, stopped=None)
    with keeper.hold(execution, job):
        eventually(lambda: not lane.has_lease, 10, "an empty hand")
    assert seal(linked, lane, execution) is SealAnswer.OK


def test_a_seal_sent_ahead_whose_answer_is_lost_is_sent_again(
    linked: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the store has it or not: it knows the seal by its fence."""
    lane = lane_of(linked)
    ids = with_a_hand(linked, lane)

    def lost(call: ScriptCall) -> Any:
        if len(lane._sent) % 2:
            linked.store.scripts.send(call)

        def reply() -> Any:
            raise redis.ConnectionError("lost")

        return Begun(reply, lambda: False)

    with monkeypatch.context() as cut_off:
        cut_off.setattr(linked.store.scripts, "begin", lost)
        for _ in range(MOST_ASKED - 1):
            assert seal(linked, lane, next_run(linked, lane)) is None
    assert [linked.get(id).state for id in ids[:3]] == [State.RUNNING, State.COMPLETED, State.RUNNING]
    lane.give_back()
    done = ids[: MOST_ASKED - 1]
    assert {linked.get(id).state for id in done} == {State.COMPLETED} and not lane._sent
    assert [linked.kinds(id).count("execution.completed") for id in done] == [1] * len(done)


def test_a_seal_sent_ahead_is_kept_while_the_store_is_away(
    linked: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent until its lease must have lapsed; then the clock has the work."""
    lane = lane_of(linked)
    ids = with_a_hand(linked, lane)
    seal(linked, lane, next_run(linked, lane))

    def away(*args: object, **more: object) -> Any:
        raise redis.ConnectionError("away")

    with monkeypatch.context() as outage:
        outage.setattr(linked.client.link, "ask", away)  # type: ignore[attr-defined]
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                lane.give_back()
    lane.give_back()
    assert linked.get(ids[0]).state is State.COMPLETED and not lane._sent
    lane._sent.append(
        _SentSeal(ids[0], linked.store.scripts.call("hint", id=ids[0]), Begun(away, lambda: True), 0.0)
    )
    monkeypatch.setattr(linked.store.scripts, "send", away)
    lane.give_back()
    assert not lane._sent


@pytest.mark.parametrize("fault", ["script_flush", "hang_up"])
def test_a_refused_seal_is_sent_again_while_a_long_run_goes_on(linked: Engine, fault: str) -> None:
    """Finished work does not wait for the end of another, not even of the last in hand."""
    lane = lane_of(linked)
    ids = with_a_hand(linked, lane)
    while len(lane._hand) > 2:
        seal(linked, lane, next_run(linked, lane))
    lane._confirm()
    id = ids[MOST_ASKED - 2]
    execution, last = next_run(linked, lane), None
    if fault == "script_flush":
        linked.client.script_flush()
        assert seal(linked, lane, execution) is None
    else:
        assert seal(linked, lane, execution) is None
        linked.client.link._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
    leases, lane._hand = lane._hand, deque()
    last = leases.popleft()
    lane._began = time.monotonic() - 2 * _HAND_SECONDS
    lane.lighten()
    assert linked.get(id).state is State.COMPLETED and not lane._sent
    lane._run = last.execution.id
    assert seal(linked, lane, last.execution) is SealAnswer.OK


def test_no_run_begins_while_a_finished_one_is_known_to_be_refused(linked: Engine) -> None:
    """The next run may end the process, and with it the result of the one before."""
    lane = lane_of(linked)
    ids = with_a_hand(linked, lane)
    execution = next_run(linked, lane)
    linked.client.script_flush()
    assert seal(linked, lane, execution) is None
    eventually(lambda: not is_quiet(linked.client.link._socket), 10, "the refusal")  # type: ignore[attr-defined]
    next_run(linked, lane)
    assert not lane._sent
    other = redis.Redis(connection_pool=_copied(linked.client))
    assert other.hget(linked.keys.record(ids[0]), "state") == b"completed"


def test_leases_whose_answer_is_lost_are_not_forgotten_for_others(
    linked: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seal that is tried again takes nothing, not even an id."""
    lane = lane_of(linked)
    ids = with_a_hand(linked, lane, 4 * MOST_ASKED)
    while len(lane._hand):
        execution = next_run(linked, lane)
        if lane._hand:
            seal(linked, lane, execution)
    seal_without_an_answer(linked, lane, execution, monkeypatch)
    unsure = [id for id, _ in lane._unsure]
    assert unsure and {linked.get(id).state for id in unsure} == {State.RUNNING}
    lane._seals, lane._work_waits = _LOOK_EVERY - 1, True
    assert seal(linked, lane, execution) is SealAnswer.OK
    assert not lane._next
    first = next_run(linked, lane).id
    assert not lane._unsure
    assert [linked.get(id).attempt for id in unsure] == [int(id == first) for id in unsure]
    assert set(unsure) <= set(ids)


def test_a_process_that_ends_waits_for_a_store_that_is_just_away(
    linked: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It seals what it has finished and hands back what it has not begun."""
    lane = lane_of(linked)
    ids = with_a_hand(linked, lane)
    seal(linked, lane, next_run(linked, lane))
    ask, left = linked.client.link.ask, 3  # type: ignore[attr-defined]

    def away_for_a_moment(*args: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left > 0:
            raise redis.ConnectionError("away")
        return ask(*args, **more)

    monkeypatch.setattr(linked.client.link, "ask", away_for_a_moment)  # type: ignore[attr-defined]
    leaving: Any = SimpleNamespace(asked=True, worn=False, takes_ahead=lambda: 0, patience=10.0)
    warm.express(lane, linked.runner(), SimpleNamespace(), leaving)  # type: ignore[arg-type]
    assert linked.get(ids[0]).state is State.COMPLETED
    assert {linked.get(id).state for id in ids[1:]} == {State.PENDING} and not lane.has_lease


def test_a_seal_sent_ahead_of_a_spoiled_run_stops_no_other(linked: Engine) -> None:
    """Its lease lapses, as after any bug; the seals around it stand."""
    lane = lane_of(linked)
    ids = with_a_hand(linked, lane)
    linked.client.set(linked.keys.steps(ids[1]), "spoiled")
    for _ in range(MOST_ASKED):
        seal(linked, lane, next_run(linked, lane))
    states = [linked.get(id).state for id in ids[:MOST_ASKED]]
    assert states == [State.COMPLETED, State.RUNNING, *[State.COMPLETED] * (MOST_ASKED - 2)]


def test_a_process_killed_with_leases_in_hand_loses_nothing(linked: Engine, tmp_path: Path) -> None:
    """What it sealed is sealed, what it ran is tried again, and what it had not begun goes back whole."""
    page = StatusPage()
    ids = short_work(linked, 4 * _LOOK_EVERY + MOST_ASKED)
    done = tmp_path / "done"

    def until_loaded() -> None:
        lane = ExpressLane(linked.client, linked.store, worker="w1", lease_us=LEASE, asks=page.asks)
        ran = 0
        while len(lane._hand) < MOST_ASKED:
            run_next(linked, lane)
            ran += 1
        seal(linked, lane, next_run(linked, lane))
        execution = next_run(linked, lane)
        page.running(execution.id, execution.fence, 60.0)
        done.write_text(str(ran + 1))

    dies(until_loaded)
    ran = int(done.read_text())
    eventually(lambda: linked.get(ids[ran - 1]).state is State.COMPLETED, 10, "the seal that was sent ahead")
    requeue = requeue_lost(linked.store, push=lambda id: None)
    run = page.run()
    assert run is not None and run.execution_id == ids[ran]
    for lost in (run, *page.asked()):
        requeue(lost)
    assert {linked.get(id).state for id in ids[:ran]} == {State.COMPLETED}
    waiting = linked.store.express_messages()
    assert sorted(waiting) == sorted(ids[ran:])
    attempts = [linked.take(id).attempt for id in ids[ran : ran + MOST_ASKED - 1]]
    assert attempts == [2] + [1] * (MOST_ASKED - 2)


def test_lease_that_is_too_old_to_begin_is_given_back(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage between two runs the work may be another process's."""
    ids = under_load(engine, lane, 2)
    monkeypatch.setattr("worker.queue.express_lane.time.monotonic", lambda: float("inf"))
    assert lane.leased() is None
    assert not lane.has_lease
    assert engine.store.express_messages() == ids


def test_lapsed_lease_that_another_process_has_is_left_to_it(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id] = under_load(engine, lane, 1)
    engine.advance(LEASE / SECOND + 1)
    assert engine.lapse(id)[0] == "queued"
    second = engine.take(id)
    monkeypatch.setattr("worker.queue.express_lane.time.monotonic", lambda: float("inf"))
    assert lane.leased() is None
    assert engine.get(id).fence == second.fence == 2
    assert engine.get(id).state is State.RUNNING


def test_work_is_told_how_much_of_its_time_has_passed_since_its_lease(
    engine: Engine, lane: ExpressLane
) -> None:
    """What the process did before the run counts."""
    under_load(engine, lane, 1)
    time.sleep(0.2)
    leased = lane.leased()
    assert leased is not None
    execution, at = leased
    assert at - execution.started >= 0.2 * SECOND
    assert at - engine.now() < 0.1 * SECOND


def test_lease_that_cannot_be_given_back_lapses(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spoiled key of one execution must not keep the process from all others."""
    ids = under_load(engine, lane, 2)
    engine.client.set(engine.keys.steps(ids[0]), "spoiled")
    monkeypatch.setattr("worker.queue.express_lane.time.monotonic", lambda: float("inf"))
    assert lane.leased() is None
    assert not lane.has_lease
    monkeypatch.undo()
    assert next_run(engine, lane).id == ids[1]


def test_lease_is_kept_until_the_store_is_back_to_take_it(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = under_load(engine, lane, 2)

    def away(*args: object) -> Any:
        raise redis.ConnectionError("away")

    monkeypatch.setattr("worker.queue.express_lane.time.monotonic", lambda: float("inf"))
    with monkeypatch.context() as outage:
        outage.setattr(engine.store, "requeue", away)
        with pytest.raises(redis.ConnectionError):
            lane.leased()
    assert lane.leased() is None
    assert engine.store.express_messages() == ids
    assert engine.get(ids[0]).attempt == 0


@pytest.mark.parametrize("then", ["goes on", "leaves"])
def test_lease_whose_answer_is_lost_is_handed_back(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """It would lapse and cost an attempt, and work that is tried once would fail without having begun."""
    ids = under_load(engine, lane, 3)
    execution = next_run(engine, lane)
    seal_without_an_answer(engine, lane, execution, monkeypatch)
    assert seal(engine, lane, execution) is SealAnswer.OK
    assert engine.get(ids[1]).state is State.RUNNING
    if then == "leaves":
        lane.give_back()
        assert engine.store.express_messages() == ids[1:]
    execution = next_run(engine, lane)
    assert (execution.id, execution.attempt) == (ids[1], 1)


def test_lease_whose_answer_is_lost_is_left_to_whom_it_has_passed(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = under_load(engine, lane, 3)
    execution = next_run(engine, lane)

    def cut(*parts: Any) -> Any:
        raise redis.ConnectionError("nothing was sent")

    with monkeypatch.context() as cut_off:
        cut_off.setattr(engine.store.scripts, "send_each", cut)
        with pytest.raises(redis.ConnectionError):
            seal(engine, lane, execution)
    others = engine.take(ids[1])
    lane.give_back()
    assert engine.get(ids[1]).fence == others.fence
    assert engine.get(ids[1]).state is State.RUNNING


def test_seal_stands_when_the_catalog_cannot_be_read(engine: Engine, lane: ExpressLane) -> None:
    """Whether more may be taken is no reason to lose finished work."""
    ids = under_load(engine, lane, 3)
    execution = next_run(engine, lane)

    def spoiled() -> bool:
        raise redis.ResponseError("WRONGTYPE")

    lane.takes_ahead = spoiled
    assert seal(engine, lane, execution) is SealAnswer.OK
    assert not lane.has_lease
    assert lane.take() == ids[1]


def test_seal_stands_when_the_next_lease_cannot_be_taken(engine: Engine, lane: ExpressLane) -> None:
    """A spoiled key of the next execution must not end the run before it."""
    ids = under_load(engine, lane, 3)
    execution = next_run(engine, lane)
    engine.client.set(engine.keys.money(ids[1]), "spoiled")
    assert seal(engine, lane, execution) is SealAnswer.OK
    assert not lane.has_lease
    assert engine.store.express_messages() == ids[1:]


def test_lease_is_kept_when_the_seal_before_it_fails(engine: Engine, lane: ExpressLane) -> None:
    ids = under_load(engine, lane, 3)
    execution = next_run(engine, lane)
    engine.client.set(engine.keys.steps(execution.id), "spoiled")
    with pytest.raises(redis.ResponseError):
        seal(engine, lane, execution)
    assert next_run(engine, lane).id == ids[1]


def test_an_id_that_is_not_run_returns_to_the_head_of_the_lane(engine: Engine, lane: ExpressLane) -> None:
    """A process that leaves hands on what it took ahead; a second time changes nothing."""
    short_work(engine, 1)
    execution = next_run(engine, lane)
    left = short_work(engine, 2)
    lane._seals = _LOOK_EVERY - 1
    seal(engine, lane, execution)
    assert engine.store.express_messages() == left[1:]
    lane.give_back()
    lane.give_back()
    assert engine.store.express_messages() == left


def test_a_seal_that_fails_takes_one_lease_at_most(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection may fail for as long as a lease; repeats of the seal must not empty the lane."""
    short_work(engine, 5)
    execution = next_run(engine, lane)

    def refuse(call: ScriptCall, other: ScriptCall, look: object) -> Any:
        engine.store.scripts.send(other)
        raise redis.ConnectionError("lost")

    monkeypatch.setattr(engine.store.scripts, "send_each", refuse)
    options: dict[str, Any] = {"output": b"1", "result": b"{}", "error": b"", "payload": b"{}"}
    with pytest.raises(redis.ConnectionError):
        engine.store.seal(execution.id, execution.fence, "completed", **options, send=lane.seal)
    for _ in range(3):
        engine.store.seal(execution.id, execution.fence, "completed", **options, send=lane.seal)
    assert engine.client.llen(engine.keys.express) == 3


def test_a_store_without_the_script_seals_all_the_same(engine: Engine, lane: ExpressLane) -> None:
    """It is sent in full, and so is the one that comes with it."""
    ids = short_work(engine, 2)
    execution = next_run(engine, lane)
    engine.client.script_flush()
    answer = engine.store.seal(
        execution.id, execution.fence, "failed", output=b"", result=b"", error=ERROR, payload=ERROR,
        send=lane.seal,
    )  # fmt: skip
    assert answer is SealAnswer.OK
    assert next_run(engine, lane).id == ids[-1]
