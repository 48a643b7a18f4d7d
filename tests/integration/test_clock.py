"""The clock recovers work that other processes left unfinished."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.engine import HOUR, SECOND, Crash, Engine
from worker.agents.job import Job
from worker.core.errors import Unavailable
from worker.core.ids import new_id
from worker.core.states import Lane, State
from worker.files.store import DiskFiles

DAY = 86_400


def look(engine: Engine, **options: Any) -> None:
    """A tick that includes the once-a-second chores."""
    engine.clock(**options).tick()


def queued(engine: Engine) -> list[str]:
    return [id.decode() for id in engine.client.lrange("rq:queue:work", 0, -1)]


def test_expired_lease_requeues_the_work(engine: Engine) -> None:
    """Work whose process died is queued again in its lane; the queue lane also gets a message."""
    slow, quick = engine.running().id, engine.running(lane=Lane.EXPRESS).id
    engine.clock().tick()
    assert engine.get(slow).state == State.RUNNING
    engine.advance(6)
    engine.client.delete("rq:queue:work", engine.keys.express)
    engine.clock().tick()
    assert [engine.get(id).state for id in (slow, quick)] == [State.PENDING] * 2
    assert queued(engine) == [slow]
    assert engine.client.lrange(engine.keys.express, 0, -1) == [quick.encode()]


def test_due_timer_queues_the_work(engine: Engine) -> None:
    """A delayed execution is queued when due, and not before."""
    id = engine.running().id
    engine.store.requeue(id, 1, "transient", delay_us=SECOND)
    engine.clock().tick()
    assert queued(engine) == []
    engine.advance(1.1)
    engine.clock().tick()
    assert queued(engine) == [id]


def test_execution_and_step_deadlines_are_enforced(engine: Engine) -> None:
    """An expired execution fails, a step past its deadline fails its execution, others are untouched."""
    old, fine = engine.new(timeout_us=SECOND), engine.new()
    stuck = engine.running()
    engine.begin(stuck, timeout_us=SECOND)
    engine.advance(1.5)
    engine.clock().tick()
    assert [engine.get(id).error.get("code") for id in (old, stuck.id, fine)] == [
        "EXECUTION_TIMEOUT",
        "STEP_TIMEOUT",
        None,
    ]


def test_lost_message_is_resent_once(engine: Engine) -> None:
    """A queued record unknown to RQ gets a message; one known to RQ gets no second."""
    lost, there = engine.new(), engine.new()
    engine.queue.push(there)
    look(engine)
    assert queued(engine) == [there]
    engine.advance(1.5)
    look(engine)
    look(engine)
    assert sorted(queued(engine)) == sorted([there, lost])


def test_message_of_a_killed_rq_worker_is_cleaned_up(engine: Engine) -> None:
    """The remains of a killed RQ worker's message are removed, including RQ's own record."""
    id = engine.new()
    engine.queue.push(id)
    engine.client.lmove("rq:queue:work", "rq:queue:work:intermediate")
    look(engine)
    assert engine.queue.length_and_taken()[1] == [id]
    engine.seal(id, engine.take(id).fence)
    look(engine)
    assert engine.queue.length_and_taken()[1] == []
    assert engine.client.keys("rq:job:*") == []


def test_retention_removes_records_and_files(engine: Engine) -> None:
    """After retention an execution is removed with all its files, delivered or not; younger ones stay."""
    crashed = iter([True])

    def function(job: Job) -> Any:
        job.file("a.txt", b"a")
        job.once("large", lambda: "x" * 50_000)
        job.tool("@scope/t")
        if next(crashed, False):
            raise Crash
        job.say("s" * 5_000_000)
        return "y" * 50_000

    engine.registry.tool("@scope/t")(lambda: "z" * 50_000)
    engine.cancel(engine.agent(function))
    engine.catalog.publish([])
    _, id = engine.executions.create("a", "i" * 50_000, door="test", labels={"l": "v"}, scope="s", key="k")
    engine.crash(id)
    assert engine.runner().run(id)
    assert engine.get(id).state == State.COMPLETED
    failed = engine.run(lambda job: job.file("b.txt", b"b") and job.tool("none"))
    assert failed.state == State.FAILED
    assert isinstance(engine.files, DiskFiles)
    stored = [path for path in engine.files.directory.rglob("*") if path.is_file()]
    assert len(stored) == 7
    look(engine, retention=DAY)
    assert engine.store.get(id) is not None
    engine.advance(DAY + 10)
    young = engine.running().id
    engine.seal(young, 1)
    look(engine, retention=DAY)
    assert engine.store.get(id) is engine.store.get(failed.id) is None
    assert [path for path in engine.files.directory.rglob("*") if path.is_file()] == []
    assert [key for key in engine.client.keys("*") if id.encode() in key or failed.id.encode() in key] == []
    for key in engine.client.keys("w:by:*"):
        assert engine.client.zrange(key, 0, -1) == [young.encode()]
    assert engine.client.keys("w:key:*") == []
    assert engine.executions.create("a", 1, door="test", scope="s", key="k")[0]


def test_undeletable_files_keep_their_record(engine: Engine) -> None:
    """An unavailable file store delays the removal; nothing is lost, and other records are removed."""
    execution = engine.run(lambda job: job.file("a.txt", b"a") and None)
    gone = engine.run(lambda job: 1)
    files = engine.files

    class OutOfReach(type(files)):  # type: ignore[misc]
        def delete(self, key: str) -> None:
            raise Unavailable("files cannot be deleted right now")

    real = files.__class__
    files.__class__ = OutOfReach
    engine.advance(2 * DAY)
    look(engine, retention=DAY)
    assert engine.store.get(execution.id) is not None and engine.store.get(gone.id) is None
    files.__class__ = real
    look(engine, retention=DAY)
    assert engine.store.get(execution.id) is None


def test_open_payment_keeps_record_and_files(engine: Engine) -> None:
    """While a payment's outcome is unknown, neither the execution nor its deliverables are removed."""
    id = engine.run(lambda job: job.file("a.txt", b"a") and None).id
    money = engine.keys.money(id)
    engine.client.hset(money, mapping={"count": "1", "1 state": "unknown"})
    engine.advance(2 * DAY)
    look(engine, retention=DAY)
    key = engine.get(id).result["files"][0]["key"]
    assert b"".join(engine.files.open(key)) == b"a"
    engine.client.hset(money, "1 state", "settled")
    look(engine, retention=DAY)
    assert engine.store.get(id) is None
    assert engine.files.stat(key) is None


def test_index_entry_without_a_record_is_dropped(engine: Engine) -> None:
    """Rows without a record are removed from every index, so that it does not fill up."""
    ghost = new_id()
    member = f"{ghost} {new_id()}"
    for key in (
        engine.keys.leases,
        engine.keys.timers,
        engine.keys.deadlines,
        engine.keys.queued,
        engine.keys.ended,
    ):
        engine.client.zadd(key, {ghost: 1})
    engine.client.zadd(engine.keys.step_deadlines, {member: 1})
    look(engine, retention=DAY)
    assert set(engine.client.keys("w:*")) == {engine.keys.ticks.encode(), engine.keys.chores.encode()}


def test_broken_record_does_not_stop_the_others(engine: Engine) -> None:
    """A record that no script can move is logged and skipped in each of its indexes."""
    broken, fine = engine.running().id, engine.running().id
    engine.client.delete(engine.keys.log(broken))
    engine.client.set(engine.keys.log(broken), "spoilt")
    engine.advance(6)
    engine.clock().tick()
    assert (engine.get(broken).state, engine.get(fine).state) == (State.RUNNING, State.PENDING)


def test_outage_is_not_mistaken_for_a_broken_record(engine: Engine) -> None:
    """A store that refuses for its own reasons ends the tick; the next one starts over."""
    engine.running()
    engine.advance(6)
    clock = engine.clock()

    class Loading(type(engine.store)):  # type: ignore[misc]
        def requeue(self, *args: Any, **options: Any) -> Any:
            raise redis.exceptions.BusyLoadingError("loading")

    engine.store.__class__ = Loading
    with pytest.raises(redis.exceptions.BusyLoadingError):
        clock.tick()


def test_age_of_the_last_tick_is_known(engine: Engine) -> None:
    """Readiness reads the age of the newest tick of any tree; without a tick it is None."""
    assert engine.store.clock_age() is None
    engine.clock().tick()
    assert 0 <= (engine.store.clock_age() or 0) < 5
    engine.advance(30)
    assert 30 <= (engine.store.clock_age() or 0) < 35


def test_only_recently_seen_processes_are_counted(engine: Engine) -> None:
    """A silent warm process no longer counts, and its entry is removed later."""
    engine.store.sign_on("express", "a")
    engine.advance(15)
    engine.store.sign_on("express", "b")
    assert (engine.store.takers("express"), engine.store.takers("queue")) == (2, 0)
    engine.advance(10)
    assert engine.store.takers("express") == 1
    engine.advance(60)
    engine.store.sign_on("express", "c")
    assert engine.client.zrange(engine.keys.takers("express"), 0, -1) == [b"c"]


def test_expired_leases_beyond_one_tick_are_processed(engine: Engine) -> None:
    """The next ticks process the rest, oldest first, safely repeatable by two clocks."""
    ids = [engine.running().id for _ in range(250)]
    engine.advance(6)
    clocks = [engine.clock(), engine.clock()]

    def states() -> Iterator[State]:
        return (engine.get(id).state for id in ids)

    for _ in range(2):
        for clock in clocks:
            clock.tick()
    assert set(states()) == {State.PENDING}
    assert all(engine.kinds(id).count("execution.reset") == 1 for id in ids)
    assert engine.store.due(tree="t", retention_us=HOUR).lapsed == []
