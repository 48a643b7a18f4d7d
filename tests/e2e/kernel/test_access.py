"""Who may do what at the kernel door, and how refusals look."""

from __future__ import annotations

import http.client
import json
import socket
import uuid
from collections.abc import Callable

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.site import AGENT_KEYS, TOKEN, Site
from tests.waiting import eventually
from worker.bearers import MOST_FAILURES

AGENT, RUNNER = "keyed-agent", "keyed-runner"


def test_an_agents_key_opens_its_own_work_and_nothing_else(site: Site, agents: Api, callers: Api) -> None:
    """Its stream, its intents, its results, and the tools it may call; 403 for everything else."""
    mine = site.api(0, AGENT_KEYS[AGENT])
    stream = mine.agent(AGENT, "c1")
    id = callers.create(AGENT)["id"]
    told = stream.next("execution.assigned")
    step = mine.accepted(told, "invoke_tool", tool_id="t")["step_id"]
    assert mine.step_result(told, step, success=True).status == 200
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
    assert agents.accepted(others, "complete") and mine.accepted(told, "complete")
    stream.close()
    other_stream.close()


def test_a_runners_key_opens_its_own_jobs_and_nothing_else(site: Site, agents: Api, callers: Api) -> None:
    """A result for a step that another runner has looks like one for a step that is not there."""
    mine, name = site.api(1, AGENT_KEYS[RUNNER]), uuid.uuid4().hex[:8]
    runner = mine.runner(RUNNER, "c1", f"mine.{name}")
    assert mine.call("POST", f"/v0/runners/{RUNNER}/tools", {"tools": [{"id": f"mine.{name}"}]}).status == 204
    other = agents.runner("another", "c1", f"theirs.{name}")
    stream = agents.agent(f"agent-{name}", "c1")
    callers.create(f"agent-{name}")
    told = stream.next("execution.assigned")
    for tool in ("mine", "theirs"):
        agents.accepted(told, "invoke_tool", tool_id=f"{tool}.{name}", remote=True)
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


def test_bearers_are_exact(site: Site) -> None:
    """No bearer, another scheme or another case opens nothing; health and readiness need none."""
    nobody = site.api(0, None)
    for given in ({}, {"Authorization": f"bearer {TOKEN}"}, {"Authorization": TOKEN}):
        for path in ("/v0/executions", "/v0/tools", "/metrics", "/v0/agents/stream?agent_id=a&consumer_id=b"):
            answer = nobody.call("GET", path, None, **given)
            assert (answer.status, answer.body) == (
                401,
                {"error": "unauthorized", "code": "UNAUTHORIZED", "details": None},
            )
    assert nobody.call("GET", "/v0/health").body == {"status": "ok"}
    assert nobody.call("GET", "/v0/ready").body == {"status": "ready"}
    assert nobody.call("OPTIONS", "/v0/executions").status == 401


def test_whoever_guesses_has_to_wait(own_site: Callable[..., Site]) -> None:
    """After so many wrong bearers each of an address gets 429 everywhere; the right one still opens."""
    site = own_site().start()
    wrong, right = site.api(0, "a wrong token"), site.api(0)
    statuses = [wrong.call("GET", "/v0/executions").status for _ in range(MOST_FAILURES + 3)]
    assert statuses == [401] * MOST_FAILURES + [429] * 3
    answer = wrong.call("GET", "/v0/executions")
    assert (answer.status, answer.body["code"]) == (429, "RATE_LIMITED")
    assert 0 < int(answer.headers["Retry-After"]) <= 60
    # The other process learns of it with its first failure.
    assert site.api(1, "wrong").call("GET", "/v0/executions").status == 429
    # Nobody is locked out by a stranger behind the same address, or by an agent with an old key.
    assert [site.api(number).call("GET", "/v0/executions").status for number in (0, 1)] == [200, 200]
    assert site.api(0, AGENT_KEYS[AGENT]).call("GET", "/v0/tools").status == 200
    assert right.call("GET", "/v0/health").status == 200


def test_bodies_are_read_leniently(callers: Api) -> None:
    """Whatever the content type, the first JSON value counts; null is an empty object; 1 MiB is the limit."""
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
    # A name stands in log lines, and in lists where zero bytes part it from the next one.
    for path in ("agents/stream?agent_id", "runners/stream?runner_id"):
        for odd in ("%00", "a%00b", "a%0d%0ab", "%1b[2J"):
            assert callers.call("GET", f"/v0/{path}=a&consumer_id={odd}").status == 400
            assert callers.call("GET", f"/v0/{path}={odd}&consumer_id=a").status == 400
    assert callers.call("POST", "/v0/runners/r/tools", {"tools": [{"id": "a\nb"}]}).status == 400
    assert callers.call("POST", "/v0/runners/r%00/tools", {"tools": []}).status == 400


def test_a_body_that_breaks_off_is_its_senders_mistake(site: Site) -> None:
    """Chunks that are none get a 400 in the kernel's form, and leave no error in our logs."""
    head = f"POST /v0/executions HTTP/1.1\r\nHost: k\r\nAuthorization: Bearer {TOKEN}\r\n"
    for chunks in (b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}XX0\r\n\r\n", b"5;\x00\r\n{}\r\n"):
        with socket.create_connection(("127.0.0.1", site.ports[0]), timeout=10) as link:
            link.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
            link.shutdown(socket.SHUT_WR)
            answer = http.client.HTTPResponse(link, method="POST")
            answer.begin()
            assert (answer.status, json.loads(answer.read())["code"]) == (400, "VALIDATION_ERROR")
    assert "web.request_failed" not in (site.home / "web-0.log").read_text()


def test_a_body_in_chunks_has_the_same_limit(callers: Api) -> None:
    """It is too large, not cut: the same answer as for one that says its length; the connection goes on."""
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


def test_a_runner_may_offer_many_tools(callers: Api) -> None:
    """Two hundred names of the usual length fit into the line that opens its stream."""
    tools = [f"some-server.a_tool_with_a_name_{n:03}" for n in range(200)]
    runner = callers.runner("many-tools", "c1", *tools)
    assert runner.status == 200
    eventually(lambda: runner.comments)
    runner.close()


def test_request_ids_and_times(callers: Api) -> None:
    """Ids are echoed or made; the answers' times are RFC 3339 in UTC."""
    answer = callers.call("GET", "/v0/tools", None, X_Request_Id="mine")
    assert answer.headers["X-Request-Id"] == "mine"
    created = callers.create("nobody")
    assert created["created_at"].endswith("Z") and created["output"] is None
    assert uuid.UUID(created["id"]).version == 7


def test_pages_of_other_origins(own_site: Callable[..., Site]) -> None:
    """Where origins are configured they may call and read, and preflights need no bearer; others may not."""
    site = own_site(CORS_ORIGINS="https://app.example").start()
    nobody, api = site.api(0, None), site.api(1)
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


def test_metrics(site: Site, agents: Api, callers: Api) -> None:
    """The kernel's families stand beside the worker's own, and count what both processes did."""
    name = f"metered-{uuid.uuid4().hex[:8]}"
    stream = agents.agent(name, "c1")
    callers.create(name)
    told = stream.next("execution.assigned")
    step = agents.accepted(told, "invoke_tool", tool_id='odd "tool"\\n')["step_id"]
    agents.step_result(told, step, success=True)
    agents.intent(told, "invoke_tool", tool_id="shell.x")
    agents.accepted(told, "complete")
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


def test_answers_are_compact_json_lines(callers: Api) -> None:
    """As the document's: compact, with a line's end."""
    raw = callers.call("POST", "/v0/executions", {"agent_id": "a", "input": {"x": 1}}).raw
    assert raw.endswith(b"\n") and raw.count(b"\n") == 1
    assert json.loads(raw)["input"] == {"x": 1} and b'"x":1' in raw
