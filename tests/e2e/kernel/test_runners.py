"""Runners: dispatch, one job each, results, retries, tools, and what happens when one is lost."""

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
class Bench:
    """An execution with an agent, at a web process each, and a tool that nobody else offers."""

    agents: Api
    callers: Api
    stream: Sse
    told: dict[str, Any]
    tool: str
    runner: str

    @property
    def id(self) -> str:
        return str(self.told["execution_id"])

    def invoke(self, arguments: Any = None) -> str:
        about = {"tool_id": self.tool, "arguments": arguments, "remote": True}
        return str(self.agents.accepted(self.told, "invoke_tool", **about)["step_id"])

    def done(self, job: dict[str, Any], **about: Any) -> None:
        answer = self.agents.job_result(self.runner, job, **{"success": True, **about})
        assert (answer.status, answer.body) == (200, {"status": "ok"})

    def ids_of(self, kind: str) -> list[str]:
        return [event["step_id"] for event in self.callers.events(self.id) if event["type"] == kind]


@pytest.fixture(name="bench")
def _bench(agents: Api, callers: Api) -> Iterator[Bench]:
    name = uuid.uuid4().hex[:8]
    stream = agents.agent(f"agent-{name}", "c1")
    callers.create(f"agent-{name}")
    told = stream.next("execution.assigned")
    yield Bench(agents, callers, stream, told, f"tool.{name}", f"runner-{name}")
    stream.close()


def test_a_job_in_full(bench: Bench) -> None:
    """The job as the runner sees it, the trail in the log, and the result at the agent."""
    runner = bench.callers.runner(bench.runner, "c1", "other", bench.tool)
    eventually(lambda: runner.comments)
    time.sleep(0.1)
    step = bench.invoke({"n": 1})
    job = runner.next("job.assigned")
    deadline = bench.callers.event(bench.id, "step.created")["payload"]["deadline"]
    assert {name: value for name, value in job.items() if name != "id"} == {
        "execution_id": bench.id,
        "step_id": step,
        "attempt": 1,
        "tool_id": bench.tool,
        "tool_version": 0,
        "arguments": {"n": 1},
        "deadline": deadline,
        "not_before": "0001-01-01T00:00:00Z",
    }
    path = f"/v0/runners/steps/{step}/started"
    about = {"execution_id": bench.id, "runner_id": bench.runner}
    for _ in range(2):
        assert bench.agents.ok("POST", path, about) == {"status": "ok"}
    bench.done(job, data=[1], started_at="2025-01-15T10:00:01Z", completed_at="2025-01-15T10:00:03.5Z")
    result = {"execution_id": bench.id, "step_id": step, "status": "succeeded", "result": [1]}
    assert bench.stream.next("tool.result") == result
    assert bench.callers.kinds(bench.id) == [
        "execution.created",
        "execution.started",
        "intent.accepted",
        "step.created",
        "step.dispatched",
        "step.started",
        "step.completed",
    ]
    dispatched = bench.callers.event(bench.id, "step.dispatched")
    assert dispatched["payload"] == {"runner_id": "", "job_id": job["id"], "deadline": deadline}
    assert bench.callers.event(bench.id, "step.started")["payload"] == {"runner_id": bench.runner}
    assert bench.agents.ok("POST", path, about) == {"status": "ok"}
    assert bench.callers.kinds(bench.id)[-1] == "step.completed"
    runner.close()


def test_a_job_waits_for_its_runner(bench: Bench) -> None:
    """The intent is accepted without a runner; the dispatch that follows names the one that came."""
    step = bench.invoke()
    runner = bench.callers.runner(bench.runner, "c1", bench.tool)
    job = runner.next("job.assigned")
    assert job["step_id"] == step
    assert bench.callers.event(bench.id, "step.dispatched")["payload"]["runner_id"] == bench.runner
    bench.done(job)
    runner.close()


@pytest.mark.parametrize("consumer", [None, "c1"])
def test_one_job_at_a_time_in_their_order(bench: Bench, consumer: str | None) -> None:
    """A runner gets its next job with its result, whether or not it says which connection it is."""
    runner = bench.callers.runner(bench.runner, "c1", bench.tool)
    steps = [bench.invoke(n) for n in range(3)]
    about = {} if consumer is None else {"consumer_id": consumer}
    for n, step in enumerate(steps):
        job = runner.next("job.assigned")
        assert (job["step_id"], job["arguments"]) == (step, n)
        assert runner.quiet(0.1)
        # Neither the job's id nor the runner's is held against what was assigned.
        bench.agents.job_result("somebody", {**job, "id": step}, success=True, data=n, **about)
        assert bench.stream.next("tool.result")["result"] == n
    runner.close()


def test_runners_take_turns(bench: Bench) -> None:
    """Idle connections of all runners of a tool, each in its turn."""
    runners = [bench.callers.runner(f"{bench.runner}-{n}", "c", bench.tool) for n in range(2)]
    time.sleep(0.2)
    for n in (0, 1, 0, 1):
        bench.invoke()
        bench.done(runners[n].next("job.assigned"))
    bench.invoke()
    bench.invoke()
    for runner in runners:
        bench.done(runner.next("job.assigned"))
        runner.close()


def test_failures_that_pass_are_tried_again(bench: Bench) -> None:
    """After 2 s and 4 s, the agent hears only of the last one; a late word on an old try changes nothing."""
    runner = bench.callers.runner(bench.runner, "c1", bench.tool)
    step = bench.invoke()
    jobs = []
    for attempt, pause in ((1, 0.0), (2, 2.0), (3, 4.0)):
        began = time.monotonic()
        job = runner.next("job.assigned")
        took = time.monotonic() - began
        assert job["attempt"] == attempt and job["step_id"] == step
        assert took >= pause, took
        if jobs:
            bench.done(jobs[0], success=False, error="late", retryable=True)
        jobs.append(job)
        bench.done(job, success=False, error=f"failure {attempt}", retryable=True)
    assert len({job["id"] for job in jobs}) == 3
    result = bench.stream.next("tool.result")
    assert result == {"execution_id": bench.id, "step_id": step, "status": "failed", "error": "failure 3"}
    kinds = [kind for kind in bench.callers.kinds(bench.id) if kind in ("step.failed", "step.retried")]
    assert kinds == ["step.failed", "step.retried"] * 2 + ["step.failed"]
    failures = [e["payload"] for e in bench.callers.events(bench.id) if e["type"] == "step.failed"]
    assert [failure["retryable"] for failure in failures] == [True, True, False]
    runner.close()


def test_a_failure_that_does_not_pass_is_final(bench: Bench) -> None:
    """One try, and data that came with the failure reaches the agent."""
    runner = bench.callers.runner(bench.runner, "c1", bench.tool)
    bench.invoke()
    bench.done(runner.next("job.assigned"), success=False, error="no", data={"why": 1})
    result = bench.stream.next("tool.result")
    assert (result["status"], result["error"], result["result"]) == ("failed", "no", {"why": 1})
    runner.close()


def test_results_are_refused_where_they_do_not_fit(bench: Bench) -> None:
    """Missing fields and bad times are 400, unknown steps 404, resolved ones 409, a retry of one is 200."""
    runner = bench.callers.runner(bench.runner, "c1", bench.tool)
    step = bench.invoke()
    job = runner.next("job.assigned")
    path = f"/v0/runners/{bench.runner}/results"
    assert bench.agents.call("POST", path, {"job_id": job["id"]}).status == 400
    bad = bench.agents.job_result(bench.runner, job, success=True, started_at="yesterday")
    assert bad.status == 400
    unknown = bench.agents.job_result(bench.runner, {**job, "step_id": "s"}, success=True)
    assert (unknown.status, unknown.body["error"]) == (404, "not found: step s")
    nowhere = bench.agents.job_result(bench.runner, {**job, "execution_id": "x"}, success=True)
    assert nowhere.status == 404
    about = {"execution_id": bench.id, "runner_id": bench.runner}
    assert bench.agents.call("POST", "/v0/runners/steps/s/started", about).status == 404
    bench.done(job)
    bench.done(job)
    late = bench.agents.job_result("other", {**job, "id": "another"}, success=True)
    assert (late.status, late.body["error"]) == (409, f"step already resolved: step {step}")
    runner.close()


def test_a_lost_runners_job_goes_to_another(bench: Bench) -> None:
    """At once, under a new id; what the lost one says later is the result all the same, if it is first."""
    first = bench.agents.runner(bench.runner, "c1", bench.tool)
    step = bench.invoke()
    job = first.next("job.assigned")
    second = bench.callers.runner(f"{bench.runner}-2", "c1", bench.tool)
    eventually(lambda: second.comments)
    first.close()
    again = second.next("job.assigned")
    assert again["step_id"] == step and again["id"] != job["id"] and again["attempt"] == 1
    bench.done(job, data="late but true")
    assert bench.stream.next("tool.result")["result"] == "late but true"
    late = bench.agents.job_result(f"{bench.runner}-2", again, success=True)
    assert late.status == 409
    bench.invoke()
    bench.done(second.next("job.assigned"))
    second.close()


def test_a_job_that_ends_its_runners_fails(bench: Bench) -> None:
    """After the fourth lost runner nobody else is sent."""
    bench.invoke()
    for n in range(4):
        runner = bench.agents.runner(bench.runner, f"c{n}", bench.tool)
        runner.next("job.assigned")
        runner.close()
    result = bench.stream.next("tool.result")
    assert (result["status"], result["error"]) == ("failed", "the runner was lost too often")


def test_jobs_of_a_cancelled_execution_are_taken_back(bench: Bench) -> None:
    """What waits is not dispatched any more; what runs is refused, and its runner is free."""
    runner = bench.agents.runner(bench.runner, "c1", bench.tool)
    bench.invoke()
    bench.invoke()
    job = runner.next("job.assigned")
    bench.callers.ok("POST", f"/v0/executions/{bench.id}/cancel")
    assert runner.quiet(0.5)
    assert bench.agents.job_result(bench.runner, job, success=True).status == 409
    assert runner.quiet(0.3)
    bench.callers.create(bench.told["agent_id"])
    bench.told = bench.stream.next("execution.assigned")
    bench.invoke()
    bench.done(runner.next("job.assigned"))
    runner.close()


def test_capabilities_can_change(bench: Bench) -> None:
    """The new list replaces the old one, and brings what waited for it; unknown runners are no fault."""
    runner = bench.agents.runner(bench.runner, "c1", "something.else")
    step = bench.invoke()
    assert runner.quiet(0.3)
    path = f"/v0/runners/{bench.runner}/capabilities"
    assert bench.callers.ok("POST", path, {"tools": [bench.tool]}) == {"status": "ok"}
    job = runner.next("job.assigned")
    assert job["step_id"] == step
    assert bench.callers.ok("POST", path, {}) == {"status": "ok"}
    bench.done(job)
    bench.invoke()
    assert runner.quiet(0.3)
    assert bench.callers.ok("POST", "/v0/runners/nobody/capabilities", {"tools": []}) == {"status": "ok"}
    assert bench.callers.call("POST", path, {"tools": "x"}).status == 400
    assert bench.callers.call("POST", path, {"tools": [1]}).status == 400
    runner.close()


def test_tools_are_published_and_found(bench: Bench) -> None:
    """Schemas may come before the stream; the newest publisher of a tool counts; they go with the runner."""
    one, other = bench.runner, f"{bench.runner}-2"

    def publish(runner: str, *tools: str) -> None:
        schemas = [
            {"id": tool, "description": f"by {runner}", "input_schema": {"type": "object"}} for tool in tools
        ]
        answer = bench.agents.call("POST", f"/v0/runners/{quote(runner)}/tools", {"tools": schemas})
        assert (answer.status, answer.raw) == (204, b"")

    def found(prefix: str) -> dict[str, str]:
        return {
            tool["id"]: tool["runner_id"] for tool in bench.callers.ok("GET", f"/v0/tools?prefix={prefix}")
        }

    base = bench.tool.replace(".", "-")
    publish(one, f"{base}_a", f"{base}.b", base, f"{base}other")
    assert found(base) == {f"{base}_a": one, f"{base}.b": one, base: one}
    publish(other, f"{base}_a")
    assert found(base)[f"{base}_a"] == other
    [tool] = bench.callers.ok("GET", f"/v0/tools?prefix={base}_a")
    assert set(tool) == {"id", "description", "input_schema", "runner_id", "registered_at"}
    runner = bench.agents.runner(other, "c1", f"{base}_a")
    eventually(lambda: runner.comments)
    time.sleep(0.1)
    runner.close()
    eventually(lambda: found(base)[f"{base}_a"] == one)
    assert bench.callers.call("DELETE", f"/v0/runners/{one}").status == 204
    assert found(base) == {}
    assert bench.callers.call("DELETE", f"/v0/runners/{one}").status == 404
    assert bench.callers.ok("GET", "/v0/tools?prefix=nothing-like-this") == []


def test_an_unregistered_runner_gets_nothing_more(bench: Bench) -> None:
    """Its stream stays open, its job may still end."""
    runner = bench.agents.runner(bench.runner, "c1", bench.tool)
    bench.invoke()
    job = runner.next("job.assigned")
    assert bench.callers.call("DELETE", f"/v0/runners/{bench.runner}").status == 204
    bench.invoke()
    bench.done(job)
    assert runner.quiet(0.4) and not runner.closed.is_set()
    runner.close()


def test_one_runner_works_off_the_jobs_of_many(bench: Bench) -> None:
    """Twenty jobs of one execution, one runner, at two web processes: each is done once."""
    runner = bench.callers.runner(bench.runner, "c1", bench.tool)
    steps = {bench.invoke(n) for n in range(20)}
    seen = set()
    for _ in range(20):
        job = runner.next("job.assigned")
        seen.add(job["step_id"])
        bench.done(job, data=job["arguments"])
    assert seen == steps
    results = {bench.stream.next("tool.result")["step_id"] for _ in range(20)}
    assert results == steps
    bench.agents.accepted(bench.told, "complete")
    runner.close()
