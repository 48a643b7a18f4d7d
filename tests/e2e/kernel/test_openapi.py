"""The OpenAPI document describes what agents and runners send and receive.

Their responses depend on earlier requests, so this test is a scripted exchange. Generated requests,
most of which are refused, are in the tests of the HIRE door.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from tests.e2e.kernel.client import Answer, Api, Sse
from tests.e2e.kernel.deployment import AGENT_KEYS, TOKEN, Deployment


@dataclass
class Described:
    """The document as served, and the responses and messages seen so far."""

    document: dict[str, Any]
    met: Counter[tuple[str, str]] = field(default_factory=Counter)

    @cached_property
    def paths(self) -> list[tuple[re.Pattern[str], str]]:
        """Path templates, those without parameters first."""
        names = sorted(self.document["paths"], key=lambda path: path.count("{"))
        return [(re.compile(re.sub(r"{\w+}", "[^/]+", name) + "$"), name) for name in names]

    def operation(self, method: str, path: str) -> tuple[str, dict[str, Any]]:
        bare = path.partition("?")[0]
        for pattern, name in self.paths:
            if pattern.match(bare) and method.lower() in self.document["paths"][name]:
                return name, self.document["paths"][name][method.lower()]
        raise AssertionError(f"{method} {path} is not described")

    def fits(self, value: Any, schema: dict[str, Any]) -> None:
        whole = {**schema, "components": self.document["components"]}
        Draft202012Validator(whole, format_checker=FormatChecker()).validate(value)

    def responses(self, operation: dict[str, Any]) -> dict[str, Any]:
        """An operation's responses by status, including shared ones."""
        shared = self.document["components"]["responses"]
        return {
            status: shared[answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
            for status, answer in operation["responses"].items()
        }

    def check(self, method: str, path: str, sent: Any, answer: Answer) -> None:
        """Checks that a served request and its response are documented."""
        name, operation = self.operation(method, path)
        described = self.responses(operation).get(str(answer.status))
        assert described is not None, (method, name, answer.status, answer.raw)
        shapes = described.get("content", {})
        if shapes:
            kind = answer.headers["Content-Type"].partition(";")[0]
            self.fits(answer.body, shapes[kind]["schema"])
        else:
            assert answer.raw == b""
        if sent is not None and answer.status < 300:
            self.fits(sent, operation["requestBody"]["content"]["application/json"]["schema"])
        self.met[f"{method} {name}", str(answer.status)] += 1

    def assignment(self, path: str, stream: Sse) -> None:
        """Checks that every message of a stream is documented."""
        _, operation = self.operation("GET", path)
        for each in stream.seen:
            assert each.event in operation["responses"]["200"]["x-events"], each
            self.fits(each.data, operation["responses"]["200"]["x-events"][each.event])
            self.met[path, each.event] += 1


class Checked(Api):
    """A client that checks every request and response against the document."""

    def __init__(self, port: int, token: str | None, described: Described) -> None:
        super().__init__(port, token)
        self.described = described

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        answer = super().call(method, path, body, **headers)
        self.described.check(method, path, body, answer)
        return answer


@pytest.fixture(name="described", scope="module")
def _described(deployment: Deployment) -> Described:
    return Described(json.loads(deployment.api(0).call("GET", "/openapi/operator.json").raw))


@pytest.fixture(name="api")
def _api(deployment: Deployment, described: Described) -> Checked:
    return Checked(deployment.ports[0], TOKEN, described)


@dataclass
class AgentAndRunner:
    """A working agent, and a runner with a tool unique to the test."""

    api: Checked
    name: str
    agent: Sse
    runner: Sse
    assignment: dict[str, Any]

    @property
    def tool(self) -> str:
        return f"tool.{self.name}"

    @property
    def id(self) -> str:
        return str(self.assignment["execution_id"])


@pytest.fixture(name="scene")
def _scene(api: Checked) -> Iterator[AgentAndRunner]:
    name = uuid.uuid4().hex[:8]
    agent = api.agent(f"agent-{name}", "c1")
    runner = api.runner(f"runner-{name}", "c1", f"tool.{name}")
    api.create(f"agent-{name}", {"n": 1}, env="test")
    yield AgentAndRunner(api, name, agent, runner, agent.next("execution.assigned"))
    agent.close()
    runner.close()
    api.described.assignment("/v0/agents/stream", agent)
    api.described.assignment("/v0/runners/stream", runner)


def test_local_and_remote_tools(scene: AgentAndRunner) -> None:
    """A local tool, a runner's tool that succeeds, one that fails, and one denied by policy."""
    api, assignment = scene.api, scene.assignment
    step = api.accepted(assignment, "invoke_tool", tool_id="local.x", arguments=[1], idempotency_key="k")[
        "step_id"
    ]
    assert api.step_result(assignment, step, success=True, data={"found": []}).status == 200
    assert scene.agent.next("tool.result")["result"] == {"found": []}
    assert api.step_result(assignment, step, success=False, error="late").status == 409
    assert api.step_result(assignment, str(uuid.uuid4()), success=True).status == 404
    assert api.intent(assignment, "invoke_tool", tool_id="shell.rm").body["accepted"] is False
    for success in (True, False):
        api.accepted(assignment, "invoke_tool", tool_id=scene.tool, arguments={"n": 1}, remote=True)
        job = scene.runner.next("job.assigned")
        begun = {"execution_id": scene.id, "runner_id": f"runner-{scene.name}"}
        api.ok("POST", f"/v0/runners/steps/{job['step_id']}/started", begun)
        about = {"data": [1]} if success else {"error": "no", "retryable": False}
        times = {"started_at": "2025-01-15T10:00:01Z", "completed_at": "2025-01-15T10:00:03.5Z"}
        answer = api.job_result(f"runner-{scene.name}", job, success=success, **about, **times)
        assert answer.status == 200
        assert scene.agent.next("tool.result")["status"] == ("succeeded" if success else "failed")
    assert api.job_result(f"runner-{scene.name}", {**job, "id": "another"}, success=True).status == 409
    api.accepted(assignment, "complete", output={"done": True})
    assert api.intent(assignment, "complete").status in (401, 409)


def test_waits_and_approvals(scene: AgentAndRunner) -> None:
    """A wait with its signal, an approved step, and an end by failure."""
    api, assignment = scene.api, scene.assignment
    api.accepted(assignment, "wait", signal_type="go")
    assert api.intent(assignment, "complete").status == 409
    assert api.signal(scene.id, "go", {"n": 1}).status == 200
    assert scene.agent.next("signal.received")["payload"] == {"n": 1}
    answer = api.accepted(assignment, "invoke_tool", tool_id="deploy.x", arguments=None)
    assert answer["pending_approval"] is True
    decided = {"step_id": answer["step_id"], "approved": True}
    assert api.signal(scene.id, "step.approve", decided).status == 200
    assert scene.agent.next("approval.resolved")["approved"] is True
    assert api.step_result(assignment, answer["step_id"], success=True).status == 200
    api.accepted(assignment, "fail", error="enough")
    assert api.get(scene.id)["status"] == "failed"


def test_cancelled_and_reassigned_work(scene: AgentAndRunner) -> None:
    """The agent is notified of a cancel; a reassigned execution includes its earlier steps."""
    api = scene.api
    api.ok("POST", f"/v0/executions/{scene.id}/cancel")
    assert scene.agent.next("execution.cancelled")["execution_id"] == scene.id
    other = f"other-{scene.name}"
    first = api.agent(other, "c1")
    api.create(other)
    assignment = first.next("execution.assigned")
    step = api.accepted(assignment, "invoke_tool", tool_id="local.x", arguments={"n": 1})["step_id"]
    assert api.step_result(assignment, step, success=True, data=7).status == 200
    # The same consumer again, without its earlier state.
    second = api.agent(other, "c2")
    first.close()
    again = second.next("execution.assigned")
    assert [each["result"] for each in again["history"]] == [7]
    assert api.intent(assignment, "complete").status == 401
    api.accepted(again, "complete")
    second.close()
    api.described.assignment("/v0/agents/stream", second)


def test_runner_registration(scene: AgentAndRunner) -> None:
    """Tools by id and with schemas, the list of all tools, and unregistering."""
    api, runner = scene.api, f"runner-{scene.name}"
    tools = [{"id": scene.tool, "description": "d", "input_schema": {"type": "object"}}]
    api.ok("POST", f"/v0/runners/{runner}/tools", {"tools": tools}, 204)
    [listed] = api.ok("GET", f"/v0/tools?prefix={scene.tool}")
    assert listed["runner_id"] == runner
    api.ok("POST", f"/v0/runners/{runner}/capabilities", {"tools": [scene.tool, "another"]})
    assert api.call("POST", f"/v0/runners/{runner}/capabilities", {"tools": "x"}).status == 400
    api.ok("DELETE", f"/v0/runners/{runner}", status=204)
    assert api.call("DELETE", f"/v0/runners/nobody-{scene.name}").status == 404


def test_wrong_keys(deployment: Deployment, described: Described) -> None:
    """An unknown key gets 401 and another's 403, as documented for every operation."""
    stranger = Checked(deployment.ports[0], None, described)
    keyed = Checked(deployment.ports[0], AGENT_KEYS["keyed-agent"], described)
    for _, name in described.paths:
        if not name.startswith("/v0/") or name in ("/v0/health", "/v0/ready"):
            continue
        for verb, operation in described.document["paths"][name].items():
            asked = name.format(id="x", step="x") + "?agent_id=x&runner_id=x&consumer_id=c"
            assert stranger.call(verb.upper(), asked).status == 401
            foreign = {"participant": []} not in operation["security"]
            if foreign or name.endswith("/stream"):
                assert keyed.call(verb.upper(), asked).status == 403
    assert keyed.call("GET", "/v0/tools").status == 200


def test_every_documented_response_and_message_was_seen(
    described: Described, request: pytest.FixtureRequest
) -> None:
    """The tests above saw every successful agent and runner response and every message type."""
    chosen = {item.name for item in request.session.items if item.path == request.path}
    if {name for name in globals() if name.startswith("test_")} - chosen:
        pytest.skip("not all tests of this file were chosen")
    wanted = set()
    for _, name in described.paths:
        if not name.startswith(("/v0/agents", "/v0/runners", "/v0/tools")):
            continue
        for verb, operation in described.document["paths"][name].items():
            for status, answer in operation["responses"].items():
                wanted |= {(name, event) for event in answer.get("x-events", {})}
                if status.startswith("2") and "x-events" not in answer:
                    wanted.add((f"{verb.upper()} {name}", status))
    assert wanted - set(described.met) == set()
