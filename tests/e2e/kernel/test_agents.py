"""Agents at one web process and callers at another: assignment, sessions, intents."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.kernel.client import Api, Sse
from tests.e2e.kernel.deployment import Deployment
from tests.waiting import eventually

UNKNOWN = str(uuid.uuid4())


@pytest.fixture(name="name")
def _name() -> str:
    """An agent name that no other test uses."""
    return f"agent-{uuid.uuid4().hex[:8]}"


@pytest.fixture(name="stream")
def _stream(agents: Api, name: str) -> Iterator[Sse]:
    stream = agents.agent(name, "c1")
    yield stream
    stream.close()


def assigned(callers: Api, stream: Sse, name: str, input: Any = None, **labels: str) -> dict[str, Any]:
    """An execution as assigned to its agent."""
    id = callers.create(name, input, **labels)["id"]
    assignment: dict[str, Any] = stream.next("execution.assigned")
    assert assignment["execution_id"] == id
    return assignment


# Assignment


def test_event_log_of_a_local_tool_call(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Seven events in this order, with the protocol's causes and payloads."""
    assignment = assigned(callers, stream, name, {"q": [1, None]}, env="dev")
    assert set(assignment) == {"execution_id", "session_id", "agent_id", "input", "labels"}
    assert (assignment["agent_id"], assignment["input"], assignment["labels"]) == (
        name,
        {"q": [1, None]},
        {"env": "dev"},
    )
    id = assignment["execution_id"]
    arguments = {"query": "x"}
    step = agents.accepted(assignment, "invoke_tool", tool_id="web.search", arguments=arguments)["step_id"]
    assert agents.step_result(assignment, step, success=True, data={"hits": []}).body == {"status": "ok"}
    result = {"execution_id": id, "step_id": step, "status": "succeeded", "result": {"hits": []}}
    assert stream.next("tool.result") == result
    assert agents.accepted(assignment, "complete", output={"done": True}) == {"accepted": True}
    execution = callers.get(id)
    assert (execution["status"], execution["output"]) == ("completed", {"done": True})
    events = callers.events(id)
    assert [event["type"] for event in events] == [
        "execution.created",
        "execution.started",
        "intent.accepted",
        "step.created",
        "step.completed",
        "intent.accepted",
        "execution.completed",
    ]
    created, started, invoked, begun, done, completing, completed = events
    assert created["payload"] == {"agent_id": name, "input": {"q": [1, None]}, "labels": {"env": "dev"}}
    assert started["payload"] == {"session_id": assignment["session_id"], "consumer_id": "c1"}
    assert invoked["payload"] == {
        "intent_type": "invoke_tool",
        "details": {"tool_id": "web.search", "arguments": arguments},
    }
    deadline = begun["payload"].pop("deadline")
    assert deadline > begun["timestamp"]
    assert begun["payload"] == {
        "tool_id": "web.search",
        "tool_version": 0,
        "arguments": arguments,
        "max_attempts": 1,
        "attempt": 1,
    }
    assert done["payload"] == {"result": {"hits": []}}
    assert completing["payload"] == {"intent_type": "complete", "details": {"output": {"done": True}}}
    assert completed["payload"] == {"output": {"done": True}}
    assert begun["step_id"] == done["step_id"] == step and invoked["step_id"] == ""
    assert begun["correlation_id"] == invoked["id"] and completed["correlation_id"] == completing["id"]
    assert done["correlation_id"] == done["causation_id"] == done["id"]


def test_event_log_of_a_failed_execution(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """The intent and the end that it caused, both with the agent's error message."""
    assignment = assigned(callers, stream, name)
    assert agents.accepted(assignment, "fail", error="no way") == {"accepted": True}
    intent, failed = callers.events(assignment["execution_id"])[2:]
    assert (intent["type"], failed["type"]) == ("intent.accepted", "execution.failed")
    assert intent["payload"] == {"intent_type": "fail", "details": {"error": "no way"}}
    assert failed["payload"]["error"] == "no way"
    assert failed["correlation_id"] == failed["causation_id"] == intent["id"]
    execution = callers.get(assignment["execution_id"])
    assert (execution["status"], execution["output"]) == ("failed", None)


def test_unusual_line_separators_do_not_split_sse_messages(
    callers: Api, agents: Api, stream: Sse, name: str
) -> None:
    """Characters that many readers treat as line ends are escaped in the stream and arrive unchanged."""
    odd = "a\u2028b\u2029c\x85d\x0be\x1cf\rg\nh"
    assignment = assigned(callers, stream, name, {odd: odd}, note=odd)
    assert (assignment["input"], assignment["labels"]) == ({odd: odd}, {"note": odd})
    agents.accepted(assignment, "complete", output=odd)
    assert callers.get(assignment["execution_id"])["output"] == odd
    raw = callers.call("GET", f"/v0/executions/{assignment['execution_id']}/stream").raw.decode()
    assert all(line.startswith(("retry", "id", "event", "data")) for line in raw.splitlines() if line)
    assert json.loads(raw.split("data: ")[-1])["payload"] == {"output": odd}


def test_waiting_executions_are_assigned_oldest_first(callers: Api, agents: Api, name: str) -> None:
    """Executions wait for an agent; the first to connect gets all of them at once, oldest first."""
    ids = [callers.create(name, n)["id"] for n in range(5)]
    assert {callers.status(id) for id in ids} == {"pending"}
    stream = agents.agent(name, "c1")
    assert [stream.next("execution.assigned")["execution_id"] for _ in ids] == ids
    created = callers.create(name)
    assert created["status"] == "running"
    stream.close()


def test_executions_are_assigned_round_robin(callers: Api, agents: Api, name: str) -> None:
    """Round robin by consumer id, across connections at both web processes."""
    streams = {
        "c2": agents.agent(name, "c2"),
        "c1": callers.agent(name, "c1"),
        "c3": agents.agent(name, "c3"),
    }
    for stream in streams.values():
        eventually(lambda stream=stream: stream.comments)  # type: ignore[misc]
    time.sleep(0.1)
    ids = [callers.create(name)["id"] for _ in range(6)]
    takers = [callers.event(id, "execution.started")["payload"]["consumer_id"] for id in ids]
    assert takers == ["c1", "c2", "c3"] * 2
    for consumer, stream in streams.items():
        got = [stream.next("execution.assigned")["execution_id"] for _ in range(2)]
        assert got == [id for id, taker in zip(ids, takers, strict=True) if taker == consumer]
        stream.close()


def test_lost_agents_execution_is_reassigned_with_its_history(callers: Api, agents: Api, name: str) -> None:
    """Another connection gets its executions at once; they restart with the finished steps."""
    first = agents.agent(name, "c1")
    assignment = assigned(callers, first, name, {"n": 1})
    id = assignment["execution_id"]
    done = agents.accepted(assignment, "invoke_tool", tool_id="t", arguments={"a": 1})["step_id"]
    agents.step_result(assignment, done, success=True, data="result")
    broken = agents.accepted(assignment, "invoke_tool", tool_id="u")["step_id"]
    agents.step_result(assignment, broken, success=False, error="broken")
    open_step = agents.accepted(assignment, "invoke_tool", tool_id="v", arguments={})["step_id"]
    second = callers.agent(name, "c2")
    eventually(lambda: second.comments)
    began = time.monotonic()
    first.close()
    again = second.next("execution.assigned")
    assert time.monotonic() - began < 3
    assert again["execution_id"] == id and again["session_id"] != assignment["session_id"]
    history = [{k: v for k, v in step.items() if k != "completed_at"} for step in again["history"]]
    assert history == [
        {"step_id": done, "tool_id": "t", "status": "succeeded", "arguments": {"a": 1}, "result": "result"},
        {"step_id": broken, "tool_id": "u", "status": "failed", "error": "broken"},
        {"step_id": open_step, "tool_id": "v", "status": "cancelled", "arguments": {}},
    ]
    kinds = callers.kinds(id)
    at = kinds.index("agent.timeout")
    assert kinds[at : at + 4] == [
        "agent.timeout",
        "step.cancelled",
        "execution.reset",
        "execution.started",
    ]
    reset = callers.event(id, "execution.reset")
    assert reset["payload"] == {"reason": "agent_disconnect", "from_status": "running"}
    assert callers.event(id, "step.cancelled")["payload"] == {"reason": "agent disconnected"}
    old = agents.intent(assignment, "complete")
    assert (old.status, old.body["code"]) == (401, "UNAUTHORIZED")
    assert old.body["error"] == f"session not found: session {assignment['session_id']}"
    assert agents.accepted(again, "complete")
    assert callers.get(id)["output"] is None
    second.close()


def test_reconnecting_consumer_replaces_its_session_and_gets_its_work(
    callers: Api, agents: Api, name: str
) -> None:
    """The old stream and session end; the agent is told to drop the execution, and gets it again."""
    first = agents.agent(name, "c1")
    assignment = assigned(callers, first, name)
    second = callers.agent(name, "c1")
    assert second.next()["execution_id"] == assignment["execution_id"]
    assert second.seen[0].event == "execution.cancelled"
    again = second.next()
    assert second.seen[1].event == "execution.assigned"
    assert (
        again["execution_id"] == assignment["execution_id"]
        and again["session_id"] != assignment["session_id"]
    )
    assert first.closed.wait(5)
    assert agents.intent(assignment, "complete").status == 401
    assert agents.accepted(again, "complete")
    second.close()


def test_disconnecting_right_after_complete_changes_nothing(callers: Api, agents: Api, name: str) -> None:
    """A completed execution stays completed."""
    stream = agents.agent(name, "c1")
    assignment = assigned(callers, stream, name)
    assert agents.accepted(assignment, "complete", output=1)
    stream.close()
    time.sleep(0.3)
    assert callers.get(assignment["execution_id"])["status"] == "completed"
    assert callers.kinds(assignment["execution_id"])[-1] == "execution.completed"


def test_session_lives_as_long_as_its_stream(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Without a call for longer than the agent timeout, the session is still valid."""
    assignment = assigned(callers, stream, name)
    time.sleep(4)
    assert agents.accepted(assignment, "complete")


def test_streams_send_heartbeats(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """All streams begin with a retry hint and send a comment every five seconds."""
    assignment = assigned(callers, stream, name)
    runner = agents.runner(f"r-{name}", "c1", "nothing")
    watcher = callers.sse(f"/v0/executions/{assignment['execution_id']}/stream")
    for each in (stream, runner, watcher):
        eventually(lambda each=each: ":heartbeat" in each.comments, 7)  # type: ignore[misc]
        assert each.comments[0] == "retry: 5000"
        headers = {name.lower(): value for name, value in each.answer.getheaders()}
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["x-accel-buffering"] == "no"
    runner.close()
    watcher.close()


def test_steps_of_one_execution_run_in_parallel(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Steps run concurrently, end in any order, and must end before the execution does."""
    assignment = assigned(callers, stream, name)
    steps = [agents.accepted(assignment, "invoke_tool", tool_id=f"t{n}")["step_id"] for n in range(3)]
    early = agents.intent(assignment, "complete")
    assert (early.status, early.body["error"]) == (
        409,
        "conflict: cannot complete with active steps in progress",
    )
    assert callers.kinds(assignment["execution_id"]).count("intent.accepted") == 3
    for step in reversed(steps):
        assert agents.step_result(assignment, step, success=True).status == 200
        assert stream.next("tool.result")["step_id"] == step
    assert agents.accepted(assignment, "complete")


# Refused intents


def test_intent_errors_are_checked_in_a_fixed_order(
    callers: Api, agents: Api, stream: Sse, name: str
) -> None:
    """First form, then session, then state, then content: the earliest error wins."""
    assignment = assigned(callers, stream, name)
    other = assigned(callers, stream, name)

    def error(about: dict[str, Any], status: int) -> str:
        answer = agents.call("POST", "/v0/agents/intent", about)
        assert answer.status == status, answer.raw
        assert set(answer.body) == {"error", "code", "details"}
        return str(answer.body["error"])

    id, session = assignment["execution_id"], assignment["session_id"]
    assert error({}, 400) == "validation error: execution_id is required"
    assert error({"execution_id": id}, 400) == "validation error: session_id is required"
    both = {"execution_id": id, "session_id": session}
    assert error(both, 400) == "validation error: intent.type is required"
    long = {"type": "invoke_tool", "tool_id": "x" * 257}
    message = "validation error: intent.tool_id exceeds maximum length of 256 characters"
    assert error({**both, "session_id": UNKNOWN, "intent": long}, 400) == message
    unknown = error({**both, "session_id": UNKNOWN, "intent": {"type": "nonsense"}}, 401)
    assert unknown == f"session not found: session {UNKNOWN}"
    assert error({**both, "session_id": "sess-1", "intent": {"type": "fail"}}, 401).startswith("session not")
    foreign = {**both, "session_id": other["session_id"], "intent": {"type": "complete"}}
    assert error(foreign, 400) == (
        f"validation error: session {other['session_id']} does not belong to execution {id}"
    )
    assert "unknown intent type" in error({**both, "intent": {"type": "nonsense"}}, 400)
    assert "tool_id is required" in error({**both, "intent": {"type": "invoke_tool"}}, 400)
    assert "error is required" in error({**both, "intent": {"type": "fail"}}, 400)
    assert "signal_type is required" in error({**both, "intent": {"type": "wait"}}, 400)
    assert agents.accepted(assignment, "wait", signal_type="go")
    for intent in ({"type": "nonsense"}, {"type": "complete"}, {"type": "fail", "error": "x"}):
        blocked = error({**both, "intent": intent}, 409)
        assert blocked.startswith(f"execution is blocked: execution {id} is blocked")
    callers.signal(id, "go")
    assert agents.accepted(assignment, "fail", error="it broke")
    for intent in ({"type": "nonsense"}, {"type": "complete"}):
        ended = error({**both, "intent": intent}, 409)
        assert ended == f"execution is in terminal state: execution {id} is already failed"
    assert callers.event(id, "execution.failed")["payload"]["error"] == "it broke"


def test_late_step_results_are_conflicts(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Unknown steps get 404, resolved ones 409; the same result again counts as a retry."""
    assignment = assigned(callers, stream, name)
    step = agents.accepted(assignment, "invoke_tool", tool_id="t")["step_id"]
    assert agents.step_result(assignment, UNKNOWN, success=True).status == 404
    assert agents.step_result(assignment, step, success=True, data=1).status == 200
    assert agents.step_result(assignment, step, success=True, data=1).status == 200
    for late in ({"success": True, "data": 2}, {"success": False, "error": "x"}):
        answer = agents.step_result(assignment, step, **late)
        assert (answer.status, answer.body["error"]) == (409, f"step already resolved: step {step}")
    assert callers.kinds(assignment["execution_id"]).count("step.completed") == 1
    open_step = agents.accepted(assignment, "invoke_tool", tool_id="t")["step_id"]
    callers.ok("POST", f"/v0/executions/{assignment['execution_id']}/cancel")
    assert agents.step_result(assignment, open_step, success=True).status == 409
    missing = agents.call("POST", "/v0/agents/step-result", {"execution_id": assignment["execution_id"]})
    assert missing.status == 400


def test_denied_intent_names_its_rule(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """A denial is 200 with accepted: false; the log has the rule's id and, for a rate limit, its numbers."""
    assignment = assigned(callers, stream, name)
    answer = agents.intent(assignment, "invoke_tool", tool_id="shell.rm", arguments={"x": 1})
    assert (answer.status, answer.body) == (
        200,
        {
            "accepted": False,
            "error": "policy denied: Shell commands denied by default (rule: no-shell)",
        },
    )
    assert callers.event(assignment["execution_id"], "intent.denied")["payload"] == {
        "intent_type": "invoke_tool",
        "tool_id": "shell.rm",
        "arguments": {"x": 1},
        "reason": "Shell commands denied by default",
        "rule_id": "no-shell",
    }
    for _ in range(2):
        agents.accepted(assignment, "invoke_tool", tool_id="limited")
    spent = callers.intent(assignment, "invoke_tool", tool_id="limited").body
    assert spent == {"accepted": False, "error": "rate limit exceeded: max 2 per 1m (rule: limited)"}


def test_duplicate_intents_do_not_use_the_rate_limit(
    callers: Api, agents: Api, stream: Sse, name: str
) -> None:
    """Twenty concurrent duplicates at two processes count as one call: one of two places is left."""
    assignment = assigned(callers, stream, name)
    about = {"tool_id": "limited", "idempotency_key": "k1"}

    def send(number: int) -> Any:
        return (agents, callers)[number % 2].intent(assignment, "invoke_tool", **about).body

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(send, range(20)))
    assert all(answer == answers[0] and answer["accepted"] for answer in answers), answers
    assert callers.kinds(assignment["execution_id"]).count("step.created") == 1
    again = [agents.intent(assignment, "invoke_tool", tool_id="limited").body["accepted"] for _ in range(2)]
    assert again == [True, False]


def test_repeated_intent_gets_the_same_answer(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Two requests with one key create one step, at any process; a different call with that key gets 409."""
    assignment = assigned(callers, stream, name)
    about = {"tool_id": "t", "arguments": {"a": 1}, "idempotency_key": "k1"}
    first = agents.accepted(assignment, "invoke_tool", **about)
    assert callers.accepted(assignment, "invoke_tool", **about) == first
    assert callers.kinds(assignment["execution_id"]).count("step.created") == 1
    changed = agents.intent(assignment, "invoke_tool", **{**about, "arguments": {"a": 2}})
    assert (changed.status, changed.body["code"]) == (409, "CONFLICT")
    denied = {"tool_id": "shell.x", "idempotency_key": "k2"}
    assert (
        agents.intent(assignment, "invoke_tool", **denied).body
        == agents.intent(assignment, "invoke_tool", **denied).body
    )
    assert callers.kinds(assignment["execution_id"]).count("intent.denied") == 1
    agents.step_result(assignment, first["step_id"], success=True)
    done = {"output": 5, "idempotency_key": "k3"}
    assert agents.accepted(assignment, "complete", **done) == callers.accepted(assignment, "complete", **done)
    assert agents.intent(assignment, "complete", output=5).status == 409


def test_step_timeout_ends_the_execution(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Within about a second of the deadline, and the agent is notified."""
    assignment = assigned(callers, stream, name)
    slow = agents.accepted(assignment, "invoke_tool", tool_id="short.one", remote=True)["step_id"]
    sibling = agents.accepted(assignment, "invoke_tool", tool_id="t")["step_id"]
    began = time.monotonic()
    callers.until(assignment["execution_id"], "failed", seconds=4)
    assert time.monotonic() - began < 2.5
    events = callers.events(assignment["execution_id"])[-3:]
    assert [(event["type"], event["step_id"]) for event in events] == [
        ("step.timed_out", slow),
        ("step.cancelled", sibling),
        ("execution.failed", ""),
    ]
    assert events[1]["payload"] == {"reason": "sibling step timed out"}
    assert events[2]["payload"]["error"] == "step timed out"
    result = stream.next("tool.result")
    assert (result["step_id"], result["status"]) == (slow, "failed")
    assert stream.next("execution.cancelled")["execution_id"] == assignment["execution_id"]


def test_cancelling_notifies_the_agent(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """A cancel ends the steps and is pushed to the agent; a second one is a conflict."""
    assignment = assigned(callers, stream, name)
    id = assignment["execution_id"]
    agents.accepted(assignment, "invoke_tool", tool_id="t")
    cancelled = callers.call("POST", f"/v0/executions/{id}/cancel", b"null")
    assert (cancelled.status, cancelled.body["status"]) == (200, "cancelled")
    assert stream.next("execution.cancelled")["execution_id"] == id
    second = callers.call("POST", f"/v0/executions/{id}/cancel")
    assert (second.status, second.body["code"]) == (409, "CONFLICT")
    assert second.body["error"].startswith("execution is in terminal state: ")
    assert callers.call("POST", f"/v0/executions/{UNKNOWN}/cancel").status == 404
    assert callers.signal(id, "go").status == 409
    assert callers.signal(UNKNOWN, "go").status == 404
    assert agents.intent(assignment, "complete").status == 409


def test_large_values_are_delivered_unchanged(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Inputs, arguments, results and outputs too large for a record pass through files unchanged."""
    long = "é" * 100_000
    assignment = assigned(callers, stream, name, {"long": long})
    assert assignment["input"] == {"long": long}
    step = agents.accepted(assignment, "invoke_tool", tool_id="t", arguments={"long": long})["step_id"]
    shown = callers.event(assignment["execution_id"], "step.created")["payload"]
    assert shown["arguments"] is None and shown["arguments_omitted"]["size"] > 200_000
    assert agents.step_result(assignment, step, success=True, data=[long]).status == 200
    assert stream.next("tool.result")["result"] == [long]
    agents.accepted(assignment, "complete", output={"text": long})
    assert callers.get(assignment["execution_id"])["output"] == {"text": long}


def test_missing_input_file_affects_only_its_execution(
    deployment: Deployment, callers: Api, agents: Api, name: str
) -> None:
    """An execution with an unreadable input stays until it ends; the agent's other work continues."""
    before = set((deployment.home / "state" / "files").rglob("*"))
    lost = callers.create(name, {"text": "x" * 100_000})["id"]
    for path in set((deployment.home / "state" / "files").rglob("*")) - before:
        if path.is_file():
            path.unlink()
    other = callers.create(name, {"n": 1})["id"]
    stream = agents.agent(name, "c1")
    assignment = stream.next("execution.assigned")
    assert assignment["execution_id"] == other
    time.sleep(1.0)
    agents.accepted(assignment, "complete", output=1)
    assert callers.kinds(other).count("execution.started") == 1 and not stream.closed.is_set()
    callers.call("POST", f"/v0/executions/{lost}/cancel")
    assert stream.next("execution.cancelled")["execution_id"] == lost
    stream.close()


def test_lists_and_event_streams_work_across_web_processes(
    callers: Api, agents: Api, stream: Sse, name: str
) -> None:
    """A stream at one process shows events of the other live, and ends with the execution."""
    assignment = assigned(callers, stream, name, None, team="red")
    watcher = callers.sse(f"/v0/executions/{assignment['execution_id']}/stream?after_sequence=1")
    assert watcher.next()["sequence"] == 2
    step = agents.accepted(assignment, "invoke_tool", tool_id="t")["step_id"]
    assert watcher.next("step.created")["step_id"] == step
    agents.step_result(assignment, step, success=True)
    agents.accepted(assignment, "complete")
    assert [sent.id for sent in watcher.all()] == [str(n) for n in range(2, 8)]
    listed = agents.ok("GET", f"/v0/executions?agent_id={name}&label=team:red&status=completed")
    assert [each["id"] for each in listed["executions"]] == [assignment["execution_id"]]


def test_executions_from_other_doors_carry_a_door_label(deployment: Deployment, callers: Api) -> None:
    """Executions started from the command line are listed with a label for their door."""
    from worker.core.settings import Settings
    from worker.parts import Parts

    settings = Settings.load(
        {"REDIS_URL": deployment.url, "WORKER_STATE_DIR": str(deployment.home / "state")}
    )
    executions = Parts(settings, "cli").executions
    _, id = executions.create("echo", 1, door="cli", labels={"door": "cli"})
    assert callers.until(id, "completed")["labels"] == {"door": "cli"}
