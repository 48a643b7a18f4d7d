"""Agents at one web process, callers at the other: assignment, sessions, intents."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.kernel.client import Api, Sse
from tests.e2e.kernel.site import Site
from tests.waiting import eventually

UNKNOWN = str(uuid.uuid4())


@pytest.fixture(name="name")
def _name() -> str:
    """An agent that no other test uses."""
    return f"agent-{uuid.uuid4().hex[:8]}"


@pytest.fixture(name="stream")
def _stream(agents: Api, name: str) -> Iterator[Sse]:
    stream = agents.agent(name, "c1")
    yield stream
    stream.close()


def assigned(callers: Api, stream: Sse, name: str, input: Any = None, **labels: str) -> dict[str, Any]:
    """An execution, as its agent is told of it."""
    id = callers.create(name, input, **labels)["id"]
    told: dict[str, Any] = stream.next("execution.assigned")
    assert told["execution_id"] == id
    return told


# Assignment


def test_the_exact_trail_of_a_local_call(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Seven events, in this order, with the causes and payloads of the protocol."""
    told = assigned(callers, stream, name, {"q": [1, None]}, env="dev")
    assert set(told) == {"execution_id", "session_id", "agent_id", "input", "labels"}
    assert (told["agent_id"], told["input"], told["labels"]) == (name, {"q": [1, None]}, {"env": "dev"})
    id = told["execution_id"]
    arguments = {"query": "x"}
    step = agents.accepted(told, "invoke_tool", tool_id="web.search", arguments=arguments)["step_id"]
    assert agents.step_result(told, step, success=True, data={"hits": []}).body == {"status": "ok"}
    result = {"execution_id": id, "step_id": step, "status": "succeeded", "result": {"hits": []}}
    assert stream.next("tool.result") == result
    assert agents.accepted(told, "complete", output={"done": True}) == {"accepted": True}
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
    assert started["payload"] == {"session_id": told["session_id"], "consumer_id": "c1"}
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


def test_the_exact_trail_of_a_failure(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """The intent, then the end that it caused, with the agent's words in both."""
    told = assigned(callers, stream, name)
    assert agents.accepted(told, "fail", error="no way") == {"accepted": True}
    intent, failed = callers.events(told["execution_id"])[2:]
    assert (intent["type"], failed["type"]) == ("intent.accepted", "execution.failed")
    assert intent["payload"] == {"intent_type": "fail", "details": {"error": "no way"}}
    assert failed["payload"]["error"] == "no way"
    assert failed["correlation_id"] == failed["causation_id"] == intent["id"]
    execution = callers.get(told["execution_id"])
    assert (execution["status"], execution["output"]) == ("failed", None)


def test_no_value_ends_a_line_of_a_stream(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """What many readers take for the end of a line arrives, but never as such."""
    odd = "a\u2028b\u2029c\x85d\x0be\x1cf\rg\nh"
    told = assigned(callers, stream, name, {odd: odd}, note=odd)
    assert (told["input"], told["labels"]) == ({odd: odd}, {"note": odd})
    agents.accepted(told, "complete", output=odd)
    assert callers.get(told["execution_id"])["output"] == odd
    raw = callers.call("GET", f"/v0/executions/{told['execution_id']}/stream").raw.decode()
    assert all(line.startswith(("retry", "id", "event", "data")) for line in raw.splitlines() if line)
    assert json.loads(raw.split("data: ")[-1])["payload"] == {"output": odd}


def test_what_waits_is_given_out_in_its_order(callers: Api, agents: Api, name: str) -> None:
    """Executions without an agent wait; the first that connects gets them, oldest first, all at once."""
    ids = [callers.create(name, n)["id"] for n in range(5)]
    assert {callers.status(id) for id in ids} == {"pending"}
    stream = agents.agent(name, "c1")
    assert [stream.next("execution.assigned")["execution_id"] for _ in ids] == ids
    created = callers.create(name)
    assert created["status"] == "running"
    stream.close()


def test_consumers_take_turns(callers: Api, agents: Api, name: str) -> None:
    """Round robin by consumer id, over connections at both web processes."""
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


def test_a_lost_agent_is_replaced_with_the_history(callers: Api, agents: Api, name: str) -> None:
    """Its executions go to another connection at once, from the beginning, with the finished steps."""
    first = agents.agent(name, "c1")
    told = assigned(callers, first, name, {"n": 1})
    id = told["execution_id"]
    done = agents.accepted(told, "invoke_tool", tool_id="t", arguments={"a": 1})["step_id"]
    agents.step_result(told, done, success=True, data="result")
    broken = agents.accepted(told, "invoke_tool", tool_id="u")["step_id"]
    agents.step_result(told, broken, success=False, error="broken")
    open_step = agents.accepted(told, "invoke_tool", tool_id="v", arguments={})["step_id"]
    second = callers.agent(name, "c2")
    eventually(lambda: second.comments)
    began = time.monotonic()
    first.close()
    again = second.next("execution.assigned")
    assert time.monotonic() - began < 3
    assert again["execution_id"] == id and again["session_id"] != told["session_id"]
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
    old = agents.intent(told, "complete")
    assert (old.status, old.body["code"]) == (401, "UNAUTHORIZED")
    assert old.body["error"] == f"session not found: session {told['session_id']}"
    assert agents.accepted(again, "complete")
    assert callers.get(id)["output"] is None
    second.close()


def test_the_same_consumer_coming_back_loses_and_gets_its_work(callers: Api, agents: Api, name: str) -> None:
    """Its old stream ends, its old session too; it is told to let go, and gets the execution again."""
    first = agents.agent(name, "c1")
    told = assigned(callers, first, name)
    second = callers.agent(name, "c1")
    assert second.next()["execution_id"] == told["execution_id"]
    assert second.seen[0].event == "execution.cancelled"
    again = second.next()
    assert second.seen[1].event == "execution.assigned"
    assert again["execution_id"] == told["execution_id"] and again["session_id"] != told["session_id"]
    assert first.closed.wait(5)
    assert agents.intent(told, "complete").status == 401
    assert agents.accepted(again, "complete")
    second.close()


def test_dropping_the_stream_right_after_complete_changes_nothing(
    callers: Api, agents: Api, name: str
) -> None:
    """What is completed stays completed."""
    stream = agents.agent(name, "c1")
    told = assigned(callers, stream, name)
    assert agents.accepted(told, "complete", output=1)
    stream.close()
    time.sleep(0.3)
    assert callers.get(told["execution_id"])["status"] == "completed"
    assert callers.kinds(told["execution_id"])[-1] == "execution.completed"


def test_a_session_lives_as_long_as_its_stream(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Longer than the agent timeout without a call, and the session is still good."""
    told = assigned(callers, stream, name)
    time.sleep(4)
    assert agents.accepted(told, "complete")


def test_heartbeats(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """All streams begin with a retry hint and send a comment every five seconds."""
    told = assigned(callers, stream, name)
    runner = agents.runner(f"r-{name}", "c1", "nothing")
    watcher = callers.sse(f"/v0/executions/{told['execution_id']}/stream")
    for each in (stream, runner, watcher):
        eventually(lambda each=each: ":heartbeat" in each.comments, 7)  # type: ignore[misc]
        assert each.comments[0] == "retry: 5000"
        headers = {name.lower(): value for name, value in each.answer.getheaders()}
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["x-accel-buffering"] == "no"
    runner.close()
    watcher.close()


def test_several_steps_at_once(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Steps are open side by side, end in any order, and must end before the execution does."""
    told = assigned(callers, stream, name)
    steps = [agents.accepted(told, "invoke_tool", tool_id=f"t{n}")["step_id"] for n in range(3)]
    early = agents.intent(told, "complete")
    assert (early.status, early.body["error"]) == (
        409,
        "conflict: cannot complete with active steps in progress",
    )
    assert callers.kinds(told["execution_id"]).count("intent.accepted") == 3
    for step in reversed(steps):
        assert agents.step_result(told, step, success=True).status == 200
        assert stream.next("tool.result")["step_id"] == step
    assert agents.accepted(told, "complete")


# Intents refused


def test_the_order_of_refusals(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Form first, then the session, then the state, then the content: each earlier one wins."""
    told = assigned(callers, stream, name)
    other = assigned(callers, stream, name)

    def error(about: dict[str, Any], status: int) -> str:
        answer = agents.call("POST", "/v0/agents/intent", about)
        assert answer.status == status, answer.raw
        assert set(answer.body) == {"error", "code", "details"}
        return str(answer.body["error"])

    id, session = told["execution_id"], told["session_id"]
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
    assert agents.accepted(told, "wait", signal_type="go")
    for intent in ({"type": "nonsense"}, {"type": "complete"}, {"type": "fail", "error": "x"}):
        blocked = error({**both, "intent": intent}, 409)
        assert blocked.startswith(f"execution is blocked: execution {id} is blocked")
    callers.signal(id, "go")
    assert agents.accepted(told, "fail", error="it broke")
    for intent in ({"type": "nonsense"}, {"type": "complete"}):
        ended = error({**both, "intent": intent}, 409)
        assert ended == f"execution is in terminal state: execution {id} is already failed"
    assert callers.event(id, "execution.failed")["payload"]["error"] == "it broke"


def test_late_step_results_are_conflicts(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Unknown steps are 404, resolved ones 409; the same result sent again is taken for a retry."""
    told = assigned(callers, stream, name)
    step = agents.accepted(told, "invoke_tool", tool_id="t")["step_id"]
    assert agents.step_result(told, UNKNOWN, success=True).status == 404
    assert agents.step_result(told, step, success=True, data=1).status == 200
    assert agents.step_result(told, step, success=True, data=1).status == 200
    for late in ({"success": True, "data": 2}, {"success": False, "error": "x"}):
        answer = agents.step_result(told, step, **late)
        assert (answer.status, answer.body["error"]) == (409, f"step already resolved: step {step}")
    assert callers.kinds(told["execution_id"]).count("step.completed") == 1
    open_step = agents.accepted(told, "invoke_tool", tool_id="t")["step_id"]
    callers.ok("POST", f"/v0/executions/{told['execution_id']}/cancel")
    assert agents.step_result(told, open_step, success=True).status == 409
    missing = agents.call("POST", "/v0/agents/step-result", {"execution_id": told["execution_id"]})
    assert missing.status == 400


def test_denials_say_why(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """A denial is 200 with accepted: false; the log has the rule's id, a spent limit its numbers."""
    told = assigned(callers, stream, name)
    answer = agents.intent(told, "invoke_tool", tool_id="shell.rm", arguments={"x": 1})
    assert (answer.status, answer.body) == (
        200,
        {
            "accepted": False,
            "error": "policy denied: Shell commands denied by default (rule: no-shell)",
        },
    )
    assert callers.event(told["execution_id"], "intent.denied")["payload"] == {
        "intent_type": "invoke_tool",
        "tool_id": "shell.rm",
        "arguments": {"x": 1},
        "reason": "Shell commands denied by default",
        "rule_id": "no-shell",
    }
    for _ in range(2):
        agents.accepted(told, "invoke_tool", tool_id="limited")
    spent = callers.intent(told, "invoke_tool", tool_id="limited").body
    assert spent == {"accepted": False, "error": "rate limit exceeded: max 2 per 1m (rule: limited)"}


def test_an_intent_sent_again_is_answered_the_same(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """One key makes one step of two requests, at whatever process; another call under it is 409."""
    told = assigned(callers, stream, name)
    about = {"tool_id": "t", "arguments": {"a": 1}, "idempotency_key": "k1"}
    first = agents.accepted(told, "invoke_tool", **about)
    assert callers.accepted(told, "invoke_tool", **about) == first
    assert callers.kinds(told["execution_id"]).count("step.created") == 1
    changed = agents.intent(told, "invoke_tool", **{**about, "arguments": {"a": 2}})
    assert (changed.status, changed.body["code"]) == (409, "CONFLICT")
    denied = {"tool_id": "shell.x", "idempotency_key": "k2"}
    assert (
        agents.intent(told, "invoke_tool", **denied).body == agents.intent(told, "invoke_tool", **denied).body
    )
    assert callers.kinds(told["execution_id"]).count("intent.denied") == 1
    agents.step_result(told, first["step_id"], success=True)
    done = {"output": 5, "idempotency_key": "k3"}
    assert agents.accepted(told, "complete", **done) == callers.accepted(told, "complete", **done)
    assert agents.intent(told, "complete", output=5).status == 409


def test_a_step_that_takes_too_long_ends_its_execution(
    callers: Api, agents: Api, stream: Sse, name: str
) -> None:
    """Within about a second of its deadline, and the agent hears of it."""
    told = assigned(callers, stream, name)
    slow = agents.accepted(told, "invoke_tool", tool_id="short.one", remote=True)["step_id"]
    sibling = agents.accepted(told, "invoke_tool", tool_id="t")["step_id"]
    began = time.monotonic()
    callers.until(told["execution_id"], "failed", seconds=4)
    assert time.monotonic() - began < 2.5
    events = callers.events(told["execution_id"])[-3:]
    assert [(event["type"], event["step_id"]) for event in events] == [
        ("step.timed_out", slow),
        ("step.cancelled", sibling),
        ("execution.failed", ""),
    ]
    assert events[1]["payload"] == {"reason": "sibling step timed out"}
    assert events[2]["payload"]["error"] == "step timed out"
    result = stream.next("tool.result")
    assert (result["step_id"], result["status"]) == (slow, "failed")
    assert stream.next("execution.cancelled")["execution_id"] == told["execution_id"]


def test_cancelling_tells_the_agent(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """A cancel ends the steps and is pushed to the agent; a second one is a conflict."""
    told = assigned(callers, stream, name)
    id = told["execution_id"]
    agents.accepted(told, "invoke_tool", tool_id="t")
    cancelled = callers.call("POST", f"/v0/executions/{id}/cancel", b"null")
    assert (cancelled.status, cancelled.body["status"]) == (200, "cancelled")
    assert stream.next("execution.cancelled")["execution_id"] == id
    second = callers.call("POST", f"/v0/executions/{id}/cancel")
    assert (second.status, second.body["code"]) == (409, "CONFLICT")
    assert second.body["error"].startswith("execution is in terminal state: ")
    assert callers.call("POST", f"/v0/executions/{UNKNOWN}/cancel").status == 404
    assert callers.signal(id, "go").status == 409
    assert callers.signal(UNKNOWN, "go").status == 404
    assert agents.intent(told, "complete").status == 409


def test_long_contents_travel_whole(callers: Api, agents: Api, stream: Sse, name: str) -> None:
    """Inputs, arguments, results and outputs beyond what a record keeps come through files, unchanged."""
    long = "é" * 100_000
    told = assigned(callers, stream, name, {"long": long})
    assert told["input"] == {"long": long}
    step = agents.accepted(told, "invoke_tool", tool_id="t", arguments={"long": long})["step_id"]
    shown = callers.event(told["execution_id"], "step.created")["payload"]
    assert shown["arguments"] is None and shown["arguments_omitted"]["size"] > 200_000
    assert agents.step_result(told, step, success=True, data=[long]).status == 200
    assert stream.next("tool.result")["result"] == [long]
    agents.accepted(told, "complete", output={"text": long})
    assert callers.get(told["execution_id"])["output"] == {"text": long}


def test_a_file_that_is_gone_takes_nothing_else_with_it(
    site: Site, callers: Api, agents: Api, name: str
) -> None:
    """An execution whose input cannot be read waits for its end; its agent's other work goes on."""
    before = set((site.home / "state" / "files").rglob("*"))
    lost = callers.create(name, {"text": "x" * 100_000})["id"]
    for path in set((site.home / "state" / "files").rglob("*")) - before:
        if path.is_file():
            path.unlink()
    other = callers.create(name, {"n": 1})["id"]
    stream = agents.agent(name, "c1")
    told = stream.next("execution.assigned")
    assert told["execution_id"] == other
    time.sleep(1.0)
    agents.accepted(told, "complete", output=1)
    assert callers.kinds(other).count("execution.started") == 1 and not stream.closed.is_set()
    callers.call("POST", f"/v0/executions/{lost}/cancel")
    assert stream.next("execution.cancelled")["execution_id"] == lost
    stream.close()


def test_what_is_listed_and_watched_across_processes(
    callers: Api, agents: Api, stream: Sse, name: str
) -> None:
    """A stream at one process shows what happens at the other, as it happens, and ends with it."""
    told = assigned(callers, stream, name, None, team="red")
    watcher = callers.sse(f"/v0/executions/{told['execution_id']}/stream?after_sequence=1")
    assert watcher.next()["sequence"] == 2
    step = agents.accepted(told, "invoke_tool", tool_id="t")["step_id"]
    assert watcher.next("step.created")["step_id"] == step
    agents.step_result(told, step, success=True)
    agents.accepted(told, "complete")
    assert [sent.id for sent in watcher.all()] == [str(n) for n in range(2, 8)]
    listed = agents.ok("GET", f"/v0/executions?agent_id={name}&label=team:red&status=completed")
    assert [each["id"] for each in listed["executions"]] == [told["execution_id"]]


def test_executions_of_other_doors_say_where_they_come_from(site: Site, callers: Api) -> None:
    """What the command line began is here too, with a label for its door."""
    from worker.parts import Parts
    from worker.settings import Settings

    settings = Settings.load({"REDIS_URL": site.url, "WORKER_STATE_DIR": str(site.home / "state")})
    executions = Parts(settings, "cli").executions
    _, id = executions.create("echo", 1, door="cli", labels={"door": "cli"})
    assert callers.until(id, "completed")["labels"] == {"door": "cli"}
