"""Runners: dispatch, one job each, results, retries, tools, and the loss of a runner."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.kernel.client import Api, Sse
from tests.waiting import eventually


@dataclass
class RunnerSetup:
    """An execution with an agent and a runner, each at its own web process, and a tool unique to the test."""

    agents: Api
    callers: Api
    stream: Sse
    assignment: dict[str, Any]
    tool: str
    runner: str

    @property
    def id(self) -> str:
        return str(self.assignment["execution_id"])

    def invoke(self, arguments: Any = None) -> str:
        about = {"tool_id": self.tool, "arguments": arguments, "remote": True}
        return str(self.agents.accepted(self.assignment, "invoke_tool", **about)["step_id"])

    def done(self, job: dict[str, Any], **about: Any) -> None:
        answer = self.agents.job_result(self.runner, job, **{"success": True, **about})
        assert (answer.status, answer.body) == (200, {"status": "ok"})

    def ids_of(self, kind: str) -> list[str]:
        return [event["step_id"] for event in self.callers.events(self.id) if event["type"] == kind]


@pytest.fixture(name="setup")
def _setup(agents: Api, callers: Api) -> Iterator[RunnerSetup]:
    name = uuid.uuid4().hex[:8]
    stream = agents.agent(f"agent-{name}", "c1")
    callers.create(f"agent-{name}")
    assignment = stream.next("execution.assigned")
    yield RunnerSetup(agents, callers, stream, assignment, f"tool.{name}", f"runner-{name}")
    stream.close()


def test_event_log_of_a_remote_job(setup: RunnerSetup) -> None:
    """The job as the runner sees it, its events in the log, and the result at the agent."""
    runner = setup.callers.runner(setup.runner, "c1", "other", setup.tool)
    eventually(lambda: runner.comments)
    time.sleep(0.1)
    step = setup.invoke({"n": 1})
    job = runner.next("job.assigned")
    deadline = setup.callers.event(setup.id, "step.created")["payload"]["deadline"]
    assert {name: value for name, value in job.items() if name != "id"} == {
        "execution_id": setup.id,
        "step_id": step,
        "attempt": 1,
        "tool_id": setup.tool,
        "tool_version": 0,
        "arguments": {"n": 1},
        "deadline": deadline,
        "not_before": "0001-01-01T00:00:00Z",
    }
    path = f"/v0/runners/steps/{step}/started"
    about = {"execution_id": setup.id, "runner_id": setup.runner}
    for _ in range(2):
        assert setup.agents.ok("POST", path, about) == {"status": "ok"}
    setup.done(job, data=[1], started_at="2025-01-15T10:00:01Z", completed_at="2025-01-15T10:00:03.5Z")
    result = {"execution_id": setup.id, "step_id": step, "status": "succeeded", "result": [1]}
    assert setup.stream.next("tool.result") == result
    assert setup.callers.kinds(setup.id) == [
        "execution.created",
        "execution.started",
        "intent.accepted",
        "step.created",
        "step.dispatched",
        "step.started",
        "step.completed",
    ]
    dispatched = setup.callers.event(setup.id, "step.dispatched")
    assert dispatched["payload"] == {"runner_id": "", "job_id": job["id"], "deadline": deadline}
    assert setup.callers.event(setup.id, "step.started")["payload"] == {"runner_id": setup.runner}
    assert setup.agents.ok("POST", path, about) == {"status": "ok"}
    assert setup.callers.kinds(setup.id)[-1] == "step.completed"
    runner.close()


def test_job_waits_for_its_runner(setup: RunnerSetup) -> None:
    """The intent is accepted without a runner; the later dispatch names the runner that connected."""
    step = setup.invoke()
    runner = setup.callers.runner(setup.runner, "c1", setup.tool)
    job = runner.next("job.assigned")
    assert job["step_id"] == step
    assert setup.callers.event(setup.id, "step.dispatched")["payload"]["runner_id"] == setup.runner
    setup.done(job)
    runner.close()


@pytest.mark.parametrize("consumer", [None, "c1"])
def test_runner_gets_one_job_at_a_time_in_order(setup: RunnerSetup, consumer: str | None) -> None:
    """A runner gets its next job after its result, whether or not it sends its consumer id."""
    runner = setup.callers.runner(setup.runner, "c1", setup.tool)
    steps = [setup.invoke(n) for n in range(3)]
    about = {} if consumer is None else {"consumer_id": consumer}
    for n, step in enumerate(steps):
        job = runner.next("job.assigned")
        assert (job["step_id"], job["arguments"]) == (step, n)
        assert runner.quiet(0.1)
        # Neither the job's id nor the runner's is compared with the assignment.
        setup.agents.job_result("somebody", {**job, "id": step}, success=True, data=n, **about)
        assert setup.stream.next("tool.result")["result"] == n
    runner.close()


def test_jobs_are_dispatched_round_robin(setup: RunnerSetup) -> None:
    """Idle connections of all runners of a tool take turns."""
    runners = [setup.callers.runner(f"{setup.runner}-{n}", "c", setup.tool) for n in range(2)]
    time.sleep(0.2)
    for n in (0, 1, 0, 1):
        setup.invoke()
        setup.done(runners[n].next("job.assigned"))
    setup.invoke()
    setup.invoke()
    for runner in runners:
        setup.done(runner.next("job.assigned"))
        runner.close()


def test_retryable_failures_are_retried(setup: RunnerSetup) -> None:
    """After 2 s and 4 s; the agent sees only the last failure; a late result of an old try is ignored."""
    runner = setup.callers.runner(setup.runner, "c1", setup.tool)
    step = setup.invoke()
    jobs = []
    for attempt, pause in ((1, 0.0), (2, 2.0), (3, 4.0)):
        began = time.monotonic()
        job = runner.next("job.assigned")
        took = time.monotonic() - began
        assert job["attempt"] == attempt and job["step_id"] == step
        assert took >= pause, took
        if jobs:
            setup.done(jobs[0], success=False, error="late", retryable=True)
        jobs.append(job)
        setup.done(job, success=False, error=f"failure {attempt}", retryable=True)
    assert len({job["id"] for job in jobs}) == 3
    result = setup.stream.next("tool.result")
    assert result == {"execution_id": setup.id, "step_id": step, "status": "failed", "error": "failure 3"}
    kinds = [kind for kind in setup.callers.kinds(setup.id) if kind in ("step.failed", "step.retried")]
    assert kinds == ["step.failed", "step.retried"] * 2 + ["step.failed"]
    failures = [e["payload"] for e in setup.callers.events(setup.id) if e["type"] == "step.failed"]
    assert [failure["retryable"] for failure in failures] == [True, True, False]
    runner.close()


def test_final_failure_is_not_retried(setup: RunnerSetup) -> None:
    """One try; data sent with the failure reaches the agent."""
    runner = setup.callers.runner(setup.runner, "c1", setup.tool)
    setup.invoke()
    setup.done(runner.next("job.assigned"), success=False, error="no", data={"why": 1})
    result = setup.stream.next("tool.result")
    assert (result["status"], result["error"], result["result"]) == ("failed", "no", {"why": 1})
    runner.close()


def test_invalid_job_results_are_refused(setup: RunnerSetup) -> None:
    """Missing fields and bad times get 400, unknown steps 404, resolved ones 409; a repeated result 200."""
    runner = setup.callers.runner(setup.runner, "c1", setup.tool)
    step = setup.invoke()
    job = runner.next("job.assigned")
    path = f"/v0/runners/{setup.runner}/results"
    assert setup.agents.call("POST", path, {"job_id": job["id"]}).status == 400
    bad = setup.agents.job_result(setup.runner, job, success=True, started_at="yesterday")
    assert bad.status == 400
    unknown = setup.agents.job_result(setup.runner, {**job, "step_id": "s"}, success=True)
    assert (unknown.status, unknown.body["error"]) == (404, "not found: step s")
    nowhere = setup.agents.job_result(setup.runner, {**job, "execution_id": "x"}, success=True)
    assert nowhere.status == 404
    about = {"execution_id": setup.id, "runner_id": setup.runner}
    assert setup.agents.call("POST", "/v0/runners/steps/s/started", about).status == 404
    setup.done(job)
    setup.done(job)
    late = setup.agents.job_result("other", {**job, "id": "another"}, success=True)
    assert (late.status, late.body["error"]) == (409, f"step already resolved: step {step}")
    runner.close()


def test_lost_runners_job_is_redispatched(setup: RunnerSetup) -> None:
    """At once, under a new id; a late result of the lost runner still counts if it arrives first."""
    first = setup.agents.runner(setup.runner, "c1", setup.tool)
    step = setup.invoke()
    job = first.next("job.assigned")
    second = setup.callers.runner(f"{setup.runner}-2", "c1", setup.tool)
    eventually(lambda: second.comments)
    first.close()
    again = second.next("job.assigned")
    assert again["step_id"] == step and again["id"] != job["id"] and again["attempt"] == 1
    setup.done(job, data="late but true")
    assert setup.stream.next("tool.result")["result"] == "late but true"
    late = setup.agents.job_result(f"{setup.runner}-2", again, success=True)
    assert late.status == 409
    setup.invoke()
    setup.done(second.next("job.assigned"))
    second.close()


def test_job_fails_after_losing_four_runners(setup: RunnerSetup) -> None:
    """After the fourth lost runner the job is not dispatched again."""
    setup.invoke()
    for n in range(4):
        runner = setup.agents.runner(setup.runner, f"c{n}", setup.tool)
        runner.next("job.assigned")
        runner.close()
    result = setup.stream.next("tool.result")
    assert (result["status"], result["error"]) == ("failed", "the runner was lost too often")


def test_jobs_of_a_cancelled_execution_are_withdrawn(setup: RunnerSetup) -> None:
    """Waiting jobs are not dispatched; the result of a running job is refused, and its runner is free."""
    runner = setup.agents.runner(setup.runner, "c1", setup.tool)
    setup.invoke()
    setup.invoke()
    job = runner.next("job.assigned")
    setup.callers.ok("POST", f"/v0/executions/{setup.id}/cancel")
    assert runner.quiet(0.5)
    assert setup.agents.job_result(setup.runner, job, success=True).status == 409
    assert runner.quiet(0.3)
    setup.callers.create(setup.assignment["agent_id"])
    setup.assignment = setup.stream.next("execution.assigned")
    setup.invoke()
    setup.done(runner.next("job.assigned"))
    runner.close()


def test_runner_capabilities_can_be_replaced(setup: RunnerSetup) -> None:
    """The new list replaces the old one and triggers waiting jobs; unknown runners are no error."""
    runner = setup.agents.runner(setup.runner, "c1", "something.else")
    step = setup.invoke()
    assert runner.quiet(0.3)
    path = f"/v0/runners/{setup.runner}/capabilities"
    assert setup.callers.ok("POST", path, {"tools": [setup.tool]}) == {"status": "ok"}
    job = runner.next("job.assigned")
    assert job["step_id"] == step
    assert setup.callers.ok("POST", path, {}) == {"status": "ok"}
    setup.done(job)
    setup.invoke()
    assert runner.quiet(0.3)
    assert setup.callers.ok("POST", "/v0/runners/nobody/capabilities", {"tools": []}) == {"status": "ok"}
    assert setup.callers.call("POST", path, {"tools": "x"}).status == 400
    assert setup.callers.call("POST", path, {"tools": [1]}).status == 400
    runner.close()


def test_published_tools_are_listed(setup: RunnerSetup) -> None:
    """Schemas may precede the stream; a tool's newest publisher wins; schemas are removed with the runner."""
    one, other = setup.runner, f"{setup.runner}-2"

    def publish(runner: str, *tools: str) -> None:
        schemas = [
            {"id": tool, "description": f"by {runner}", "input_schema": {"type": "object"}} for tool in tools
        ]
        answer = setup.agents.call("POST", f"/v0/runners/{quote(runner)}/tools", {"tools": schemas})
        assert (answer.status, answer.raw) == (204, b"")

    def found(prefix: str) -> dict[str, str]:
        return {
            tool["id"]: tool["runner_id"] for tool in setup.callers.ok("GET", f"/v0/tools?prefix={prefix}")
        }

    base = setup.tool.replace(".", "-")
    publish(one, f"{base}_a", f"{base}.b", base, f"{base}other")
    assert found(base) == {f"{base}_a": one, f"{base}.b": one, base: one}
    publish(other, f"{base}_a")
    assert found(base)[f"{base}_a"] == other
    [tool] = setup.callers.ok("GET", f"/v0/tools?prefix={base}_a")
    assert set(tool) == {"id", "description", "input_schema", "runner_id", "registered_at"}
    runner = setup.agents.runner(other, "c1", f"{base}_a")
    eventually(lambda: runner.comments)
    time.sleep(0.1)
    runner.close()
    eventually(lambda: found(base)[f"{base}_a"] == one)
    assert setup.callers.call("DELETE", f"/v0/runners/{one}").status == 204
    assert found(base) == {}
    assert setup.callers.call("DELETE", f"/v0/runners/{one}").status == 404
    assert setup.callers.ok("GET", "/v0/tools?prefix=nothing-like-this") == []


def test_unregistered_runner_gets_no_more_jobs(setup: RunnerSetup) -> None:
    """Its stream stays open and its job may still finish."""
    runner = setup.agents.runner(setup.runner, "c1", setup.tool)
    setup.invoke()
    job = runner.next("job.assigned")
    assert setup.callers.call("DELETE", f"/v0/runners/{setup.runner}").status == 204
    setup.invoke()
    setup.done(job)
    assert runner.quiet(0.4) and not runner.closed.is_set()
    runner.close()


def test_one_runner_drains_twenty_jobs(setup: RunnerSetup) -> None:
    """Twenty jobs of one execution, one runner, two web processes: each job is done once."""
    runner = setup.callers.runner(setup.runner, "c1", setup.tool)
    steps = {setup.invoke(n) for n in range(20)}
    seen = set()
    for _ in range(20):
        job = runner.next("job.assigned")
        seen.add(job["step_id"])
        setup.done(job, data=job["arguments"])
    assert seen == steps
    results = {setup.stream.next("tool.result")["step_id"] for _ in range(20)}
    assert results == steps
    setup.agents.accepted(setup.assignment, "complete")
    runner.close()
