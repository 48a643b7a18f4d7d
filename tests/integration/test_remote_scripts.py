"""Connections, queues, jobs and waits, script by script, on a clock that the test moves."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.engine import ERROR, SECOND, Engine
from tests.fakes.restricted_scripts import RestrictedScripts
from worker.core.errors import Conflict, Forbidden, NotFound, Unauthorized, Unavailable
from worker.core.ids import new_id
from worker.core.states import Lane, Phase
from worker.files.store import DiskFiles
from worker.payments.money_store import HOOKS
from worker.policy.judge import Decision, PolicyCall
from worker.remote import store
from worker.remote.answers import ASK, WAIT_BEGIN, AskAnswer
from worker.remote.connections import Connections
from worker.remote.intent import Intent
from worker.remote.intents import Intents
from worker.remote.jobs import JobStore
from worker.remote.messages import Messages, history
from worker.remote.outcomes import RemoteResults
from worker.remote.runners import MOST_LOSSES, JobResult
from worker.remote.store import MOST_MESSAGES, Connection
from worker.store.scripts import ScriptCall, Scripts, Value

LEASE = 30 * SECOND
LIBRARIES = [*store.LIBRARIES, *HOOKS]


class Kernel:
    """The components of remote work around a test's engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.store = engine.remote_store
        self.jobs = JobStore(self.store)
        lost: dict[store.Kind, Callable[[Connection], None]] = {
            "agent": engine.assignment.lost,
            "runner": engine.runners.lost,
        }
        self.connections = Connections(self.store, lease_us=LEASE, lost=lost)
        self.decision = Decision("allow", "all", "")
        self.foresees = False
        self.intents = Intents(
            self.store,
            engine.runners,
            RemoteResults(engine.store, engine.catalog, engine.files, check=lambda schema, output: None),
            engine.files,
            decide=self._decide,
            foresee=lambda tool, arguments: self.decision if self.foresees else None,
            step_timeout_us=300 * SECOND,
        )
        self.messages = Messages(engine.store, self.store, engine.files)

    def _decide(self, call: PolicyCall) -> Decision:
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
        """The messages that would be written now."""
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
        """An agent and its assigned execution."""
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


def test_connection_lives_while_it_is_renewed(kernel: Kernel) -> None:
    """A renewed lease continues; an expired one cannot be renewed, and the clock removes it."""
    renewed, left = kernel.agent("a", "c1"), kernel.agent("a", "c2")
    for _ in range(3):
        kernel.engine.advance(20)
        assert left.epoch not in kernel.store.renew([renewed.epoch], LEASE)
    assert kernel.store.renew([renewed.epoch, left.epoch], LEASE) == [left.epoch]
    assert kernel.store.lapsed(kernel.engine.now()) == [left.epoch]
    kernel.connections.sweep(kernel.engine.now())
    assert kernel.store.lapsed(kernel.engine.now()) == []
    assert kernel.store.connections_of("agent", "a") == [renewed.epoch]
    assert kernel.store.connection(left.epoch) is None


def test_ended_connection_leaves_no_keys(kernel: Kernel) -> None:
    """However it ended, no key names it any more, and removing it again is harmless."""
    before = set(kernel.engine.client.keys())
    agent, runner = kernel.agent(), kernel.runner("r", "c", "t", "u")
    for connection in (agent, runner):
        kernel.connections.close(connection)
        kernel.connections.close(connection)
        kernel.connections.clear(connection.epoch)
    kernel.connections.sweep(kernel.engine.now())
    left = set(kernel.engine.client.keys()) - before
    assert left <= {kernel.engine.keys.turns.encode()}


def test_reconnecting_consumer_ends_its_older_connection(kernel: Kernel) -> None:
    """The older connection's mailbox is deleted, its executions are queued, and its stream ends."""
    old, id = kernel.working()
    new = kernel.connections.open("agent", "a", "c1")
    assert kernel.store.connections_of("agent", "a") == [new.epoch]
    assert not kernel.store.alive(old.epoch)
    assert kernel.engine.get(id).session == ""
    assert kernel.store.renew([old.epoch, new.epoch], LEASE) == [old.epoch]


def test_consumer_names_are_compared_exactly(kernel: Kernel) -> None:
    """A name with the same prefix is another consumer, as is one of another agent or kind."""
    connections = [
        kernel.connections.open("agent", "a", "c"),
        kernel.connections.open("agent", "a", "c1"),
        kernel.connections.open("agent", "a", "c\x01"),
        kernel.connections.open("agent", "a1", "c"),
        kernel.connections.open("runner", "a", "c"),
    ]
    assert kernel.store.renew([connection.epoch for connection in connections], LEASE) == []


def test_detached_connection_waits_for_its_consumer(kernel: Kernel) -> None:
    """It gets no new work and keeps its messages; the returning consumer resumes it."""
    connection, id = kernel.working()
    assert kernel.connections.hand_over(connection)
    waiting = kernel.new()
    assert kernel.states(id, waiting) == ["running", "pending"]
    kernel.result(id, kernel.invoke(id), data=1)
    back = kernel.connections.open("agent", "a", "c1")
    assert back.epoch == connection.epoch
    assert [event for event, _ in kernel.mail(back)] == ["tool.result"]
    kernel.engine.assignment.drain("a")
    assert kernel.states(id, waiting) == ["running", "running"]


def test_detached_connection_expires(kernel: Kernel) -> None:
    """After its lease it ends; a consumer that returns later gets a new one."""
    connection, id = kernel.working()
    kernel.connections.hand_over(connection)
    kernel.engine.advance(31)
    kernel.connections.sweep(kernel.engine.now())
    assert kernel.states(id) == ["pending"]
    assert kernel.agent("a", "c1").epoch != connection.epoch
    assert not kernel.connections.hand_over(connection)


def test_detached_runners_tools_are_kept(kernel: Kernel) -> None:
    """Neither the clock nor the end of another connection removes them while it may return."""
    runners = kernel.engine.runners

    def published() -> list[str]:
        return [tool["id"] for tool in runners.tools("")]

    runners.publish("r", [{"id": "t", "description": "", "input_schema": {}}])
    kernel.engine.advance(601)
    leaving, staying = kernel.runner("r", "c2"), kernel.runner("r", "c1")
    kernel.connections.hand_over(leaving)
    kernel.connections.close(staying)
    runners.heal([])
    assert published() == ["t"]
    assert kernel.runner("r", "c2").epoch == leaving.epoch
    kernel.connections.hand_over(leaving)
    kernel.engine.advance(31)
    kernel.connections.sweep(kernel.engine.now())
    assert published() == []


def test_full_mailbox_ends_its_connection(kernel: Kernel) -> None:
    """No single message is dropped: the connection ends, and its work goes to another."""
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


def test_assignments_use_half_of_a_mailbox(kernel: Kernel) -> None:
    """A long queue is assigned as mailboxes are read, to consumers with room."""
    ids = [kernel.new() for _ in range(MOST_MESSAGES)]
    first = kernel.agent("a", "c1")
    assert kernel.states(*ids).count("running") == MOST_MESSAGES // 2
    second = kernel.agent("a", "c2")
    assert kernel.states(*ids).count("running") == MOST_MESSAGES
    assert all(kernel.store.alive(each.epoch) for each in (first, second))


# Queues


def test_queue_keeps_its_order(kernel: Kernel) -> None:
    """Oldest first, including an execution that was released."""
    connection = kernel.agent()
    oldest = kernel.new()
    kernel.connections.close(connection)
    younger = [kernel.new() for _ in range(3)]
    back = kernel.agent("a", "c2")
    assert [message["execution_id"] for _, message in kernel.mail(back)] == [oldest, *younger]


def test_clock_queues_work_freed_elsewhere(kernel: Kernel) -> None:
    """Work released elsewhere, for instance by a verified payment, leaves a timer."""
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


def test_stalled_queue_is_drained_by_the_clock(kernel: Kernel) -> None:
    """The process that should have assigned the work died: the clock finds agent and execution."""
    id = kernel.new()
    kernel.connections.open("agent", "a", "c1")
    assert kernel.states(id) == ["pending"]
    kernel.engine.assignment.heal({"a", "nobody"})
    assert kernel.states(id) == ["running"]


def test_lost_connection_releases_its_executions(kernel: Kernel) -> None:
    """Running work restarts, blocked work stays blocked, ended and sealed work is unchanged."""
    connection = kernel.agent()
    running, blocked, ended = kernel.new(), kernel.new(), kernel.new()
    kernel.intent(blocked, "wait", signal_type="go")
    kernel.intent(ended, "complete")
    kernel.connections.close(connection)
    assert kernel.states(running, blocked, ended) == ["pending", "blocked", "completed"]
    assert kernel.engine.kinds(blocked)[-1] == "agent.timeout"
    assert kernel.engine.kinds(ended)[-1] == "execution.completed"
    again = kernel.agent("a", "c2")
    message = kernel.mail(again)
    assert [each["execution_id"] for _, each in message] == [running]
    assert kernel.engine.get(running).fence == 2


def test_paid_work_has_limited_attempts(kernel: Kernel) -> None:
    """A contract's execution ends when its attempts are used up; others restart without limit."""
    paid, free = (kernel.engine.new(agent="a", lane=Lane.REMOTE, attempts=2) for _ in range(2))
    kernel.engine.client.hset(kernel.engine.keys.record(paid), "contract", "ref")
    for id in (paid, free):
        kernel.engine.assignment.begin(id, "a")
    for n in range(4):
        kernel.connections.close(kernel.agent("a", f"c{n}"))
    assert kernel.states(paid, free) == ["failed", "pending"]
    assert kernel.engine.get(paid).error["code"] == "WORKER_CRASHED"


def test_agent_run_limit_is_enforced(kernel: Kernel) -> None:
    """Work that exceeds its capability's run limit ends, and the agent is notified."""
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
def test_execution_age_limit_is_enforced(kernel: Kernel, held: bool) -> None:
    """At the age limit the log has the protocol's message, whoever was working, and the agent is notified."""
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


def test_removed_execution_is_released_from_its_connection(kernel: Kernel) -> None:
    """Ids held without a record are released."""
    connection, id = kernel.working()
    kernel.engine.client.delete(kernel.engine.keys.record(id))
    kernel.connections.close(connection)
    assert kernel.store.connection(connection.epoch) is None


# Intents


def test_repeated_script_call_creates_one_step(kernel: Kernel) -> None:
    """The script may be sent twice with the same step: it writes once."""
    connection, id = kernel.working()
    step = kernel.invoke(id, key="k")
    assert kernel.invoke(id, key="k") == step
    with pytest.raises(Conflict, match="idempotency"):
        kernel.invoke(id, key="k", arguments=1, has_arguments=True)
    assert kernel.engine.kinds(id).count("step.created") == 1
    kernel.connections.close(connection)
    kernel.agent("a", "c2")
    # A new run is not answered with steps of an earlier one, whose results it never saw.
    assert kernel.invoke(id, key="k") != step


@pytest.mark.parametrize("foresees", [False, True])
@pytest.mark.parametrize("kind", ["allow", "deny", "require_approval"])
def test_calls_are_checked_however_they_are_decided(kernel: Kernel, foresees: bool, kind: Any) -> None:
    """Another agent's call, a repeat, one in a wrong session and one without a connection, as ever."""
    kernel.foresees, kernel.decision = foresees, Decision(kind, "all", "")
    connection, id = kernel.working()
    call = Intent(id, kernel.session(id), "invoke_tool", tool="t", key="k", caller="a")
    with pytest.raises(Forbidden, match="another agent"):
        kernel.intents.submit(dataclasses.replace(call, caller="b"))
    with pytest.raises(Unauthorized, match="session"):
        kernel.intents.submit(dataclasses.replace(call, session=new_id()))
    length = kernel.engine.store.log_length(id)
    first = kernel.intents.submit(call)
    assert kernel.intents.submit(call) == first
    assert (json.loads(first).get("error") is None) is (kind != "deny")
    assert kernel.engine.store.log_length(id) > length
    with pytest.raises(Conflict, match="another intent"):
        kernel.intents.submit(dataclasses.replace(call, tool="u"))
    kernel.store.end(connection, only_lapsed=False)
    with pytest.raises(Unauthorized, match="session"):
        kernel.intents.submit(call)


@pytest.mark.parametrize("foresees", [False, True])
def test_long_arguments_are_stored_only_for_a_call_that_may_be_made(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, foresees: bool
) -> None:
    """A repeat gets its first answer and a lost session its refusal, also while no file can be stored."""
    kernel.foresees = foresees
    _, id = kernel.working()
    session = kernel.session(id)
    call = Intent(id, session, "invoke_tool", "t", {"x": "y" * 10_000}, has_arguments=True, key="k")
    first = kernel.intents.submit(call)

    def put(files: DiskFiles, *args: Any, **about: Any) -> Any:
        raise Unavailable("no file can be stored")

    monkeypatch.setattr(DiskFiles, "put", put)
    assert kernel.intents.submit(call) == first
    with pytest.raises(Unauthorized, match="session"):
        kernel.intents.submit(dataclasses.replace(call, session=new_id()))


def test_full_log_refuses_new_steps(kernel: Kernel) -> None:
    """Intents are refused; the final event still fits."""
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


def test_history_is_bounded(kernel: Kernel) -> None:
    """The last fifty finished steps, at most half a megabyte."""
    _, id = kernel.working()
    for n in range(60):
        kernel.result(id, kernel.invoke(id, f"t{n}"), data="x" * 20_000)
    steps = history(kernel.engine.store.events(id, 0, 10_000), lambda step, name: None)
    assert [step["tool_id"] for step in steps] == [f"t{n}" for n in range(60 - len(steps), 60)]
    assert len(steps) == 26
    small = [event for event in kernel.engine.store.events(id, 0, 10_000) if event.kind == "step.created"]
    assert history(small, lambda step, name: None) == []


def test_history_includes_long_results(kernel: Kernel) -> None:
    """A result only described in its event is in the next run's history; one over the bound is left out."""
    connection, id = kernel.working()
    texts = ["z" * 600_000, "short", "\u00e9" * 100_000]
    for n, text in enumerate(texts):
        kernel.result(id, kernel.invoke(id, f"t{n}"), data={"text": text})
    kernel.connections.close(connection)
    [(event, message)] = kernel.mail(kernel.agent("a", "c2"))
    assert event == "execution.assigned"
    assert [(step["tool_id"], step["result"]) for step in message["history"]] == [
        (f"t{n}", {"text": texts[n]}) for n in (1, 2)
    ]


# Jobs


def heal(kernel: Kernel, runner: Connection) -> None:
    """The clock's periodic repair."""
    found = kernel.store.connection(runner.epoch)
    assert found is not None
    kernel.engine.runners.heal([found])


def job(kernel: Kernel, runner: Connection) -> dict[str, Any]:
    [(event, message)] = kernel.mail(runner)
    assert event == "job.assigned"
    return dict(message)


def done(kernel: Kernel, message: dict[str, Any], **about: Any) -> None:
    result = JobResult(
        message["id"], message["execution_id"], message["step_id"], **{"success": True, **about}
    )
    kernel.engine.runners.result(result, "")


def test_a_new_job_does_not_go_before_one_that_waits(kernel: Kernel) -> None:
    """A runner that offers a tool, and has not asked for work yet, may be found by the next job."""
    kernel.agent()
    id = kernel.new()
    first = kernel.invoke(id, remote=True)
    runner = kernel.connections.open("runner", "r", "c1")
    kernel.jobs.offer(runner, [], ["t"], '["t"]')
    second = kernel.invoke(id, remote=True)
    for step in (first, second):
        message = job(kernel, runner)
        assert message["step_id"] == step
        done(kernel, message)


def test_a_new_job_waits_where_a_runner_is_spoiled(kernel: Kernel) -> None:
    """One that seems idle but whose connection has no record gets nothing, and keeps nobody."""
    kernel.agent()
    id = kernel.new()
    kernel.invoke(id, remote=True)
    runner = kernel.connections.open("runner", "r", "c1")
    kernel.jobs.offer(runner, [], ["t"], '["t"]')
    kernel.engine.client.delete(kernel.engine.keys.connection(runner.epoch))
    kernel.invoke(id, remote=True)
    assert kernel.mail(runner) == []


def test_a_new_job_goes_to_the_next_runner(kernel: Kernel) -> None:
    """Where two runners have just come, both get work."""
    kernel.agent()
    id = kernel.new()
    first = kernel.invoke(id, remote=True)
    runners = [kernel.connections.open("runner", f"r{n}", "c1") for n in range(2)]
    for each in runners:
        kernel.jobs.offer(each, [], ["t"], '["t"]')
    second = kernel.invoke(id, remote=True)
    assert {job(kernel, each)["step_id"] for each in runners} == {first, second}


def test_silent_runner_is_freed_after_the_deadline(kernel: Kernel) -> None:
    """A runner with a live connection gets its next job when the old one has timed out."""
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
        kernel.store.renew([runner.epoch, agent.epoch], LEASE)
    heal(kernel, runner)
    assert job(kernel, runner)["execution_id"] == other


def test_retry_delays_grow_to_their_limit(kernel: Kernel) -> None:
    """Two seconds, four, at most thirty; a try is not assigned before it is due."""
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
            kernel.store.renew([runner.epoch], LEASE)
        kernel.engine.runners.fire_retries(kernel.engine.now())
        kernel.engine.runners.fire_retries(kernel.engine.now())
        assert kernel.engine.client.zcard(kernel.engine.keys.retries) == 0


def test_step_fails_after_losing_too_many_runners(kernel: Kernel) -> None:
    """Then the step has failed, and the agent is notified."""
    agent = kernel.agent()
    id = kernel.new()
    step = kernel.invoke(id, remote=True)
    for n in range(MOST_LOSSES + 1):
        runner = kernel.runner("r", f"c{n}")
        assert job(kernel, runner)["step_id"] == step
        kernel.connections.close(runner)
    message = dict(kernel.mail(agent))
    assert message["tool.result"]["error"] == "the runner was lost too often"
    assert kernel.engine.client.hlen(kernel.engine.keys.busy) == 0


def test_result_reaches_the_current_session(kernel: Kernel) -> None:
    """The runner's result goes to the session that has the execution by then, or to none."""
    connection, id = kernel.working()
    runner = kernel.runner()
    kernel.invoke(id, remote=True)
    message = job(kernel, runner)
    kernel.connections.close(connection)
    kernel.agent("a", "c2")
    with pytest.raises(Conflict, match="step"):
        done(kernel, message)
    assert kernel.jobs.job_of(runner.epoch) is None


def test_runner_of_a_removed_step_is_freed(kernel: Kernel) -> None:
    """The execution was removed meanwhile: the runner's report is 404, and it gets the next job."""
    _, id = kernel.working()
    runner = kernel.runner()
    kernel.invoke(id, remote=True)
    message = job(kernel, runner)
    keys = kernel.engine.keys
    kernel.engine.client.delete(keys.record(id), keys.log(id), keys.steps(id))
    with pytest.raises(NotFound):
        done(kernel, message)
    assert kernel.jobs.job_of(runner.epoch) is None


def test_runner_cannot_start_an_unapproved_step(kernel: Kernel) -> None:
    """A runner's report that it has started such a step is accepted but not recorded."""
    _, id = kernel.working()
    kernel.decision = Decision("require_approval", "ask", "")
    step = kernel.invoke(id, remote=True)
    kernel.engine.runners.started(id, step, "r", "")
    assert "step.started" not in kernel.engine.kinds(id)
    kernel.engine.signals.send(id, "approval", {"approved": True})
    kernel.engine.runners.started(id, step, "r", "")
    kernel.engine.runners.started(id, step, "r", "")
    assert kernel.engine.kinds(id).count("step.started") == 1


def test_jobs_end_with_their_execution(kernel: Kernel) -> None:
    """After its end no job queue names it."""
    _, id = kernel.working()
    kernel.invoke(id, remote=True)
    kernel.invoke(id, "u", remote=True)
    assert kernel.engine.client.zcard(kernel.engine.keys.jobs("t")) == 1
    kernel.engine.cancel(id)
    kernel.engine.assignment.attend(id)
    assert not kernel.engine.client.exists(kernel.engine.keys.jobs("t"), kernel.engine.keys.jobs("u"))


# Waits of local functions


def test_wait_expires_before_its_payment(engine: Engine) -> None:
    """After the wait, run and settlement must still fit into the authorization; otherwise it expires."""
    id = engine.agent(lambda job: job.wait("go"), time_limit=600)
    valid_before = engine.now() // SECOND + 800
    engine.client.hset(engine.keys.money(id), mapping={"current": "1", "1 valid_before": valid_before})
    engine.client.hset(engine.keys.money(id), mapping={"1 state": "verified", "1 amount": 1, "1 payer": "p"})
    assert engine.runner().run(id)
    until = engine.stored(id, "wait_until")
    assert until == (valid_before - 60 - 600) * SECOND
    engine.advance(141)
    assert engine.store.hint(id) == ("queued", "queue")
    assert engine.runner().run(id)
    assert engine.get(id).error["code"] == "WAIT_EXPIRED"


def test_wait_without_remaining_time_expires_at_once(engine: Engine) -> None:
    """The execution would end before a full run could follow."""
    id = engine.agent(lambda job: job.wait("go"))
    engine.client.hset(engine.keys.record(id), "run_limit", 2 * 3600 * SECOND)
    assert engine.runner().run(id)
    assert engine.get(id).error["code"] == "WAIT_EXPIRED"


def test_wait_uses_no_attempt_and_takes_a_new_fence(engine: Engine) -> None:
    """An execution with one attempt continues after any number of waits."""
    id = engine.agent(lambda job: [job.wait("go") for _ in range(4)], attempts=1)
    for n in range(4):
        assert engine.runner().run(id)
        found = engine.get(id)
        assert (found.state, found.attempt, found.fence) == ("blocked", 0, n + 1)
        engine.executions.signal(id, "go", n)
    assert engine.runner().run(id)
    assert engine.executions.output(engine.get(id)) == [0, 1, 2, 3]


def test_changed_version_resumes_only_if_declared(engine: Engine) -> None:
    """After a wait the function's version must be unchanged, unless it declares that it resumes."""
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


def test_changed_wait_under_a_key_is_not_replayable(engine: Engine) -> None:
    """A function that waits for something else under the same key cannot be replayed."""
    words = iter(["go", "stop"])
    id = engine.agent(lambda job: job.wait(next(words), key="k"))
    assert engine.runner().run(id)
    engine.executions.signal(id, "go", None)
    assert engine.runner().run(id)
    assert engine.get(id).error["code"] == "NOT_REPLAYABLE"


def test_swallowed_suspension_stops_the_run(engine: Engine) -> None:
    """An author who catches everything cannot continue: later calls stop, and the result is refused."""

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


def test_approved_step_keeps_its_first_attempt(engine: Engine) -> None:
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


def test_signals_are_matched_by_type(engine: Engine) -> None:
    """Each wait takes the oldest unused signal of its own type, whatever else arrived."""
    id = engine.agent(lambda job: [job.wait("a"), job.wait("b"), job.wait("a")])
    for kind, payload in (("b", 1), ("a", 2), ("c", 3), ("a", 4)):
        engine.executions.signal(id, kind, payload)
    assert engine.runner().run(id)
    assert engine.executions.output(engine.get(id)) == [2, 1, 4]


# All of these scripts


def test_remote_scripts_touch_only_declared_keys(client: redis.Redis, tmp_path: Path) -> None:
    """A full sequence of agents, runners, losses, approvals and waits, under declared keys only."""
    engine = Engine(client, DiskFiles(tmp_path / "files"))
    scripts = RestrictedScripts(client, store.LUA, LIBRARIES)
    engine.remote_store.scripts = scripts
    kernel = Kernel(engine)
    lost = kernel.agent("a", "c0")
    id = kernel.new()
    kernel.connections.close(lost)
    agent = kernel.agent("a", "c1")
    assert kernel.connections.hand_over(agent)
    agent = kernel.agent("a", "c1")
    kernel.store.renew([agent.epoch], LEASE)
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
    engine.assignment.report_end(ended)
    local = engine.running(agent="b")
    _wait(engine, local.id)
    engine.signals.send(local.id, "go", 1)
    taken = engine.take(local.id)
    assert _ask(engine, local.id, taken.fence) == "blocked"
    third = engine.running(agent="b")
    begun = engine.begin(third).text()
    assert engine.send_job(third.id, 1, begun, SECOND) == "ok"
    ours = {path.stem for path in store.LUA.glob("*.lua")}
    assert ours - {"_remote"} <= scripts.ran


def _wait(engine: Engine, id: str) -> None:
    engine.remote_store.scripts.run(
        WAIT_BEGIN,
        id=id,
        fence=1,
        key="go#1",
        kind="go",
        limit=SECOND * 60,
        margin=0,
        accepted="{}",
        blocked="{}",
        resumed="{}",
        expired="{}",
        most_events=10_000,
        most_bytes=4 << 20,
    )


def _ask(engine: Engine, id: str, fence: int) -> AskAnswer:
    return engine.remote_store.scripts.run(
        ASK,
        id=id,
        fence=fence,
        key="k",
        step=new_id(),
        tool="t",
        digest="d",
        attempts=1,
        timeout=SECOND,
        created='{"deadline":',
        required="{}",
        blocked="{}",
        runner="",
        arguments="null",
        most_events=10_000,
        most_bytes=4 << 20,
    ).answer


def _spoil(engine: Engine, key: str, kind: str) -> None:
    engine.client.delete(key)
    if kind == "list":
        engine.client.hset(key, "spoilt", "1")
    else:
        engine.client.rpush(key, "spoilt")


Act = Callable[[Kernel, dict[str, Any]], Any]
ACTS: dict[str, Act] = {
    "connect": lambda k, s: k.store.connect(Connection(new_id(), "agent", "a", "c1"), LEASE),
    "hand_over": lambda k, s: k.store.hand_over(s["agent"], LEASE),
    "end_connection": lambda k, s: k.store.end(s["agent"], only_lapsed=False),
    "place": lambda k, s: k.store.place(s["waiting"], "nobody"),
    "drop": lambda k, s: k.store.drop(s["id"], "a", s["agent"].epoch, ERROR),
    "report_end": lambda k, s: k.store.report_end(
        s["id"], "a", k.session(s["id"]), b"x", [], [("t", s["step"])]
    ),
    "invoke": lambda k, s: k.invoke(s["id"], "t", remote=True),
    "complete": lambda k, s: k.intent(s["idle"], "complete"),
    "wait": lambda k, s: k.intent(s["id"], "wait", signal_type="go"),
    "step_result": lambda k, s: k.result(s["id"], s["step"]),
    "signal": lambda k, s: k.engine.signals.send(s["id"], "go", 1),
    "offer": lambda k, s: k.jobs.offer(s["runner"], ["t"], ["u"], "[]"),
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
def test_wrong_key_type_stops_a_remote_script_before_it_writes(engine: Engine, name: str) -> None:
    """With any one of its keys of the wrong type, a script fails without writing."""
    seen: list[str] = []

    class Spy(Scripts):
        def call(self, script: str, /, **arguments: Value) -> ScriptCall:
            call = super().call(script, **arguments)
            if script == name:
                seen[:] = call.keys
            return call

    kernel, state = _prepare(engine)
    plain = kernel.store.scripts
    kernel.store.scripts = Spy(engine.client, engine.keys, store.LUA, libraries=LIBRARIES, test_clock=True)
    ACTS[name](kernel, state)
    # A mailbox that is deleted may be of any type.
    places = [n for n, key in enumerate(seen) if not (name == "end_connection" and ":mail:" in key)]
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
    """Changes the type of one key just before the script runs."""

    def __init__(self, engine: Engine, name: str, number: int) -> None:
        super().__init__(engine.client, engine.keys, store.LUA, libraries=LIBRARIES, test_clock=True)
        self._engine, self._name, self._number = engine, name, number
        self.before: Any = None
        self.key = ""

    def call(self, script: str, /, **arguments: Value) -> ScriptCall:
        call = super().call(script, **arguments)
        if script == self._name:
            self.key = call.keys[self._number]
            a_list = any(part in self.key for part in (":log:", ":mail:", ":express", ":journal"))
            _spoil(self._engine, self.key, "list" if a_list else "other")
            self.before = self._engine.whole()
        return call


def test_every_script_has_a_header() -> None:
    """Every script header states its purpose, keys, arguments and result."""
    for path in store.LUA.glob("*.lua"):
        if not path.stem.startswith("_"):
            head = path.read_text().split("\n\n")[0]
            results_named = "-- answers" in head or "-- returns" in head
            assert head.startswith("-- ") and "-- keys" in head and "-- args" in head and results_named, (
                path.name
            )
