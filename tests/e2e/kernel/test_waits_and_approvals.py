"""Waits, signals and approvals of remote agents, with and without a connected agent."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.kernel.client import Api, Sse
from tests.waiting import eventually


@pytest.fixture(name="name")
def _name() -> str:
    return f"waiter-{uuid.uuid4().hex[:8]}"


@pytest.fixture(name="stream")
def _stream(agents: Api, name: str) -> Iterator[Sse]:
    stream = agents.agent(name, "c1")
    yield stream
    stream.close()


@pytest.fixture(name="assignment")
def _told(callers: Api, stream: Sse, name: str) -> dict[str, Any]:
    """An execution assigned to the agent."""
    callers.create(name)
    assignment: dict[str, Any] = stream.next("execution.assigned")
    return assignment


def decide(callers: Api, id: str, kind: str = "step.approve", **about: Any) -> None:
    if kind == "step.approve":
        about.setdefault("step_id", callers.event(id, "execution.blocked")["payload"]["ref"])
    assert callers.signal(id, kind, about).status == 200


def test_a_wait_blocks_until_its_signal(
    callers: Api, agents: Api, stream: Sse, assignment: dict[str, Any]
) -> None:
    """Another type leaves it blocked; the right signal resumes it, and the agent gets it with the id."""
    id = assignment["execution_id"]
    assert agents.accepted(assignment, "wait", signal_type="go") == {"accepted": True}
    assert callers.status(id) == "blocked"
    assert callers.event(id, "execution.blocked")["payload"] == {"reason": "signal", "ref": "go"}
    assert callers.signal(id, "other", 1).status == 200
    assert stream.next("signal.received") == {"execution_id": id, "signal_type": "other", "payload": 1}
    assert callers.status(id) == "blocked"
    assert callers.signal(id, "go").status == 200
    assert stream.next("signal.received") == {"execution_id": id, "signal_type": "go", "payload": None}
    assert callers.status(id) == "running"
    resumed, received = callers.event(id, "execution.resumed"), callers.event(id, "signal.received")
    assert resumed["payload"] == {"reason": "signal received: go"}
    assert resumed["causation_id"] == resumed["correlation_id"] == received["id"]
    agents.accepted(assignment, "complete")


def test_stored_signals_answer_waits_in_order(
    callers: Api, agents: Api, stream: Sse, assignment: dict[str, Any]
) -> None:
    """A wait with a stored signal does not block, and the agent is still notified."""
    id = assignment["execution_id"]
    for n in (1, 2):
        callers.signal(id, "go", n)
        stream.next("signal.received")
    for n in (1, 2):
        agents.accepted(assignment, "wait", signal_type="go")
        assert callers.status(id) == "running"
        assert stream.next("signal.received")["payload"] == n
    agents.accepted(assignment, "wait", signal_type="go")
    assert callers.status(id) == "blocked"
    callers.signal(id, "go", 3)
    agents.accepted(assignment, "complete")


def test_event_log_of_an_approval(callers: Api, agents: Api, stream: Sse, assignment: dict[str, Any]) -> None:
    """The events, the messages, and that a wrong step id has no effect."""
    id = assignment["execution_id"]
    answer = agents.accepted(assignment, "invoke_tool", tool_id="deploy.x", arguments={"site": "s"})
    step = answer["step_id"]
    assert answer == {"accepted": True, "step_id": step, "pending_approval": True}
    assert callers.status(id) == "blocked"
    assert callers.kinds(id)[-3:] == ["step.created", "step.approval_required", "execution.blocked"]
    assert callers.event(id, "step.approval_required")["payload"] == {
        "tool_id": "deploy.x",
        "arguments": {"site": "s"},
        "remote": False,
        "reason": "A deployment cannot be undone",
    }
    blocked = callers.event(id, "execution.blocked")["payload"]
    assert (blocked["reason"], blocked["ref"]) == ("approval", step)
    assert agents.step_result(assignment, step, success=True).status == 409
    wrong = callers.signal(id, "step.approve", {"step_id": "another", "approved": True})
    assert (wrong.status, wrong.body["error"]) == (
        400,
        f'validation error: approval step_id "another" does not match blocked ref "{step}"',
    )
    assert callers.signal(id, "step.approve", {"approved": True}).status == 400
    assert "signal.received" not in callers.kinds(id)
    assert callers.signal(id, "unrelated").status == 200
    assert callers.status(id) == "blocked"
    stream.next("signal.received")
    decide(callers, id, approved=True)
    resolved = {"execution_id": id, "step_id": step, "approved": True, "session_id": assignment["session_id"]}
    assert stream.next() == resolved and stream.seen[-1].event == "approval.resolved"
    assert stream.next("signal.received")["signal_type"] == "step.approve"
    assert callers.kinds(id)[-3:] == ["signal.received", "step.dispatched", "execution.resumed"]
    assert callers.event(id, "execution.resumed")["payload"] == {"reason": "approval granted"}
    assert agents.step_result(assignment, step, success=True, data=1).status == 200
    agents.accepted(assignment, "complete")


@pytest.mark.parametrize("kind", ["step.approve", "approval"])
def test_denied_step_fails_with_the_reason(
    callers: Api, agents: Api, stream: Sse, assignment: dict[str, Any], kind: str
) -> None:
    """The step fails with the reason and the agent continues."""
    id = assignment["execution_id"]
    agents.accepted(assignment, "invoke_tool", tool_id="deploy.x")
    decide(callers, id, kind, approved=False)
    assert stream.next("approval.resolved")["approved"] is False
    assert callers.event(id, "step.failed")["payload"]["error"] == "approval denied by human"
    assert callers.event(id, "execution.resumed")["payload"] == {"reason": "approval denied"}
    agents.accepted(assignment, "complete")


def test_approved_remote_tool_is_dispatched_once(
    callers: Api, agents: Api, stream: Sse, assignment: dict[str, Any], name: str
) -> None:
    """The job is dispatched after the decision, and not retried when it fails."""
    runner = agents.runner(f"r-{name}", "c1", f"deploy.{name}")
    agents.accepted(assignment, "invoke_tool", tool_id=f"deploy.{name}", arguments=[1], remote=True)
    assert callers.event(assignment["execution_id"], "execution.blocked")["payload"]["remote"] is True
    assert runner.quiet(0.3)
    decide(callers, assignment["execution_id"], approved=True)
    job = runner.next("job.assigned")
    assert job["arguments"] == [1]
    assert agents.job_result(f"r-{name}", job, success=False, error="no", retryable=True).status == 200
    assert stream.next("tool.result")["error"] == "no"
    agents.accepted(assignment, "complete")
    runner.close()


def test_approval_signal_also_answers_a_wait(
    callers: Api, agents: Api, stream: Sse, assignment: dict[str, Any]
) -> None:
    """`approval` is an ordinary signal for an agent that waits for it."""
    agents.accepted(assignment, "wait", signal_type="approval")
    decide(callers, assignment["execution_id"], "approval", approved=True)
    assert stream.next("signal.received")["payload"] == {"approved": True}
    agents.accepted(assignment, "complete")


def test_blocked_execution_resumes_without_its_agent(callers: Api, agents: Api, name: str) -> None:
    """A signal resumes it while no agent is connected; the next agent gets the execution and the signal."""
    first = agents.agent(name, "c1")
    id = callers.create(name)["id"]
    assignment = first.next("execution.assigned")
    agents.accepted(assignment, "wait", signal_type="go")
    first.close()
    eventually(lambda: "agent.timeout" in callers.kinds(id))
    time.sleep(0.2)
    assert callers.status(id) == "blocked"
    assert callers.signal(id, "other").status == 200
    assert callers.status(id) == "blocked"
    assert callers.signal(id, "go", 5).status == 200
    assert callers.status(id) == "running"
    second = callers.agent(name, "c2")
    again = second.next("execution.assigned")
    assert again["execution_id"] == id
    agents.accepted(again, "wait", signal_type="go")
    assert second.next("signal.received")["payload"] == 5
    assert callers.status(id) == "running"
    agents.accepted(again, "complete")
    second.close()


def test_reconnected_agent_gets_blocked_work_only_after_the_signal(
    callers: Api, agents: Api, name: str
) -> None:
    """The agent gets the execution only once it can continue."""
    first = agents.agent(name, "c1")
    id = callers.create(name)["id"]
    agents.accepted(first.next("execution.assigned"), "wait", signal_type="go")
    first.close()
    eventually(lambda: "agent.timeout" in callers.kinds(id))
    second = agents.agent(name, "c2")
    assert second.quiet(0.5)
    callers.signal(id, "go", 1)
    again = second.next("execution.assigned")
    agents.accepted(again, "wait", signal_type="go")
    assert second.next("signal.received")["payload"] == 1
    agents.accepted(again, "complete")
    second.close()


def test_approval_without_the_agent_is_used_once(callers: Api, agents: Api, name: str) -> None:
    """The next run needs no approval for the same call; a second such call does."""
    first = agents.agent(name, "c1")
    id = callers.create(name)["id"]
    call = {"tool_id": "deploy.x", "arguments": {"site": "s"}}
    agents.accepted(first.next("execution.assigned"), "invoke_tool", **call)
    first.close()
    eventually(lambda: "agent.timeout" in callers.kinds(id))
    decide(callers, id, approved=True)
    second = agents.agent(name, "c2")
    again = second.next("execution.assigned")
    assert "pending_approval" not in agents.accepted(again, "invoke_tool", **call)
    assert agents.accepted(again, "invoke_tool", **call)["pending_approval"]
    callers.ok("POST", f"/v0/executions/{id}/cancel")
    second.close()


def test_denial_without_the_agent_is_remembered_once(callers: Api, agents: Api, name: str) -> None:
    """The next run's same call is denied once with the given reason; other calls need approval."""
    first = agents.agent(name, "c1")
    id = callers.create(name)["id"]
    call = {"tool_id": "deploy.x", "arguments": {"site": "s"}}
    agents.accepted(first.next("execution.assigned"), "invoke_tool", **call)
    first.close()
    eventually(lambda: "agent.timeout" in callers.kinds(id))
    decide(callers, id, approved=False, reason="not this site")
    second = agents.agent(name, "c2")
    again = second.next("execution.assigned")
    assert (again["history"][0]["status"], again["history"][0]["error"]) == ("failed", "not this site")
    refused = [agents.intent(again, "invoke_tool", **call, idempotency_key="k").body for _ in range(2)]
    error = "policy denied: not this site (rule: ask-before-deploy)"
    assert refused == [{"accepted": False, "error": error}] * 2
    denied = callers.event(id, "intent.denied")["payload"]
    assert (denied["reason"], denied["rule_id"]) == ("not this site", "ask-before-deploy")
    other = {**call, "arguments": {"site": "another"}}
    assert agents.accepted(again, "invoke_tool", **other)["pending_approval"]
    decide(callers, id, approved=True)
    assert agents.accepted(again, "invoke_tool", **call)["pending_approval"]
    callers.ok("POST", f"/v0/executions/{id}/cancel")
    second.close()


def test_blocked_execution_can_be_cancelled(
    callers: Api, agents: Api, stream: Sse, assignment: dict[str, Any]
) -> None:
    """The step that waited for approval ends with it."""
    agents.accepted(assignment, "invoke_tool", tool_id="deploy.x")
    callers.ok("POST", f"/v0/executions/{assignment['execution_id']}/cancel")
    assert callers.kinds(assignment["execution_id"])[-2:] == ["step.cancelled", "execution.cancelled"]
    assert stream.next("execution.cancelled")["execution_id"] == assignment["execution_id"]


def test_large_signal_is_delivered_whole(
    callers: Api, agents: Api, stream: Sse, assignment: dict[str, Any]
) -> None:
    """The event only describes the signal; the agent gets its full payload."""
    agents.accepted(assignment, "wait", signal_type="go")
    long = "é" * 100_000
    callers.signal(assignment["execution_id"], "go", {"long": long})
    assert stream.next("signal.received")["payload"] == {"long": long}
    shown = callers.event(assignment["execution_id"], "signal.received")["payload"]
    assert shown["payload"] is None and shown["payload_file"]["size"] > 200_000
    agents.accepted(assignment, "complete")
