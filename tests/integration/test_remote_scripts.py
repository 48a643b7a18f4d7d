"""Connections, lines, jobs and waits, script by script, on a clock that the test moves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.engine import ERROR, SECOND, Engine
from tests.fakes.fenced import Fenced
from worker.delivery.files import DiskFiles
from worker.errors import Conflict, NotFound, Unauthorized
from worker.executions import remote_store
from worker.executions.connections import Connections
from worker.executions.intents import Intent, Intents
from worker.executions.messages import Messages, history
from worker.executions.outcomes import Outcomes
from worker.executions.policy import Call, Decision
from worker.executions.remote_store import MOST_MESSAGES, Connection
from worker.executions.runners import MOST_LOSSES, JobResult
from worker.executions.scripts import Scripts
from worker.executions.states import Lane, Phase
from worker.ids import new_id

LEASE = 30 * SECOND
LUA = Path(remote_store.__file__).parent / "lua"


class Kernel:
    """The rooms of remote work around a test's engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.store = engine.remote_store
        lost: dict[remote_store.Kind, Callable[[Connection], None]] = {
            "agent": engine.assignment.lost,
            "runner": engine.runners.lost,
        }
        self.connections = Connections(self.store, lease_us=LEASE, lost=lost)
        self.decision = Decision("allow", "all", "")
        self.intents = Intents(
            self.store,
            engine.runners,
            Outcomes(engine.store, engine.catalog, engine.files, check=lambda schema, output: None),
            engine.files,
            decide=self._decide,
            step_timeout_us=300 * SECOND,
        )
        self.messages = Messages(engine.store, self.store, engine.files)

    def _decide(self, call: Call) -> Decision:
        return self.decision

    def agent(self, name: str = "a", consumer: str = "c1") -> Connection:
        connection = self.connections.open("agent", name, consumer)
        self.engine.assignment.drain(name)
        return connection

    def runner(self, name: str = "r", consumer: str = "c1", *tools: str) -> Connection:
        connection = self.connections.open("runner", name, consumer)
        self.engine.runners.update(connection, tools or ("t",))
        return connection

    def mail(self, connection: Connection) -> list[tuple[str, Any]]:
        """What would be written out now."""
        items = self.store.read_mail(connection.epoch, 0, 1000)
        self.store.drop_mail(connection.epoch, len(items))
        read = map(self.messages.read, items)
        return [(message[0], json.loads(message[1])) for message in read if message is not None]

    def new(self, agent: str = "a", **changes: Any) -> str:
        """An execution for a remote agent."""
        id = self.engine.new(agent=agent, lane=Lane.REMOTE, **changes)
        self.engine.assignment.begin(id, agent)
        return id

    def session(self, id: str) -> str:
        return self.store.fields(id, "session")[0]

    def intent(self, id: str, type: str, **about: Any) -> dict[str, Any]:
        answer = self.intents.submit(Intent(id, self.session(id), type, **about))
        found: dict[str, Any] = json.loads(answer)
        return found

    def invoke(self, id: str, tool: str = "t", **about: Any) -> str:
        return str(self.intent(id, "invoke_tool", tool=tool, **about)["step_id"])

    def result(self, id: str, step: str, *, success: bool = True, data: Any = None, error: str = "") -> None:
        self.intents.step_result(
            id, self.session(id), step, success=success, data=data, error=error, caller=""
        )

    def working(self) -> tuple[Connection, str]:
        """An agent, and an execution that it has."""
        connection = self.agent()
        id = self.new()
        assert [event for event, _ in self.mail(connection)] == ["execution.assigned"]
        return connection, id

    def states(self, *ids: str) -> list[str]:
        return [self.engine.get(id).state for id in ids]


@pytest.fixture(name="kernel")
def _kernel(engine: Engine) -> Kernel:
    return Kernel(engine)


# Connections


def test_a_connection_lives_as_long_as_it_is_kept(kernel: Kernel) -> None:
    """A lease that is renewed goes on; one that lapsed cannot be renewed, and the clock clears it away."""
    kept, left = kernel.agent("a", "c1"), kernel.agent("a", "c2")
    for _ in range(3):
        kernel.engine.advance(20)
        assert left.epoch not in kernel.store.keep([kept.epoch], LEASE)
    assert kernel.store.keep([kept.epoch, left.epoch], LEASE) == [left.epoch]
    assert kernel.store.lapsed(kernel.engine.now()) == [left.epoch]
    kernel.connections.sweep(kernel.engine.now())
    assert kernel.store.lapsed(kernel.engine.now()) == []
    assert kernel.store.connections_of("agent", "a") == [kept.epoch]
    assert kernel.store.connection(left.epoch) is None


def test_nothing_is_left_of_a_connection(kernel: Kernel) -> None:
    """However it ended, no key names it any more, and clearing it again is harmless."""
    before = set(kernel.engine.client.keys())
    agent, runner = kernel.agent(), kernel.runner("r", "c", "t", "u")
    for connection in (agent, runner):
        kernel.connections.close(connection)
        kernel.connections.close(connection)
        kernel.connections.clear(connection.epoch)
    kernel.connections.sweep(kernel.engine.now())
    left = set(kernel.engine.client.keys()) - before
    assert left <= {kernel.engine.keys.turns.encode()}


def test_the_same_consumer_ends_its_older_connection(kernel: Kernel) -> None:
    """Its mailbox is gone, its executions wait, and a stream of it would notice."""
    old, id = kernel.working()
    new = kernel.connections.open("agent", "a", "c1")
    assert kernel.store.connections_of("agent", "a") == [new.epoch]
    assert not kernel.store.alive(old.epoch)
    assert kernel.engine.get(id).session == ""
    assert kernel.store.keep([old.epoch, new.epoch], LEASE) == [old.epoch]


def test_consumers_are_told_apart_exactly(kernel: Kernel) -> None:
    """One whose name begins like another's is another, and so is one of another agent or kind."""
    connections = [
        kernel.connections.open("agent", "a", "c"),
        kernel.connections.open("agent", "a", "c1"),
        kernel.connections.open("agent", "a", "c\x01"),
        kernel.connections.open("agent", "a1", "c"),
        kernel.connections.open("runner", "a", "c"),
    ]
    assert kernel.store.keep([connection.epoch for connection in connections], LEASE) == []


def test_a_parted_connection_waits_for_its_consumer(kernel: Kernel) -> None:
    """It is given no work; what it is told is kept; the consumer that comes back goes on with it."""
    connection, id = kernel.working()
    assert kernel.connections.part(connection)
    waiting = kernel.new()
    assert kernel.states(id, waiting) == ["running", "pending"]
    kernel.result(id, kernel.invoke(id), data=1)
    back = kernel.connections.open("agent", "a", "c1")
    assert back.epoch == connection.epoch
    assert [event for event, _ in kernel.mail(back)] == ["tool.result"]
    kernel.engine.assignment.drain("a")
    assert kernel.states(id, waiting) == ["running", "running"]


def test_a_parted_connection_is_not_waited_for_for_ever(kernel: Kernel) -> None:
    """After a lease it has ended; the consumer that comes later gets a new one."""
    connection, id = kernel.working()
    kernel.connections.part(connection)
    kernel.engine.advance(31)
    kernel.connections.sweep(kernel.engine.now())
    assert kernel.states(id) == ["pending"]
    assert kernel.agent("a", "c1").epoch != connection.epoch
    assert not kernel.connections.part(connection)


def test_the_tools_of_a_runner_outlive_its_web_process(kernel: Kernel) -> None:
    """Neither the clock nor the end of another connection forgets them while it may come back."""
    runners = kernel.engine.runners

    def published() -> list[str]:
        return [tool["id"] for tool in runners.tools("")]

    runners.publish("r", [{"id": "t", "description": "", "input_schema": {}}])
    kernel.engine.advance(601)
    leaving, staying = kernel.runner("r", "c2"), kernel.runner("r", "c1")
    kernel.connections.part(leaving)
    kernel.connections.close(staying)
    runners.heal([])
    assert published() == ["t"]
    assert kernel.runner("r", "c2").epoch == leaving.epoch
    kernel.connections.part(leaving)
    kernel.engine.advance(31)
    kernel.connections.sweep(kernel.engine.now())
    assert published() == []


def test_a_mailbox_that_overflows_ends_its_connection(kernel: Kernel) -> None:
    """Nothing is dropped from it: it is gone as a whole, and the work goes to somebody else."""
    connection, id = kernel.working()
    for n in range(MOST_MESSAGES):
        kernel.engine.executions.signal(id, "news", n)
    assert kernel.store.alive(connection.epoch)
    kernel.engine.executions.signal(id, "news", "too much")
    assert not kernel.store.alive(connection.epoch)
    assert kernel.store.read_mail(connection.epoch, 0, 1) == []
    with pytest.raises(Unauthorized, match="session"):
        kernel.intent(id, "complete")
    other = kernel.agent("a", "c2")
    kernel.connections.sweep(kernel.engine.now())
    assert [event for event, _ in kernel.mail(other)] == ["execution.assigned"]
    assert kernel.engine.kinds(id).count("signal.received") == MOST_MESSAGES + 1


def test_work_leaves_half_of_a_mailbox_free(kernel: Kernel) -> None:
    """A long line is given out as it is read, to whoever has room."""
    ids = [kernel.new() for _ in range(MOST_MESSAGES)]
    first = kernel.agent("a", "c1")
    assert kernel.states(*ids).count("running") == MOST_MESSAGES // 2
    second = kernel.agent("a", "c2")
    assert kernel.states(*ids).count("running") == MOST_MESSAGES
    assert all(kernel.store.alive(each.epoch) for each in (first, second))


# Lines


def test_a_line_keeps_its_order_whoever_looks(kernel: Kernel) -> None:
    """Oldest first, also for one that was given back."""
    connection = kernel.agent()
    oldest = kernel.new()
    kernel.connections.close(connection)
    younger = [kernel.new() for _ in range(3)]
    back = kernel.agent("a", "c2")
    assert [told["execution_id"] for _, told in kernel.mail(back)] == [oldest, *younger]


def test_what_nobody_put_into_its_line_the_clock_does(kernel: Kernel) -> None:
    """Work that was set free elsewhere, as a verified payment does it, leaves a timer behind."""
    connection = kernel.agent()
    id = kernel.engine.new(agent="a", lane=Lane.REMOTE, phase=Phase.VERIFYING)
    assert kernel.store.length("a") == 0
    kernel.engine.client.hset(kernel.engine.keys.record(id), "phase", "working")
    kernel.engine.client.zadd(kernel.engine.keys.timers, {id: kernel.engine.now()})
    assert kernel.states(id) == ["pending"]
    clock = kernel.engine.clock()
    clock._attend = kernel.engine.assignment.attend
    clock.tick()
    assert kernel.states(id) == ["running"]
    assert [event for event, _ in kernel.mail(connection)] == ["execution.assigned"]
    assert kernel.engine.client.zcard(kernel.engine.keys.timers) == 0


def test_a_line_that_nobody_drains_is_healed(kernel: Kernel) -> None:
    """Whoever should have given out the work died: the clock's look finds agent and execution."""
    id = kernel.new()
    kernel.connections.open("agent", "a", "c1")
    assert kernel.states(id) == ["pending"]
    kernel.engine.assignment.heal({"a", "nobody"})
    assert kernel.states(id) == ["running"]


def test_each_lost_connection_gives_back_what_it_held(kernel: Kernel) -> None:
    """Running work begins again, blocked work stays blocked, ended and sealed work is left alone."""
    connection = kernel.agent()
    running, blocked, ended = kernel.new(), kernel.new(), kernel.new()
    kernel.intent(blocked, "wait", signal_type="go")
    kernel.intent(ended, "complete")
    kernel.connections.close(connection)
    assert kernel.states(running, blocked, ended) == ["pending", "blocked", "completed"]
    assert kernel.engine.kinds(blocked)[-1] == "agent.timeout"
    assert kernel.engine.kinds(ended)[-1] == "execution.completed"
    again = kernel.agent("a", "c2")
    told = kernel.mail(again)
    assert [each["execution_id"] for _, each in told] == [running]
    assert kernel.engine.get(running).fence == 2


def test_paid_work_is_not_begun_for_ever(kernel: Kernel) -> None:
    """An execution of a contract ends when its tries are used up; others are begun as often as it takes."""
    paid, free = (kernel.engine.new(agent="a", lane=Lane.REMOTE, attempts=2) for _ in range(2))
    kernel.engine.client.hset(kernel.engine.keys.record(paid), "contract", "ref")
    for id in (paid, free):
        kernel.engine.assignment.begin(id, "a")
    for n in range(4):
        kernel.connections.close(kernel.agent("a", f"c{n}"))
    assert kernel.states(paid, free) == ["failed", "pending"]
    assert kernel.engine.get(paid).error["code"] == "WORKER_CRASHED"


def test_an_agent_has_its_time_limit(kernel: Kernel) -> None:
    """Work that runs longer than its capability allows ends, and the agent is told."""
    connection = kernel.agent()
    id = kernel.new(run_limit_us=10 * SECOND)
    kernel.mail(connection)
    clock = kernel.engine.clock()
    clock._attend = kernel.engine.assignment.attend
    kernel.engine.advance(9)
    clock.tick()
    assert kernel.states(id) == ["running"]
    kernel.engine.advance(2)
    clock.tick()
    assert kernel.states(id) == ["failed"]
    assert kernel.engine.get(id).error["code"] == "EXECUTION_TIMEOUT"
    clock.tick()
    assert [event for event, _ in kernel.mail(connection)] == ["execution.cancelled"]
    assert kernel.store.held(connection.epoch) == {}


@pytest.mark.parametrize("held", [True, False])
def test_an_execution_has_its_whole_life(kernel: Kernel, held: bool) -> None:
    """At its end the log says so in the protocol's words, whoever was at work, and the agent is told."""
    id = kernel.new(timeout_us=10 * SECOND, run_limit_us=10 * SECOND)
    connection = kernel.agent()
    kernel.mail(connection)
    step = kernel.invoke(id, remote=True)
    if not held:
        kernel.intent(id, "wait", signal_type="go")
    clock = kernel.engine.clock()
    clock._attend = kernel.engine.assignment.attend
    kernel.engine.advance(11)
    clock.tick()
    log = kernel.engine.store.events(id)[-2:]
    assert [(event.kind, event.step_id) for event in log] == [
        ("step.cancelled", step),
        ("execution.failed", ""),
    ]
    assert log[0].data() == {"reason": "execution timed out"}
    assert log[1].data()["error"] == "execution exceeded maximum duration"
    assert "agent.timeout" not in kernel.engine.kinds(id)
    clock.tick()
    assert [event for event, _ in kernel.mail(connection)] == ["tool.result", "execution.cancelled"]


def test_an_execution_that_is_gone_does_not_keep_a_connection(kernel: Kernel) -> None:
    """Held ids without a record are let go."""
    connection, id = kernel.working()
    kernel.engine.client.delete(kernel.engine.keys.record(id))
    kernel.connections.close(connection)
    assert kernel.store.connection(connection.epoch) is None


# Intents


def test_a_repeated_call_makes_one_step(kernel: Kernel) -> None:
    """The script itself may be sent twice with the same step: it writes once."""
    connection, id = kernel.working()
    step = kernel.invoke(id, key="k")
    assert kernel.invoke(id, key="k") == step
    with pytest.raises(Conflict, match="idempotency"):
        kernel.invoke(id, key="k", arguments=1, has_arguments=True)
    assert kernel.engine.kinds(id).count("step.created") == 1
    kernel.connections.close(connection)
    kernel.agent("a", "c2")
    # Another run is not answered with the steps of a former one, whose results it never saw.
    assert kernel.invoke(id, key="k") != step


def test_a_full_log_takes_no_more_steps(kernel: Kernel) -> None:
    """Intents are refused, the end has room."""
    _, id = kernel.working()
    kernel.engine.client.hset(kernel.engine.keys.record(id), "log_bytes", 4 << 20)
    before = kernel.engine.kinds(id)
    for about in ({"type": "invoke_tool", "tool": "t"}, {"type": "wait", "signal_type": "x"}):
        with pytest.raises(Conflict, match="full"):
            kernel.intent(id, **about)
    kernel.decision = Decision("deny", "r", "no")
    with pytest.raises(Conflict, match="full"):
        kernel.intent(id, "invoke_tool", tool="t")
    assert kernel.engine.kinds(id) == before
    assert kernel.intent(id, "complete") == {"accepted": True}


def test_the_history_is_bounded(kernel: Kernel) -> None:
    """The last fifty finished steps, and no more than half a megabyte of them."""
    _, id = kernel.working()
    for n in range(60):
        kernel.result(id, kernel.invoke(id, f"t{n}"), data="x" * 20_000)
    steps = history(kernel.engine.store.events(id, 0, 10_000), lambda step: None)
    assert [step["tool_id"] for step in steps] == [f"t{n}" for n in range(60 - len(steps), 60)]
    assert len(steps) == 26
    small = [event for event in kernel.engine.store.events(id, 0, 10_000) if event.kind == "step.created"]
    assert history(small, lambda step: None) == []


def test_the_history_has_long_results_whole(kernel: Kernel) -> None:
    """What an event only describes, the next run gets; one that is beyond the bound is not told at all."""
    connection, id = kernel.working()
    texts = ["z" * 600_000, "short", "\u00e9" * 100_000]
    for n, text in enumerate(texts):
        kernel.result(id, kernel.invoke(id, f"t{n}"), data={"text": text})
    kernel.connections.close(connection)
    [(event, told)] = kernel.mail(kernel.agent("a", "c2"))
    assert event == "execution.assigned"
    assert [(step["tool_id"], step["result"]) for step in told["history"]] == [
        (f"t{n}", {"text": texts[n]}) for n in (1, 2)
    ]


# Jobs


def heal(kernel: Kernel, runner: Connection) -> None:
    """What the clock does now and then."""
    found = kernel.store.connection(runner.epoch)
    assert found is not None
    kernel.engine.runners.heal([found])


def job(kernel: Kernel, runner: Connection) -> dict[str, Any]:
    [(event, told)] = kernel.mail(runner)
    assert event == "job.assigned"
    return dict(told)


def done(kernel: Kernel, told: dict[str, Any], **about: Any) -> None:
    result = JobResult(told["id"], told["execution_id"], told["step_id"], **{"success": True, **about})
    kernel.engine.runners.result(result, "")


def test_a_runner_that_never_answers_is_free_after_the_deadline(kernel: Kernel) -> None:
    """Its connection may be alive: it is given the next job when the old one is over."""
    agent = kernel.agent()
    id = kernel.new()
    runner = kernel.runner()
    first = kernel.invoke(id, remote=True)
    assert job(kernel, runner)["step_id"] == first
    other = kernel.new()
    kernel.invoke(other, remote=True)
    heal(kernel, runner)
    assert kernel.mail(runner) == []
    for _ in range(11):
        kernel.engine.advance(28)
        kernel.store.keep([runner.epoch, agent.epoch], LEASE)
    heal(kernel, runner)
    assert job(kernel, runner)["execution_id"] == other


def test_pauses_between_tries_grow_to_their_limit(kernel: Kernel) -> None:
    """Two seconds, four, and never more than thirty; a try is not given out before its time."""
    kernel.agent()
    id = kernel.new()
    runner = kernel.runner()
    step = kernel.invoke(id, remote=True)
    kernel.engine.client.hset(kernel.engine.keys.steps(id), f"{step} attempts", 9)
    for pause in (2, 4, 8, 16, 30, 30):
        done(kernel, job(kernel, runner), success=False, error="x", retryable=True)
        at = kernel.engine.now()
        [(_, due)] = kernel.engine.client.zrange(kernel.engine.keys.retries, 0, -1, withscores=True)
        assert pause - 1 < (due - at) / SECOND <= pause
        heal(kernel, runner)
        assert kernel.mail(runner) == []
        for _ in range(2):
            kernel.engine.advance(pause / 2)
            kernel.store.keep([runner.epoch], LEASE)
        kernel.engine.runners.fire_retries(kernel.engine.now())
        kernel.engine.runners.fire_retries(kernel.engine.now())
        assert kernel.engine.client.zcard(kernel.engine.keys.retries) == 0


def test_a_step_loses_its_runner_only_so_often(kernel: Kernel) -> None:
    """Then it has failed, and the agent is told."""
    agent = kernel.agent()
    id = kernel.new()
    step = kernel.invoke(id, remote=True)
    for n in range(MOST_LOSSES + 1):
        runner = kernel.runner("r", f"c{n}")
        assert job(kernel, runner)["step_id"] == step
        kernel.connections.close(runner)
    told = dict(kernel.mail(agent))
    assert told["tool.result"]["error"] == "the runner was lost too often"
    assert kernel.engine.client.hlen(kernel.engine.keys.busy) == 0


def test_a_result_that_meets_another_session_finds_it(kernel: Kernel) -> None:
    """The runner's answer reaches whoever has the execution by then, or nobody."""
    connection, id = kernel.working()
    runner = kernel.runner()
    kernel.invoke(id, remote=True)
    told = job(kernel, runner)
    kernel.connections.close(connection)
    kernel.agent("a", "c2")
    with pytest.raises(Conflict, match="step"):
        done(kernel, told)
    assert kernel.store.job_of(runner.epoch) is None


def test_an_unknown_steps_runner_is_freed(kernel: Kernel) -> None:
    """The execution was removed under a runner: its word is 404, and it gets the next job."""
    _, id = kernel.working()
    runner = kernel.runner()
    kernel.invoke(id, remote=True)
    told = job(kernel, runner)
    kernel.engine.client.delete(*kernel.engine.keys.transition(id)[:3])
    with pytest.raises(NotFound):
        done(kernel, told)
    assert kernel.store.job_of(runner.epoch) is None


def test_nobody_begins_what_waits_for_approval(kernel: Kernel) -> None:
    """A runner's word that it has begun such a step is taken, and not written down."""
    _, id = kernel.working()
    kernel.decision = Decision("require_approval", "ask", "")
    step = kernel.invoke(id, remote=True)
    kernel.engine.runners.started(id, step, "r", "")
    assert "step.started" not in kernel.engine.kinds(id)
    kernel.engine.signals.send(id, "approval", {"approved": True})
    kernel.engine.runners.started(id, step, "r", "")
    kernel.engine.runners.started(id, step, "r", "")
    assert kernel.engine.kinds(id).count("step.started") == 1


def test_jobs_go_with_their_execution(kernel: Kernel) -> None:
    """After its end no line of jobs names it."""
    _, id = kernel.working()
    kernel.invoke(id, remote=True)
    kernel.invoke(id, "u", remote=True)
    assert kernel.engine.client.zcard(kernel.engine.keys.jobs("t")) == 1
    kernel.engine.cancel(id)
    kernel.engine.assignment.attend(id)
    assert not kernel.engine.client.exists(kernel.engine.keys.jobs("t"), kernel.engine.keys.jobs("u"))


# Waits of local functions


def test_a_wait_ends_before_its_payment_does(engine: Engine) -> None:
    """After the wait a run and the settlement must still fit into the authorization; else it expires."""
    id = engine.agent(lambda job: job.wait("go"), time_limit=600)
    valid_before = engine.now() // SECOND + 800
    engine.client.hset(engine.keys.money(id), mapping={"current": "1", "1 valid_before": valid_before})
    engine.client.hset(engine.keys.money(id), mapping={"1 state": "verified", "1 amount": 1, "1 payer": "p"})
    assert engine.runner().run(id)
    until = int(engine.get(id).raw["wait_until"])
    assert until == (valid_before - 60 - 600) * SECOND
    engine.advance(141)
    assert engine.store.hint(id) == ("queued", "queue")
    assert engine.runner().run(id)
    assert engine.get(id).error["code"] == "WAIT_EXPIRED"


def test_a_wait_for_which_no_time_is_left_expires_at_once(engine: Engine) -> None:
    """The execution would end before a whole run could follow."""
    id = engine.agent(lambda job: job.wait("go"))
    engine.client.hset(engine.keys.record(id), "run_limit", 2 * 3600 * SECOND)
    assert engine.runner().run(id)
    assert engine.get(id).error["code"] == "WAIT_EXPIRED"


def test_a_wait_uses_no_attempt_and_takes_a_new_fence(engine: Engine) -> None:
    """However often it waits, an execution with one attempt goes on."""
    id = engine.agent(lambda job: [job.wait("go") for _ in range(4)], attempts=1)
    for n in range(4):
        assert engine.runner().run(id)
        found = engine.get(id)
        assert (found.state, found.attempt, found.fence) == ("blocked", 0, n + 1)
        engine.executions.signal(id, "go", n)
    assert engine.runner().run(id)
    assert engine.executions.output(engine.get(id)) == [0, 1, 2, 3]


def test_another_version_goes_on_only_if_it_says_so(engine: Engine) -> None:
    """After a wait the function must be the one that waited, unless it declares that it resumes."""
    for resumes, state in ((False, "failed"), (True, "completed")):
        id = engine.agent(lambda job: job.wait("go"))
        engine.client.hset(engine.keys.record(id), "version", "1")
        assert engine.runner().run(id)
        engine.executions.signal(id, "go", None)
        engine.registry.capabilities.pop("a")
        engine.registry.agent("a", version="2", resumes=resumes)(lambda job: job.wait("go"))
        assert engine.runner().run(id)
        assert engine.get(id).state == state
        if not resumes:
            assert engine.get(id).error["code"] == "NOT_REPLAYABLE"


def test_another_wait_under_a_key_cannot_be_replayed(engine: Engine) -> None:
    """A function that waits for something else under the same key has changed under its own record."""
    words = iter(["go", "stop"])
    id = engine.agent(lambda job: job.wait(next(words), key="k"))
    assert engine.runner().run(id)
    engine.executions.signal(id, "go", None)
    assert engine.runner().run(id)
    assert engine.get(id).error["code"] == "NOT_REPLAYABLE"


def test_a_swallowed_suspension_does_no_harm(engine: Engine) -> None:
    """An author who catches everything cannot go on: whatever is called next stops, the end is not taken."""

    def stubborn(job: Any) -> str:
        with contextlib.suppress(BaseException):
            job.wait("go")
        return "went on"

    id = engine.agent(stubborn)
    assert engine.runner().run(id)
    assert engine.get(id).state == "blocked"
    engine.executions.signal(id, "go", None)
    assert engine.runner().run(id)
    assert engine.executions.output(engine.get(id)) == "went on"


def test_an_approved_step_keeps_its_first_attempt(engine: Engine) -> None:
    """The run after the approval is the step's first try, not its second."""
    attempts = []

    @engine.registry.tool("t")
    def tool(job: Any) -> int:
        attempts.append(job.attempt)
        return 5

    engine.decide = lambda call: Decision("require_approval", "r", "ask", timeout_ms=7_000)
    id = engine.agent(lambda job: job.tool("t"))
    assert engine.runner().run(id)
    assert engine.client.zcard(engine.keys.step_deadlines) == 0
    engine.executions.signal(id, "approval", {"approved": True})
    assert engine.runner().run(id)
    assert engine.executions.output(engine.get(id)) == 5
    assert attempts == [1] and "step.retried" not in engine.kinds(id)


def test_signals_of_many_kinds_do_not_mix(engine: Engine) -> None:
    """Each wait takes the oldest unused signal of its own type, whatever else came."""
    id = engine.agent(lambda job: [job.wait("a"), job.wait("b"), job.wait("a")])
    for kind, payload in (("b", 1), ("a", 2), ("c", 3), ("a", 4)):
        engine.executions.signal(id, kind, payload)
    assert engine.runner().run(id)
    assert engine.executions.output(engine.get(id)) == [2, 1, 4]


# What holds for all of these scripts


def test_no_remote_script_touches_a_key_it_was_not_given(client: redis.Redis, tmp_path: Path) -> None:
    """A whole life with agents, runners, losses, approvals and waits, under declared keys only."""
    engine = Engine(client, DiskFiles(tmp_path / "files"))
    scripts = Fenced(client, also=[LUA / "_remote.lua"])
    engine.remote_store.scripts = scripts
    kernel = Kernel(engine)
    lost = kernel.agent("a", "c0")
    id = kernel.new()
    kernel.connections.close(lost)
    agent = kernel.agent("a", "c1")
    assert kernel.connections.part(agent)
    agent = kernel.agent("a", "c1")
    kernel.store.keep([agent.epoch], LEASE)
    kernel.result(id, kernel.invoke(id))
    runner, other = kernel.runner("r", "c1"), kernel.runner("r", "c2")
    step = kernel.invoke(id, remote=True)
    engine.runners.started(id, step, "r", "")
    kernel.connections.close(runner)
    done(kernel, job(kernel, other))
    kernel.decision = Decision("deny", "r", "no")
    kernel.intent(id, "invoke_tool", tool="t")
    kernel.decision = Decision("require_approval", "r", "ask")
    kernel.invoke(id)
    engine.signals.send(id, "approval", {"approved": False})
    kernel.intent(id, "wait", signal_type="go")
    engine.signals.send(id, "go", 1)
    kernel.intent(id, "complete")
    ended = kernel.new()
    engine.cancel(ended)
    engine.assignment.tidy(ended)
    local = engine.running(agent="b")
    engine.remote_store.local("wait_begin", local.id, [], _wait(local.id))
    engine.signals.send(local.id, "go", 1)
    taken = engine.take(local.id)
    asked = [
        local.id,
        taken.fence,
        "k",
        new_id(),
        "t",
        "d",
        1,
        SECOND,
        '{"deadline":',
        "{}",
        "{}",
        "",
        "null",
    ]
    assert engine.remote_store.local("ask", local.id, [], [*asked, 10_000, 4 << 20]) == b"blocked"
    third = engine.running(agent="b")
    begun = engine.begin(third)[1].decode()
    sent = [third.id, 1, begun, new_id(), "null", SECOND]
    assert engine.remote_store.local("send_job", third.id, [engine.keys.jobs("t")], sent) == b"ok"
    ours = {path.stem for path in LUA.glob("*.lua") if _is_remote(path)}
    assert ours - {"_remote"} <= scripts.ran


def _wait(id: str) -> list[Any]:
    return [id, 1, "go#1", "go", SECOND * 60, 0, "{}", "{}", "{}", "{}", 10_000, 4 << 20]


def _is_remote(path: Path) -> bool:
    """Whether the script needs what _remote.lua defines."""
    names = ("alive(", "post(", "cut(", "typed(", "refusal(", "stand_still(", "next_after(", "due_by(")
    return any(name in path.read_text() for name in names)


def _spoil(engine: Engine, key: str, kind: str) -> None:
    engine.client.delete(key)
    if kind == "list":
        engine.client.hset(key, "spoilt", "1")
    else:
        engine.client.rpush(key, "spoilt")


Act = Callable[[Kernel, dict[str, Any]], Any]
ACTS: dict[str, Act] = {
    "connect": lambda k, s: k.store.connect(Connection(new_id(), "agent", "a", "c1"), LEASE),
    "part": lambda k, s: k.store.part(s["agent"], LEASE),
    "hang_up": lambda k, s: k.store.hang_up(s["agent"], only_lapsed=False),
    "place": lambda k, s: k.store.place(s["waiting"], "nobody"),
    "drop": lambda k, s: k.store.drop(s["id"], "a", s["agent"].epoch, ERROR),
    "tidy": lambda k, s: k.store.tidy(s["id"], "a", k.session(s["id"]), b"x", [], [("t", s["step"])]),
    "invoke": lambda k, s: k.invoke(s["id"], "t", remote=True),
    "complete": lambda k, s: k.intent(s["idle"], "complete"),
    "wait": lambda k, s: k.intent(s["id"], "wait", signal_type="go"),
    "step_result": lambda k, s: k.result(s["id"], s["step"]),
    "signal": lambda k, s: k.engine.signals.send(s["id"], "go", 1),
    "offer": lambda k, s: k.store.offer(s["runner"], ["t"], ["u"], "[]"),
}


def _prepare(engine: Engine) -> tuple[Kernel, dict[str, Any]]:
    kernel = Kernel(engine)
    agent, id = kernel.working()
    idle = kernel.new()
    waiting = kernel.new("nobody")
    step = kernel.invoke(id)
    runner = kernel.runner()
    return kernel, {
        "agent": agent,
        "id": id,
        "idle": idle,
        "waiting": waiting,
        "step": step,
        "runner": runner,
    }


@pytest.mark.parametrize("name", ACTS)
def test_a_key_of_a_wrong_type_stops_a_remote_script_before_it_writes(engine: Engine, name: str) -> None:
    """Whichever of its keys is spoilt, a script fails and has written nothing at all."""
    seen: list[str] = []

    class Spy(Scripts):
        def __call__(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
            if script == name:
                seen[:] = keys
            return super().__call__(script, keys, args)

    kernel, state = _prepare(engine)
    plain = kernel.store.scripts
    kernel.store.scripts = Spy(engine.client, test_clock=engine.keys.test_clock, also=[LUA / "_remote.lua"])
    ACTS[name](kernel, state)
    # A mailbox that is thrown away may be of any type.
    places = [n for n, key in enumerate(seen) if not (name == "hang_up" and ":mail:" in key)]
    assert len(places) >= 3
    for number in places:
        engine.client.flushall()
        kernel.store.scripts = plain
        kernel, state = _prepare(engine)
        spoiler = _Spoiler(engine, name, number)
        kernel.store.scripts = spoiler
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            ACTS[name](kernel, state)
        assert engine.whole() == spoiler.before, spoiler.key
    kernel.store.scripts = plain


class _Spoiler(Scripts):
    """Spoils one key just before the script runs."""

    def __init__(self, engine: Engine, name: str, number: int) -> None:
        super().__init__(engine.client, test_clock=engine.keys.test_clock, also=[LUA / "_remote.lua"])
        self._engine, self._name, self._number = engine, name, number
        self.before: Any = None
        self.key = ""

    def __call__(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        if script == self._name:
            self.key = keys[self._number]
            a_list = any(part in self.key for part in (":log:", ":mail:", ":express", ":ledger:", ":journal"))
            _spoil(self._engine, self.key, "list" if a_list else "other")
            self.before = self._engine.whole()
        return super().__call__(script, keys, args)


def test_a_scripts_header_says_what_it_takes() -> None:
    """Every script begins with what it does, its keys, its arguments and its result."""
    for path in LUA.glob("*.lua"):
        if not path.stem.startswith("_") and _is_remote(path):
            head = path.read_text().split("\n\n")[0]
            assert head.startswith("-- ") and "-- KEYS" in head and "-- Result" in head, path.name
