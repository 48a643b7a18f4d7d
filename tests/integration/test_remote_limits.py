"""Limits on names and texts of remote agents and runners."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.engine import SECOND, Crash, Engine
from tests.integration.test_remote_scripts import Kernel
from worker.core.errors import Conflict, NotFound, Unauthorized
from worker.core.ids import new_id
from worker.engine.events import MOST_EVENTS, iso
from worker.files.store import DiskFiles
from worker.policy.judge import Decision
from worker.queue.clock import Clock
from worker.remote.runners import JobResult


@pytest.fixture(name="kernel")
def _kernel(engine: Engine) -> Kernel:
    return Kernel(engine)


def ticking(engine: Engine, **more: Any) -> Clock:
    """The clock of the work tree."""
    return Clock(
        engine.store,
        engine.queue,
        files=engine.files,
        tree="t1",
        retention_us=10**15,
        **{"attend": engine.assignment.attend, **more},
    )


# The clock


@pytest.mark.parametrize("kind", ["the job", " job", "x value", "x args", "x status", "@ job", "file:x"])
def test_signal_name_is_not_mistaken_for_a_step(kernel: Kernel, kind: str) -> None:
    """A signal may have any name: the clock still ends its execution and removes it later."""
    agent, id = kernel.working()
    kernel.invoke(id, remote=True)
    kernel.engine.signals.send(id, kind, {"a": 1})
    kernel.engine.cancel(id)
    ticking(kernel.engine).tick()
    assert [event for event, _ in kernel.mail(agent)][-1] == "execution.cancelled"
    assert not kernel.engine.client.zcard(kernel.engine.keys.timers)
    kernel.engine.advance(10)
    kernel.engine.clock(retention=1).tick()
    assert kernel.engine.store.get(id) is None


def test_local_step_names_are_not_mistaken_for_remote_ones(engine: Engine) -> None:
    """A step's key and a file's name may have any suffix, beside a runner's job."""

    def work(job: Any) -> None:
        job.file("annual job", b"x")
        job.once("the job", lambda: 1)
        raise Crash

    id = engine.agent(work)
    engine.crash(id)
    taken = engine.take(id)
    step = engine.begin(taken, key="a job").text()
    assert engine.send_job(id, taken.fence, step, SECOND) == "ok"
    engine.cancel(id)
    ticking(engine).tick()
    assert not engine.client.exists(engine.keys.timers, engine.keys.jobs("t"))


def test_failing_message_does_not_block_the_others(engine: Engine) -> None:
    """A failing item or chore is logged, and the others are processed."""
    one, other = (engine.new(timeout_us=SECOND) for _ in range(2))
    seen: list[str] = []

    def attend(id: str) -> None:
        raise KeyError(id)

    def chore(at: int) -> None:
        raise ValueError(at)

    engine.client.hset(engine.keys.record(one), "lane", "remote")
    engine.client.zadd(engine.keys.timers, {one: 1})
    engine.advance(2)
    clock = ticking(engine, chores=[chore, lambda at: seen.append("chore")], attend=attend)
    clock.tick()
    assert engine.get(other).state == "failed" and seen == ["chore"]


# Money


def bought(kernel: Kernel, seconds: int) -> str:
    """An execution waiting for its agent, with a payment that can be settled for that long."""
    id, engine = kernel.new(), kernel.engine
    ends = engine.now() // SECOND + seconds
    payment = {"current": 1, "1 valid_before": ends, "1 state": "verified", "1 amount": 5, "1 payer": "p"}
    engine.client.hset(engine.keys.money(id), mapping=payment)
    engine.client.hset(engine.keys.record(id), mapping={"contract": "ref", "settle_margin": 60 * SECOND})
    return id


def test_work_that_cannot_settle_is_not_assigned(kernel: Kernel) -> None:
    """If the authorization ends before run and settlement, it is released; the work waits for another."""
    late, good = bought(kernel, 650), bought(kernel, 670)
    agent = kernel.agent()
    assert [data["execution_id"] for _, data in kernel.mail(agent)] == [good]
    found = kernel.engine.get(late)
    assert (found.state, found.phase, found.fence) == ("pending", "payment_due", 0)
    assert kernel.engine.kinds(late)[-1] == "payment.refused"
    assert kernel.engine.client.hget(kernel.engine.keys.money(late), "1 state") == b"released"
    ticking(kernel.engine).tick()
    assert kernel.mail(agent) == []


def test_work_that_cannot_settle_before_its_deadline_is_not_assigned(kernel: Kernel) -> None:
    """Another payment would not help: it ends as late with the next tick, uncharged."""
    late, good = bought(kernel, 7200), bought(kernel, 7200)
    engine = kernel.engine
    engine.client.hset(engine.keys.record(late), "ends_by", engine.now() + 650 * SECOND)
    agent = kernel.agent()
    assert [data["execution_id"] for _, data in kernel.mail(agent)] == [good]
    assert engine.get(late).fence == 0
    ticking(engine).tick()
    found = engine.get(late)
    assert (found.state, found.error["code"]) == ("failed", "DEADLINE_MISSED")
    assert engine.client.hget(engine.keys.money(late), "1 state") == b"released"


def test_payment_window_is_checked_again_after_a_lost_agent(kernel: Kernel) -> None:
    """The second attempt does not start if only the first one was in time."""
    id, first = bought(kernel, 700), kernel.agent("a", "c1")
    assert kernel.states(id) == ["running"]
    kernel.engine.advance(50)
    kernel.agent("a", "c2")
    kernel.connections.close(first)
    assert kernel.engine.get(id).phase == "payment_due"


# Growth


LONG = "x" * (1 << 20)


def test_long_errors_are_shortened_in_the_log(kernel: Kernel) -> None:
    """An event has a short form of an error from a tool, runner or person; the agent gets the full text."""
    agent, id = kernel.working()
    engine = kernel.engine
    steps = [kernel.invoke(id) for _ in range(4)]
    for step in steps:
        kernel.result(id, step, success=False, error=LONG)
    far = kernel.invoke(id, remote=True)
    for retryable in (True, False):
        engine.runners.result(JobResult(new_id(), id, far, False, error=LONG, retryable=retryable), "")
    kernel.decision = Decision("require_approval", "r", "ask")
    asked = kernel.invoke(id)
    engine.signals.send(id, "approval", {"approved": False, "reason": LONG})
    assert engine.store.events(id)[-2].step_id == asked
    assert sum(len(event.payload) for event in engine.store.events(id)) < 64_000
    assert max(map(len, engine.client.hvals(engine.keys.steps(id)))) < 64_000
    results = [data for event, data in kernel.mail(agent) if event == "tool.result"]
    assert [data["error"] for data in results] == [LONG] * 5


def test_refused_messages_leave_no_file(kernel: Kernel) -> None:
    """Long values from strangers, stale sessions and repeated messages are not stored."""
    engine, data = kernel.engine, "y" * 100_000
    _, id = kernel.working()
    far = kernel.invoke(id, remote=True, arguments={"a": data}, has_arguments=True, key="k")
    kernel.invoke(id, remote=True, arguments={"a": data}, has_arguments=True, key="k")
    kernel.invoke(id, arguments={"a": data}, has_arguments=True)
    kernel.decision = Decision("deny", "r", "no")
    kernel.intent(id, "invoke_tool", tool="t", remote=True, arguments=data, has_arguments=True)
    job = new_id()
    for retryable in (True, False):
        engine.runners.result(JobResult(new_id(), id, far, False, error=data, retryable=retryable), "")
    with contextlib.suppress(Conflict):
        engine.runners.result(JobResult(job, id, far, True, data=data), "")
    for session, step in ((new_id(), far), (kernel.session(id), far), (kernel.session(id), new_id())):
        with pytest.raises((Unauthorized, Conflict, NotFound)):
            kernel.intents.step_result(id, session, step, success=True, data=data, error="", caller="")
    with pytest.raises(Conflict):
        kernel.intent(id, "complete", output=data)
    with pytest.raises(NotFound):
        engine.signals.send(new_id(), "go", data)
    assert len(files(engine)) == 3, "the arguments of two calls, and the runner's last error"
    engine.cancel(id)
    engine.advance(10)
    engine.clock(retention=1).tick()
    assert engine.store.get(id) is None and files(engine) == []


def files(engine: Engine) -> list[Any]:
    assert isinstance(engine.files, DiskFiles)
    return [path for path in engine.files.directory.rglob("*") if path.is_file()]


def test_repeatedly_lost_agent_cannot_fill_the_log(kernel: Kernel) -> None:
    """Unpaid work is assigned again and again until its log is full; then it fails."""
    engine, id = kernel.engine, kernel.new()
    engine.client.rpush(engine.keys.log(id), *[b"1 output.chunk - 0 0 {}"] * (MOST_EVENTS - 4))
    kernel.connections.close(kernel.agent("a", "c1"))
    assert kernel.states(id) == ["pending"]
    kernel.connections.close(kernel.agent("a", "c2"))
    assert kernel.states(id) == ["failed"]
    assert engine.store.log_length(id) == MOST_EVENTS + 3 and engine.kinds(id)[-1] == "execution.failed"


def test_nothing_remains_under_unused_names(kernel: Kernel) -> None:
    """Once all connections are gone and their work is removed, no key holds their names."""
    engine = kernel.engine
    before: set[bytes] = set()
    for name in ("one", "two"):
        agents = [kernel.agent(name, consumer) for consumer in ("c1", "c2")]
        runner = kernel.runner(f"runner-{name}", "c1", f"tool-{name}")
        id = kernel.new(name)
        far = kernel.invoke(id, f"tool-{name}", remote=True)
        engine.runners.result(JobResult(new_id(), id, far, True), "")
        kernel.intent(id, "complete")
        for each in (*agents, runner):
            kernel.connections.close(each)
        engine.advance(10)
        engine.clock(retention=1).tick()
        assert engine.store.get(id) is None
        left = set(engine.client.keys("*"))
        fields = {
            field for key in (engine.keys.turns, engine.keys.busy) for field in engine.client.hkeys(key)
        }
        assert not fields and left == (before or left)
        assert not [field for field in engine.client.hkeys(engine.keys.stats) if b"mean_us" in field]
        before = left


def test_round_robin_position_is_kept(kernel: Kernel) -> None:
    """A consumer that leaves after each execution does not take the next ones from the others."""
    kernel.agent("a", "c2")
    took = []
    for _ in range(2):
        first = kernel.agent("a", "c1")
        id = kernel.new()
        took.append(kernel.store.fields(id, "worker")[0])
        kernel.intent(id, "complete")
        kernel.connections.close(first)
    assert took == ["c1", "c2"]


# Jobs of local functions


def test_job_deadline_holds_between_two_runs(kernel: Kernel) -> None:
    """Its process died before a runner came: the job keeps its deadline, and its runner gets no other job."""
    engine = kernel.engine
    taken = engine.running(agent="local")
    step = engine.begin(taken).text()
    assert engine.send_job(taken.id, taken.fence, step, 60 * SECOND) == "ok"
    engine.advance(6)
    assert engine.lapse(taken.id)[0] == "queued"
    runner = kernel.runner("r", "c1", "t")
    assignment = dict(kernel.mail(runner))["job.assigned"]
    assert assignment["deadline"] > iso(engine.now() + 50 * SECOND)
    other = kernel.new()
    kernel.agent()
    kernel.invoke(other, remote=True)
    assert kernel.mail(runner) == [], "it has a job"
    engine.runners.result(JobResult(assignment["id"], taken.id, step, True, data=1), "")
    assert [event for event, _ in kernel.mail(runner)] == ["job.assigned"]
    assert engine.begin(engine.take(taken.id)).answer == "succeeded"


def test_unapproved_step_is_not_started(kernel: Kernel) -> None:
    """A step is not started before its approval, whoever claims it is."""
    _, id = kernel.working()
    kernel.decision = Decision("require_approval", "r", "ask")
    step = kernel.invoke(id, remote=True)
    kernel.engine.runners.started(id, step, "r", "")
    assert "step.started" not in kernel.engine.kinds(id)
