"""The lease keeper thread: it renews, flushes output, notices lost leases and hands work back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.engine import LEASE, SECOND, Engine
from worker.agents.job import Job
from worker.agents.lease import LeaseLost
from worker.core.states import State
from worker.queue.lease_keeper import STOP_GRACE, LeaseKeeper
from worker.queue.presence import Presence
from worker.queue.runner import Runner

SHORT = 600_000


def keeper_of(
    engine: Engine, store: Any = None, *, lease_us: int = SHORT, stop_grace: float = STOP_GRACE
) -> LeaseKeeper:
    store = store or engine.store
    presence = Presence(store, "express", "w1")
    return LeaseKeeper(
        store, lease_us=lease_us, parent=engine.parent, presence=presence, stop_grace=stop_grace
    )


def runner_of(engine: Engine, keeper: LeaseKeeper, *, lease_us: int = SHORT) -> Runner:
    return Runner(
        engine.store,
        capabilities=engine.registry.capabilities,
        tools=engine.registry.tools,
        files=engine.files,
        decide=lambda call: engine.decide(call),
        keeper=keeper,
        name="w1",
        lease_us=lease_us,
        step_timeout_us=60 * SECOND,
    )


@contextmanager
def working(
    engine: Engine, function: Callable[[Job], Any], *, stop_grace: float = STOP_GRACE
) -> Iterator[tuple[str, LeaseKeeper]]:
    """A runner working in another thread."""
    id = engine.agent(function)
    keeper = keeper_of(engine, stop_grace=stop_grace)
    runner = runner_of(engine, keeper)
    thread = threading.Thread(target=runner.run, args=(id,), daemon=True)
    thread.start()
    yield id, keeper
    thread.join(20)
    assert not thread.is_alive()


def test_lease_is_renewed_while_work_runs(engine: Engine) -> None:
    """Work three times as long as its lease ends in its first attempt, even with the shortest lease."""
    execution = None
    with working(engine, lambda job: time.sleep(1.8)) as (id, _):
        pass
    execution = engine.get(id)
    assert (execution.state, execution.attempt, execution.fence) == (State.COMPLETED, 1, 1)


def test_second_job_is_renewed_too(engine: Engine) -> None:
    """A keeper that was idle for a while renews the next job before its lease ends."""
    keeper = keeper_of(engine)
    runner = runner_of(engine, keeper)
    for pause in (0.0, 0.1, 0.25):
        id = engine.agent(lambda job: time.sleep(0.8))
        time.sleep(pause)
        assert runner.run(id)
        assert engine.get(id).state == State.COMPLETED


def test_lost_lease_kills_an_uncooperative_process(engine: Engine) -> None:
    """After a cancellation a function that ignores it gets its grace; then its process is killed."""
    grace = 0.8
    times: list[float] = []
    release = threading.Event()

    def deaf(job: Job) -> None:
        engine.cancel(job.id)
        times.append(time.monotonic())
        assert engine.parent.killed.wait(10)
        times.append(time.monotonic())
        assert job.stopped == "lost"
        release.wait(0.3)

    with working(engine, deaf, stop_grace=grace):
        pass
    assert grace <= times[1] - times[0] < grace + SHORT / SECOND + 1.0
    assert engine.parent.heard.count("kill") == 1


def test_lost_lease_seen_by_the_writer_gets_the_full_grace(engine: Engine) -> None:
    """When the keeper's flush is refused, the function is stopped and not killed at once."""
    done = threading.Event()

    def function(job: Job) -> None:
        engine.cancel(job.id)
        job.say("late")
        time.sleep(1.0)
        done.set()

    with working(engine, function):
        pass
    assert done.is_set()
    assert "kill" not in engine.parent.heard


def test_work_is_handed_back_after_its_grace(engine: Engine) -> None:
    """On shutdown a keeper lets the job run for the grace, then hands it back without using an attempt."""
    left, begun = threading.Event(), threading.Event()
    stopped: list[BaseException] = []

    def function(job: Job) -> None:
        begun.set()
        try:
            while True:
                job.say("x")
                time.sleep(0.01)
        except BaseException as error:
            stopped.append(error)
            raise

    with working(engine, function) as (id, keeper):
        assert begun.wait(5)
        keeper.hand_back_within(0.3, left.set)
        assert not left.wait(0.15)
        assert left.wait(5)
    assert isinstance(stopped[0], LeaseLost)
    execution = engine.get(id)
    assert (execution.state, execution.attempt) == (State.PENDING, 0)
    assert [event.data()["reason"] for event in engine.log(id, "execution.reset")] == ["handed_back"]


def test_idle_keeper_stops_without_spinning(engine: Engine) -> None:
    """Between jobs there is nothing to hand back, and the keeper uses no CPU time."""
    keeper = keeper_of(engine)
    runner = runner_of(engine, keeper)
    id = engine.agent(lambda job: keeper.hand_back_within(0.0, lambda: None) or time.sleep(0.0))
    runner.run(id)
    looks: list[float] = []
    pause = keeper._pause

    def counted(soon: float | None) -> float:
        looks.append(time.monotonic())
        return pause(soon)

    keeper._pause = counted  # type: ignore[method-assign]
    time.sleep(1.0)
    assert len(looks) < 10


class Breaking:
    """A store whose renewals fail in an unforeseen way."""

    def __init__(self, engine: Engine, error: Exception, times: int) -> None:
        self._store = engine.store
        self._error = error
        self.left = times

    def renew(self, id: str, fence: int, lease_us: int) -> str:
        if self.left:
            self.left -= 1
            raise self._error
        return self._store.renew(id, fence, lease_us)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize(
    "error",
    [ValueError("nobody foresaw"), redis.ConnectionError("away"), redis.ResponseError("OOM")],
    ids=lambda error: type(error).__name__,
)
def test_thread_survives_any_error(engine: Engine, error: Exception) -> None:
    """Any single failed renewal is harmless: the next one keeps the lease."""
    keeper = keeper_of(engine, Breaking(engine, error, 1))
    runner = runner_of(engine, keeper)
    id = engine.agent(lambda job: time.sleep(0.9))
    assert runner.run(id)
    execution = engine.get(id)
    assert (execution.state, execution.attempt) == (State.COMPLETED, 1)


def test_outage_longer_than_the_lease_stops_the_job(engine: Engine) -> None:
    """When renewals fail until the lease must have expired, the function is stopped."""
    keeper = keeper_of(engine, Breaking(engine, redis.ConnectionError("away"), 1000))
    runner = runner_of(engine, keeper)
    seen: list[str | None] = []

    def function(job: Job) -> None:
        until = time.monotonic() + 8
        while job.stopped is None and time.monotonic() < until:
            time.sleep(0.02)
        seen.append(job.stopped)

    runner.run(engine.agent(function))
    assert seen == ["lost"]


def test_late_answer_about_an_old_job_is_ignored(engine: Engine) -> None:
    """An execution may run twice in one process; a late answer for its first run does not affect the next."""
    keeper = keeper_of(engine, lease_us=LEASE)
    engine.registry.agent("a")(lambda job: None)

    def job(fence: int) -> Job:
        execution = engine.take(id)
        assert execution.fence == fence
        new_job = Job(
            execution,
            engine.registry.capabilities["a"],
            store=engine.store,
            files=engine.files,
            tools={},
            decide=engine.decide,
            at=execution.started,
            lease_us=LEASE,
            step_timeout_us=SECOND,
        )
        engine.closing.append(new_job.close)
        return new_job

    id = engine.new()
    old = job(1)
    engine.store.requeue(id, 1, "transient")
    new = job(2)
    with keeper.hold(engine.get(id), new):
        renew_at = keeper._renew_at
        keeper._stop(engine.get(id), old, "lost")
        assert (new.stopped, old.stopped, keeper._renew_at) == (None, None, renew_at)


def test_nothing_is_written_after_the_seal_or_twice(engine: Engine) -> None:
    """Whatever the order of the keeper's flush and the end, the text is complete and the end is last."""
    keeper = keeper_of(engine, lease_us=LEASE)
    runner = runner_of(engine, keeper, lease_us=LEASE)
    for turn in range(25):

        def function(job: Job, turn: int = turn) -> None:
            for number in range(6):
                job.say(f"{number},")
                time.sleep(0.0093 + turn * 0.00016)

        id = engine.agent(function)
        assert runner.run(id)
        events = engine.store.events(id)
        assert events[-1].kind == "execution.completed"
        assert "".join(event.data()["text"] for event in events[2:-1]) == "0,1,2,3,4,5,"
