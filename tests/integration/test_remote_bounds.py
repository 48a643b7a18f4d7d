"""What strangers' names and texts may do to remote work, and how far it may grow."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.engine import SECOND, Crash, Engine
from tests.integration.test_remote_scripts import Kernel
from worker.delivery.files import DiskFiles
from worker.errors import Conflict, NotFound, Unauthorized
from worker.executions.events import iso
from worker.executions.policy import Decision
from worker.executions.runners import JobResult
from worker.executions.store import MOST_EVENTS
from worker.ids import new_id
from worker.queue.clock import Clock


@pytest.fixture(name="kernel")
def _kernel(engine: Engine) -> Kernel:
    return Kernel(engine)


def ticking(engine: Engine, **more: Any) -> Clock:
    """The clock as the work tree has it."""
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
def test_a_signals_name_is_not_taken_for_a_step(kernel: Kernel, kind: str) -> None:
    """Whatever a signal is called, the clock sees to the end of its execution, and removes it later."""
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


def test_a_local_functions_names_are_not_taken_for_steps(engine: Engine) -> None:
    """A step's key and a file's name may end in any word, beside a job of a runner."""

    def work(job: Any) -> None:
        job.file("annual job", b"x")
        job.once("the job", lambda: 1)
        raise Crash

    id = engine.agent(work)
    engine.crash(id)
    taken = engine.take(id)
    step = engine.begin(taken, key="a job")[1].decode()
    sent = [id, taken.fence, step, new_id(), "null", SECOND]
    assert engine.remote_store.local("send_job", id, [engine.keys.jobs("t")], sent) == b"ok"
    engine.cancel(id)
    ticking(engine).tick()
    assert not engine.client.exists(engine.keys.timers, engine.keys.jobs("t"))


def test_what_cannot_be_helped_keeps_nobody_waiting(engine: Engine) -> None:
    """An item or a chore that fails in any way is told of, and the others have their turn."""
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
    """An execution that waits for its agent, with a payment that may be settled for so long."""
    id, engine = kernel.new(), kernel.engine
    ends = engine.now() // SECOND + seconds
    payment = {"current": 1, "1 valid_before": ends, "1 state": "verified", "1 amount": 5, "1 payer": "p"}
    engine.client.hset(engine.keys.money(id), mapping=payment)
    engine.client.hset(engine.keys.record(id), mapping={"contract": "ref", "settle_margin": 60 * SECOND})
    return id


def test_no_agent_gets_work_that_could_not_be_settled(kernel: Kernel) -> None:
    """A payment that ends before a run and its settlement is let go; the work waits for another payment."""
    late, good = bought(kernel, 650), bought(kernel, 670)
    agent = kernel.agent()
    assert [data["execution_id"] for _, data in kernel.mail(agent)] == [good]
    found = kernel.engine.get(late)
    assert (found.state, found.phase, found.fence) == ("pending", "payment_due", 0)
    assert kernel.engine.kinds(late)[-1] == "payment.refused"
    assert kernel.engine.client.hget(kernel.engine.keys.money(late), "1 state") == b"released"
    ticking(kernel.engine).tick()
    assert kernel.mail(agent) == []


def test_the_window_is_looked_at_again_when_an_agent_was_lost(kernel: Kernel) -> None:
    """The second attempt is not begun when only the first one was in time."""
    id, first = bought(kernel, 700), kernel.agent("a", "c1")
    assert kernel.states(id) == ["running"]
    kernel.engine.advance(50)
    kernel.agent("a", "c2")
    kernel.connections.close(first)
    assert kernel.engine.get(id).phase == "payment_due"


# Growth


LONG = "x" * (1 << 20)


def test_long_errors_do_not_fill_the_log(kernel: Kernel) -> None:
    """An event tells a short form of what a tool, a runner or a person said; the agent gets all of it."""
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
    told = [data for event, data in kernel.mail(agent) if event == "tool.result"]
    assert [data["error"] for data in told] == [LONG] * 5


def test_what_is_refused_leaves_no_file(kernel: Kernel) -> None:
    """Long values of strangers, of stale sessions and of those who repeat themselves are kept by nobody."""
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
    assert len(files(engine)) == 2, "the arguments of the runner's job, and its last error"
    engine.cancel(id)
    engine.advance(10)
    engine.clock(retention=1).tick()
    assert engine.store.get(id) is None and files(engine) == []


def files(engine: Engine) -> list[Any]:
    assert isinstance(engine.files, DiskFiles)
    return [path for path in engine.files.directory.rglob("*") if path.is_file()]


def test_an_agent_that_is_lost_for_ever_fills_no_log(kernel: Kernel) -> None:
    """Work that nobody paid for is given out again and again, until its log is full; then it fails."""
    engine, id = kernel.engine, kernel.new()
    engine.client.rpush(engine.keys.log(id), *[b"1 output.chunk - 0 0 {}"] * (MOST_EVENTS - 4))
    kernel.connections.close(kernel.agent("a", "c1"))
    assert kernel.states(id) == ["pending"]
    kernel.connections.close(kernel.agent("a", "c2"))
    assert kernel.states(id) == ["failed"]
    assert engine.store.log_length(id) == MOST_EVENTS + 3 and engine.kinds(id)[-1] == "execution.failed"


def test_names_that_are_gone_leave_nothing(kernel: Kernel) -> None:
    """When everybody has left, and what they did is removed, the store holds nothing by their names."""
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


def test_the_turn_is_kept_as_long_as_somebody_is_there(kernel: Kernel) -> None:
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


def test_a_job_has_a_deadline_while_its_function_is_between_two_runs(kernel: Kernel) -> None:
    """Its process was lost before a runner came: the job has its time, and its runner no other job."""
    engine = kernel.engine
    taken = engine.running(agent="local")
    step = engine.begin(taken)[1].decode()
    sent = [taken.id, taken.fence, step, new_id(), "null", 60 * SECOND]
    assert engine.remote_store.local("send_job", taken.id, [engine.keys.jobs("t")], sent) == b"ok"
    engine.advance(6)
    assert engine.lapse(taken.id)[0] == "queued"
    runner = kernel.runner("r", "c1", "t")
    told = dict(kernel.mail(runner))["job.assigned"]
    assert told["deadline"] > iso(engine.now() + 50 * SECOND)
    other = kernel.new()
    kernel.agent()
    kernel.invoke(other, remote=True)
    assert kernel.mail(runner) == [], "it has a job"
    engine.runners.result(JobResult(told["id"], taken.id, step, True, data=1), "")
    assert [event for event, _ in kernel.mail(runner)] == ["job.assigned"]
    assert engine.begin(engine.take(taken.id))[0] == b"succeeded"


def test_nobody_begins_what_waits_for_approval(kernel: Kernel) -> None:
    """A step is not started before somebody allowed it, whoever says so."""
    _, id = kernel.working()
    kernel.decision = Decision("require_approval", "r", "ask")
    step = kernel.invoke(id, remote=True)
    kernel.engine.runners.started(id, step, "r", "")
    assert "step.started" not in kernel.engine.kinds(id)
