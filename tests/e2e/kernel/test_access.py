"""Permissions at the kernel door, and its error format."""

from __future__ import annotations

import http.client
import json
import socket
import uuid
from collections.abc import Callable

import pytest

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.deployment import AGENT_KEYS, KEYED_TOOLS, TOKEN, Deployment
from tests.waiting import eventually
from worker.store.wrong_credentials import MOST_FAILURES

AGENT, RUNNER = "keyed-agent", "keyed-runner"


def test_agent_key_reaches_only_its_own_executions(deployment: Deployment, agents: Api, callers: Api) -> None:
    """Its stream, its intents, its results and its permitted tools; 403 for everything else."""
    mine = deployment.api(0, AGENT_KEYS[AGENT])
    stream = mine.agent(AGENT, "c1")
    id = callers.create(AGENT)["id"]
    assignment = stream.next("execution.assigned")
    step = mine.accepted(assignment, "invoke_tool", tool_id="t")["step_id"]
    assert mine.step_result(assignment, step, success=True).status == 200
    assert mine.call("GET", "/v0/tools").status == 200
    other_stream = agents.agent("somebody", "c1")
    callers.create("somebody")
    others = other_stream.next("execution.assigned")
    foreign = [
        mine.call("GET", "/v0/executions"),
        mine.call("GET", f"/v0/executions/{id}"),
        mine.call("POST", "/v0/executions", {"agent_id": AGENT}),
        mine.call("POST", f"/v0/executions/{id}/cancel"),
        mine.call("POST", f"/v0/executions/{id}/signal", {"signal_type": "x"}),
        mine.call("GET", f"/v0/executions/{id}/events"),
        mine.call("GET", f"/v0/executions/{id}/stream"),
        mine.call("GET", "/v0/agents/stream?agent_id=somebody&consumer_id=c"),
        mine.call("GET", "/v0/runners/stream?runner_id=somebody&consumer_id=c"),
        mine.call("DELETE", "/v0/runners/somebody"),
        mine.call("POST", "/v0/runners/somebody/tools", {"tools": []}),
        mine.intent(others, "complete"),
        mine.intent(others, "wait", signal_type="x"),
        mine.intent(others, "invoke_tool", tool_id="t"),
    ]
    assert [(answer.status, answer.body["code"]) for answer in foreign] == [(403, "FORBIDDEN")] * len(foreign)
    assert mine.call("GET", "/metrics").status == 401
    theirs = agents.accepted(others, "invoke_tool", tool_id="t")["step_id"]
    assert mine.step_result(others, theirs, success=True).status == 403
    agents.step_result(others, theirs, success=True)
    assert agents.accepted(others, "complete") and mine.accepted(assignment, "complete")
    stream.close()
    other_stream.close()


def test_runner_key_reaches_only_its_own_jobs(deployment: Deployment, agents: Api, callers: Api) -> None:
    """A result for another runner's step gets the same response as one for an unknown step."""
    mine, name, tool = deployment.api(1, AGENT_KEYS[RUNNER]), uuid.uuid4().hex[:8], "keyed.one"
    runner = mine.runner(RUNNER, "c1", *KEYED_TOOLS)
    assert mine.call("POST", f"/v0/runners/{RUNNER}/tools", {"tools": [{"id": tool}]}).status == 204
    other = agents.runner("another", "c1", f"theirs.{name}")
    stream = agents.agent(f"agent-{name}", "c1")
    callers.create(f"agent-{name}")
    assignment = stream.next("execution.assigned")
    for wanted in (tool, f"theirs.{name}"):
        agents.accepted(assignment, "invoke_tool", tool_id=wanted, remote=True)
    job, theirs = runner.next("job.assigned"), other.next("job.assigned")
    assert mine.job_result(RUNNER, theirs, success=True).status == 404
    about = {"execution_id": theirs["execution_id"], "runner_id": RUNNER}
    assert mine.call("POST", f"/v0/runners/steps/{theirs['step_id']}/started", about).status == 404
    assert mine.job_result("another", job, success=True).status == 403
    about["runner_id"] = "another"
    assert mine.call("POST", f"/v0/runners/steps/{job['step_id']}/started", about).status == 403
    assert mine.job_result(RUNNER, job, success=True).status == 200
    assert agents.job_result("another", theirs, success=True).status == 200
    for each in (runner, other, stream):
        each.close()


def test_runner_key_offers_only_its_own_tools(deployment: Deployment) -> None:
    """On its stream, as capabilities and with schemas; the refusal lists the tools it may offer."""
    mine = deployment.api(0, AGENT_KEYS[RUNNER])
    refused = [
        mine.call(
            "GET", f"/v0/runners/stream?runner_id={RUNNER}&consumer_id=c&capabilities=keyed.one,payment"
        ),
        mine.call("POST", f"/v0/runners/{RUNNER}/capabilities", {"tools": ["payment"]}),
        mine.call("POST", f"/v0/runners/{RUNNER}/tools", {"tools": [{"id": "payment"}]}),
    ]
    for answer in refused:
        assert (answer.status, answer.body["code"]) == (403, "FORBIDDEN")
        assert "payment" in answer.body["error"]
        assert answer.body["details"] == {"field": "tools", "expected": list(KEYED_TOOLS)}


@pytest.mark.parametrize("name", [AGENT, "old-entry"])
def test_agent_key_cannot_act_as_a_runner(deployment: Deployment, name: str) -> None:
    """Not even under its own name: a runner sees other agents' arguments and produces their results."""
    mine = deployment.api(0, AGENT_KEYS[name])
    about = {"execution_id": str(uuid.uuid4()), "runner_id": name}
    result = {"job_id": "j", "execution_id": about["execution_id"], "step_id": "s", "success": True}
    refused = [
        mine.call("GET", f"/v0/runners/stream?runner_id={name}&consumer_id=c&capabilities=deploy"),
        mine.call("POST", f"/v0/runners/{name}/capabilities", {"tools": []}),
        mine.call("POST", f"/v0/runners/{name}/tools", {"tools": []}),
        mine.call("POST", f"/v0/runners/{name}/results", result),
        mine.call("POST", "/v0/runners/steps/s/started", about),
        mine.call("DELETE", f"/v0/runners/{name}"),
    ]
    assert [answer.status for answer in refused] == [403] * len(refused)
    assert refused[0].body["error"] == "this key is for an agent"
    mine.agent(name, "c1").close()


def test_runner_key_cannot_act_as_an_agent(deployment: Deployment) -> None:
    """A runner's key cannot connect as an agent, not even under its own name."""
    mine = deployment.api(0, AGENT_KEYS[RUNNER])
    nobody = {"execution_id": str(uuid.uuid4()), "session_id": str(uuid.uuid4())}
    refused = [
        mine.call("GET", f"/v0/agents/stream?agent_id={RUNNER}&consumer_id=c"),
        mine.intent(nobody, "complete"),
        mine.step_result(nobody, "s", success=True),
    ]
    assert [answer.status for answer in refused] == [403] * len(refused)


def test_startup_warns_of_keys_without_a_role(deployment: Deployment) -> None:
    """The warning gives their names and the syntax; the keys themselves are logged nowhere."""
    log = (deployment.home / "web-0.log").read_text()
    warning = next(json.loads(line) for line in log.splitlines() if "agent_keys.without_role" in line)
    assert "without a role: old-entry;" in warning["entries"] and "runner:NAME:KEY:TOOL" in warning["entries"]
    assert not any(key in log for key in AGENT_KEYS.values())


def test_bearer_tokens_must_match_exactly(deployment: Deployment) -> None:
    """A missing token, another scheme or another case is refused; health and readiness need no token."""
    nobody = deployment.api(0, None)
    for headers in ({}, {"Authorization": f"bearer {TOKEN}"}, {"Authorization": TOKEN}):
        for path in ("/v0/executions", "/v0/tools", "/metrics", "/v0/agents/stream?agent_id=a&consumer_id=b"):
            answer = nobody.call("GET", path, None, **headers)
            assert (answer.status, answer.body) == (
                401,
                {"error": "unauthorized", "code": "UNAUTHORIZED", "details": None},
            )
    assert nobody.call("GET", "/v0/health").body == {"status": "ok"}
    assert nobody.call("GET", "/v0/ready").body == {"status": "ready"}
    assert nobody.call("OPTIONS", "/v0/executions").status == 401


def test_guessing_tokens_is_rate_limited(own_deployment: Callable[..., Deployment]) -> None:
    """After too many wrong tokens an address gets 429 for further wrong ones; the right token still works."""
    deployment = own_deployment().start()
    wrong, right = deployment.api(0, "a wrong token"), deployment.api(0)
    statuses = [wrong.call("GET", "/v0/executions").status for _ in range(MOST_FAILURES + 3)]
    assert statuses == [401] * MOST_FAILURES + [429] * 3
    answer = wrong.call("GET", "/v0/executions")
    assert (answer.status, answer.body["code"]) == (429, "RATE_LIMITED")
    assert 0 < int(answer.headers["Retry-After"]) <= 60
    # The other process learns of it at its first failure.
    assert deployment.api(1, "wrong").call("GET", "/v0/executions").status == 429
    # Neither a stranger behind the same address nor an agent with an old key can lock anyone out.
    assert [deployment.api(number).call("GET", "/v0/executions").status for number in (0, 1)] == [200, 200]
    assert deployment.api(0, AGENT_KEYS[AGENT]).call("GET", "/v0/tools").status == 200
    assert right.call("GET", "/v0/health").status == 200


def test_request_bodies_are_parsed_leniently(callers: Api) -> None:
    """The first JSON value counts whatever the content type; null is an empty object; 1 MiB is the limit."""
    path = "/v0/executions"
    answer = callers.call(
        "POST", path, b'\n {"agent_id":"a","unknown":1} trailing', Content_Type="text/plain"
    )
    assert answer.status == 201
    for raw, message in [
        (b"", "validation error: invalid JSON: EOF"),
        (b"null", "validation error: agent_id is required"),
        (b"[]", "validation error: invalid JSON: the body must be an object"),
        (b'{"agent_id":', "validation error: invalid JSON: not one JSON value"),
        (b'{"agent_id":"a","input":NaN}', "validation error: invalid JSON: not one JSON value"),
        (b'{"agent_id":"a","input":1e999}', "validation error: invalid JSON: not one JSON value"),
        (b'{"agent_id":"\\ud800"}', "validation error: invalid JSON: half of a surrogate pair"),
        (b"\xff", "validation error: invalid JSON: not UTF-8"),
        (b"[" * 100_000, "validation error: invalid JSON: nested too deeply"),
        (b'{"agent_id":"' + b"x" * (1 << 20) + b'"}', "validation error: request body too large"),
    ]:
        answer = callers.call("POST", path, raw)
        assert (answer.status, answer.body["error"], answer.body["code"]) == (
            400,
            message,
            "VALIDATION_ERROR",
        )
    for field in ("success", "retryable"):
        about = {"job_id": "j", "execution_id": "e", "step_id": "s", field: "yes"}
        assert callers.call("POST", "/v0/runners/r/results", about).status == 400
    assert callers.call("POST", "/v0/agents/intent", {"execution_id": 5}).status == 400
    assert callers.call("GET", "/v0/agents/stream?agent_id=a").body["error"] == (
        "validation error: agent_id and consumer_id query params are required"
    )
    assert callers.call("GET", "/v0/runners/stream?consumer_id=a").status == 400
    assert callers.call("GET", f"/v0/agents/stream?agent_id={'x' * 257}&consumer_id=c").status == 400
    # A name appears in log lines, and in lists where zero bytes separate it from the next.
    for path in ("agents/stream?agent_id", "runners/stream?runner_id"):
        for odd in ("%00", "a%00b", "a%0d%0ab", "%1b[2J"):
            assert callers.call("GET", f"/v0/{path}=a&consumer_id={odd}").status == 400
            assert callers.call("GET", f"/v0/{path}={odd}&consumer_id=a").status == 400
    assert callers.call("POST", "/v0/runners/r/tools", {"tools": [{"id": "a\nb"}]}).status == 400
    assert callers.call("POST", "/v0/runners/r%00/tools", {"tools": []}).status == 400


def test_invalid_chunked_body_is_a_400(deployment: Deployment) -> None:
    """Invalid chunks get a 400 in the kernel's format and log no error."""
    head = f"POST /v0/executions HTTP/1.1\r\nHost: k\r\nAuthorization: Bearer {TOKEN}\r\n"
    for chunks in (b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}XX0\r\n\r\n", b"5;\x00\r\n{}\r\n"):
        with socket.create_connection(("127.0.0.1", deployment.ports[0]), timeout=10) as link:
            link.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
            link.shutdown(socket.SHUT_WR)
            answer = http.client.HTTPResponse(link, method="POST")
            answer.begin()
            assert (answer.status, json.loads(answer.read())["code"]) == (400, "VALIDATION_ERROR")
    assert "web.request_failed" not in (deployment.home / "web-0.log").read_text()


def test_chunked_body_has_the_same_size_limit(callers: Api) -> None:
    """Refused, not truncated, with the same response as a body with a length; the connection stays open."""
    link = http.client.HTTPConnection("127.0.0.1", callers.port, timeout=30)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    try:
        for size, status in ((1000, 201), ((1 << 20) + 1000, 400), (1000, 201)):
            whole = json.dumps({"agent_id": "nobody", "input": "x" * size}).encode()
            pieces = iter([whole[at : at + 65_536] for at in range(0, len(whole), 65_536)])
            link.request("POST", "/v0/executions", pieces, bearer, encode_chunked=True)
            answer = link.getresponse()
            body = json.loads(answer.read())
            assert answer.status == status, body
            if status == 400:
                assert body["error"] == "validation error: request body too large"
                assert body["code"] == "VALIDATION_ERROR"
    finally:
        link.close()


def test_a_runner_may_offer_many_tools(agents: Api, callers: Api) -> None:
    """Two hundred names of usual length fit into a request line; a job for the last one arrives."""
    tag = uuid.uuid4().hex[:6]
    tools = [f"srv-{tag}.a_tool_with_a_name_{n:03}" for n in range(200)]
    runner = callers.runner(f"many-tools-{tag}", "c1", *tools)
    stream = agents.agent(f"agent-{tag}", "c1")
    callers.create(f"agent-{tag}")
    assignment = stream.next("execution.assigned")
    step = agents.accepted(assignment, "invoke_tool", tool_id=tools[-1], remote=True)["step_id"]
    job = runner.next("job.assigned")
    assert (job["step_id"], job["tool_id"]) == (step, tools[-1])
    assert agents.job_result(f"many-tools-{tag}", job, success=True).status == 200
    assert stream.next("tool.result")["step_id"] == step
    runner.close()
    stream.close()


def test_request_ids_are_echoed_and_times_are_rfc_3339(callers: Api) -> None:
    """Request ids are echoed or generated; times in responses are RFC 3339 in UTC."""
    answer = callers.call("GET", "/v0/tools", None, X_Request_Id="mine")
    assert answer.headers["X-Request-Id"] == "mine"
    created = callers.create("nobody")
    assert created["created_at"].endswith("Z") and created["output"] is None
    assert uuid.UUID(created["id"]).version == 7


def test_cors_for_configured_origins(own_deployment: Callable[..., Deployment]) -> None:
    """Configured origins may call and read, and preflights need no token; other origins may not."""
    deployment = own_deployment(CORS_ORIGINS="https://app.example").start()
    nobody, api = deployment.api(0, None), deployment.api(1)
    asked = nobody.call("OPTIONS", "/v0/executions", None, Origin="https://app.example")
    assert (asked.status, asked.raw) == (204, b"")
    assert asked.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "DELETE" in asked.headers["Access-Control-Allow-Methods"]
    assert "Authorization" in asked.headers["Access-Control-Allow-Headers"]
    assert asked.headers["Access-Control-Max-Age"] == "86400"
    for path, status in (("/v0/executions", 200), ("/v0/executions/x", 404), ("/health", 200)):
        answer = api.call("GET", path, None, Origin="https://app.example")
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (
            status,
            "https://app.example",
        )
        assert "Origin" in answer.headers["Vary"]
        stranger = api.call("GET", path, None, Origin="https://evil.example")
        assert "Access-Control-Allow-Origin" not in stranger.headers
    refused = nobody.call("GET", "/v0/executions", None, Origin="https://app.example")
    assert refused.status == 401 and "Access-Control-Allow-Origin" in refused.headers


def test_metrics_include_the_kernels_families(deployment: Deployment, agents: Api, callers: Api) -> None:
    """The kernel's metric families are exposed beside the worker's own and count both processes."""
    name = f"metered-{uuid.uuid4().hex[:8]}"
    stream = agents.agent(name, "c1")
    callers.create(name)
    assignment = stream.next("execution.assigned")
    step = agents.accepted(assignment, "invoke_tool", tool_id='odd "tool"\\n')["step_id"]
    agents.step_result(assignment, step, success=True)
    agents.intent(assignment, "invoke_tool", tool_id="shell.x")
    agents.accepted(assignment, "complete")
    stream.close()

    def text() -> str:
        return callers.call("GET", "/metrics").raw.decode()

    eventually(lambda: "rebuno_policy_eval_seconds_count" in text(), 5)
    shown = text()
    for line in (
        "# TYPE rebuno_executions_total counter",
        "# TYPE rebuno_step_duration_seconds histogram",
        'rebuno_intents_total{type="invoke_tool",decision="denied"}',
        'rebuno_intents_total{type="complete",decision="accepted"}',
        'rebuno_step_duration_seconds_bucket{tool_id="odd \\"tool\\"\\\\n",le="+Inf"} 1',
        'rebuno_policy_eval_seconds_bucket{action="tool.invoke",le="0.005"}',
        "rebuno_active_executions ",
        'rebuno_executions_total{status="completed"}',
        "worker_http_requests_total",
    ):
        assert line in shown, line


def test_responses_are_compact_json_lines(callers: Api) -> None:
    """Compact with a trailing newline, as in the specification."""
    raw = callers.call("POST", "/v0/executions", {"agent_id": "a", "input": {"x": 1}}).raw
    assert raw.endswith(b"\n") and raw.count(b"\n") == 1
    assert json.loads(raw)["input"] == {"x": 1} and b'"x":1' in raw
