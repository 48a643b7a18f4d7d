"""The kernel door's HTTP interface: bodies, statuses, errors, pages, streams."""

from __future__ import annotations

import json
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
import structlog
from flask import Flask
from flask.testing import FlaskClient

from tests.engine import Engine, in_thread
from tests.web_app import TOKEN, application, settings_for
from worker.core.ids import is_id, new_id
from worker.doors.answers import request_id, sse
from worker.local.valkey import EmbeddedStore

V7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")

NOT_CURSORS = [
    "1",
    "1|",
    "1|x",
    "-5|{id}",
    "1_0|{id}",
    "\u0663|{id}",
    "1e5|{id}",
    "9" * 40 + "|{id}",
    "1|{id}|",
]
NOBODY = "0190b0a0-1111-7222-8333-444455556666"


@pytest.fixture(name="app", scope="module")
def _app(valkey: EmbeddedStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    with application(settings_for(valkey.url, tmp_path_factory.mktemp("open"))) as app:
        yield app


@pytest.fixture(name="http")
def _http(app: Flask, engine: Engine) -> FlaskClient:
    """A client without credentials at a door without a token."""
    return app.test_client()


@pytest.fixture(name="closed", scope="module")
def _closed(valkey: EmbeddedStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    settings = settings_for(valkey.url, tmp_path_factory.mktemp("closed"), kernel_token=TOKEN)
    with application(settings) as app:
        yield app


def encoded(text: str) -> str:
    """A string in cursor format."""
    return urlsafe_b64encode(text.format(id=NOBODY).encode()).decode()


def create(http: FlaskClient, **body: Any) -> dict[str, Any]:
    answer = http.post("/v0/executions", json={"agent_id": "a", **body})
    assert answer.status_code == 201
    return dict(answer.get_json())


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The error body, in the one format that clients know."""
    assert (answer.status_code, answer.mimetype) == (status, "application/json")
    body = answer.get_json()
    assert set(body) == {"error", "code", "details"}
    assert body["code"] == code and isinstance(body["error"], str)
    assert is_id(answer.headers["X-Request-Id"])
    return dict(body)


# Create and read


def test_create_returns_the_execution(http: FlaskClient) -> None:
    """201 with id, status, agent, labels, input and times; output is null until there is one."""
    answer = http.post("/v0/executions", json={"agent_id": "a", "input": {"x": []}, "labels": {"k": "v"}})
    body = answer.get_json()
    assert (answer.status_code, answer.mimetype, answer.data[-1:]) == (201, "application/json", b"\n")
    assert V7.fullmatch(body.pop("id"))
    assert MOMENT.fullmatch(body.pop("created_at")) and MOMENT.fullmatch(body.pop("updated_at"))
    assert body == {
        "status": "pending",
        "agent_id": "a",
        "labels": {"k": "v"},
        "input": {"x": []},
        "output": None,
    }


@pytest.mark.parametrize("value", [None, [], {}, "text", 0, False, 1.5, [[], {}], "é\u2028"])
def test_any_json_input_is_accepted(http: FlaskClient, value: Any) -> None:
    """Strings, lists and null are accepted as inputs; unknown fields are ignored."""
    body = create(http, input=value, unknown=1)
    assert http.get(f"/v0/executions/{body['id']}").get_json()["input"] == value
    assert create(http)["input"] is None
    assert create(http, labels=None)["labels"] == {}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "agent_id"),
        ({"agent_id": ""}, "agent_id"),
        ({"agent_id": None}, "agent_id"),
        ({"agent_id": 5}, "agent_id"),
        ({"agent_id": "x" * 257}, "agent_id"),
        ({"agent_id": "é" * 129}, "agent_id"),
        ({"agent_id": "a\0b"}, "agent_id"),
        ({"agent_id": "a\r\nb"}, "agent_id"),
        ({"agent_id": "a", "labels": []}, "labels"),
        ({"agent_id": "a", "labels": {"a": 1}}, "labels.a"),
        ({"agent_id": "a", "labels": {"a": None}}, "labels.a"),
        ({"agent_id": "a", "labels": {str(n): "" for n in range(33)}}, "labels"),
        ({"agent_id": "a", "labels": {"x" * 257: ""}}, "labels"),
        ({"agent_id": "a", "labels": {"x": "y" * 1025}}, "labels"),
    ],
)
def test_invalid_create_names_the_field(http: FlaskClient, engine: Engine, body: Any, field: str) -> None:
    """Each fault is a 400 that names the field, and nothing is created."""
    error = refused(http.post("/v0/executions", json=body), 400, "VALIDATION_ERROR")
    assert error["details"]["field"] == field
    assert error["error"].startswith("validation error: ")
    assert engine.store.count(engine.keys.everything) == 0


@pytest.mark.parametrize("raw", [b"", b"nonsense", b"[1]", b'"x"', b"\xff", b'{"agent_id":"a"', b"null"])
def test_non_object_body_is_refused(http: FlaskClient, raw: bytes) -> None:
    """Empty, malformed and non-object bodies are 400, whatever their content type."""
    for kind in ("application/json", "text/plain"):
        refused(http.post("/v0/executions", data=raw, content_type=kind), 400, "VALIDATION_ERROR")


def test_content_type_is_ignored(http: FlaskClient) -> None:
    """A JSON body is parsed whatever its content type."""
    answer = http.post("/v0/executions", data=b'{"agent_id":"a"}', content_type="text/plain")
    assert answer.status_code == 201


def test_body_over_one_mib_is_refused(http: FlaskClient, engine: Engine) -> None:
    """400, as the protocol requires; an input up to the limit is accepted in full."""
    raw = b'{"agent_id":"a","input":"' + b"x" * (1 << 20) + b'"}'
    error = refused(http.post("/v0/executions", data=raw), 400, "VALIDATION_ERROR")
    assert "too large" in error["error"]
    assert engine.store.count(engine.keys.everything) == 0
    assert len(create(http, input="x" * 900_000)["input"]) == 900_000


@pytest.mark.parametrize("labels", [{"a:b": "c:d"}, {" ": " "}, {"é\n\x00": "\u202e"}, {"": ""}, {"{}": '"'}])
def test_labels_accept_any_text(http: FlaskClient, labels: dict[str, str]) -> None:
    """Unusual characters in a label round-trip; a filter splits at the first colon."""
    body = create(http, labels=labels)
    assert body["labels"] == labels
    [(name, value)] = labels.items()
    if name and ":" not in name:
        found = http.get("/v0/executions", query_string={"label": f"{name}:{value}"}).get_json()
        assert [each["id"] for each in found["executions"]] == [body["id"]]


def test_finished_execution_shows_its_output(http: FlaskClient, engine: Engine) -> None:
    """After completion status and output are shown; without an output, null."""
    id = create(http)["id"]
    engine.take(id)
    engine.seal(id, 1, output=b'{"a":[]}')
    shown = http.get(f"/v0/executions/{id}/").get_json()
    assert (shown["status"], shown["output"]) == ("completed", {"a": []})
    assert "error" not in shown


@pytest.mark.parametrize("id", ["x", NOBODY, NOBODY.upper(), NOBODY + "%0A", "..%2F..", "%00", "é" * 300])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("POST", "/cancel"), ("POST", "/signal"), ("GET", "/events"), ("GET", "/stream")],
)
def test_unknown_execution_is_404(http: FlaskClient, method: str, path: str, id: str) -> None:
    """Every route answers 404 in JSON for an unknown execution, whatever its id."""
    body = {"signal_type": "x"} if path == "/signal" else None
    answer = http.open(f"/v0/executions/{id}{path}", method=method, json=body)
    assert len(refused(answer, 404, "NOT_FOUND")["error"]) < 200


# Lists


def test_lists_are_filtered_and_paged(http: FlaskClient) -> None:
    """Filters combine, cursors link consecutive pages, and the last one has an empty cursor."""
    ids = [
        create(http, agent_id="ab"[n % 2], labels={"n": str(n % 3), "all": "yes"})["id"] for n in range(12)
    ][::-1]
    http.post(f"/v0/executions/{ids[0]}/cancel")

    def listed(**query: Any) -> list[str]:
        found, cursor = [], ""
        while True:
            body = http.get("/v0/executions", query_string={**query, "cursor": cursor}).get_json()
            assert set(body) == {"executions", "next_cursor"}
            found += [each["id"] for each in body["executions"]]
            cursor = body["next_cursor"]
            if not cursor:
                return found

    assert listed() == listed(limit=5) == listed(limit=1) == ids
    assert listed(status="cancelled") == ids[:1]
    assert listed(agent_id="a", limit=2) == ids[1::2]
    assert listed(label=["n:0", "all:yes"], limit=1) == [
        id for at, id in enumerate(ids) if (11 - at) % 3 == 0
    ]
    assert listed(agent_id="b", label="n:0", status="pending") == [ids[2], ids[8]]
    assert listed(agent_id="nobody") == []
    [row] = http.get("/v0/executions?limit=1").get_json()["executions"]
    assert set(row) == {"id", "status", "agent_id", "labels", "created_at", "updated_at"}


@pytest.mark.parametrize(
    ("limit", "count"), [("", 50), ("0", 50), ("-1", 50), ("x", 50), ("²", 50), ("7", 7), ("1" * 30, 50)]
)
def test_invalid_limit_uses_the_default(http: FlaskClient, engine: Engine, limit: str, count: int) -> None:
    """Zero, negative and malformed limits mean fifty."""
    for _ in range(52):
        engine.new()
    body = http.get("/v0/executions", query_string={"limit": limit}).get_json()
    assert len(body["executions"]) == count


def test_limit_is_capped_at_200(http: FlaskClient, engine: Engine) -> None:
    """No page has more than 200 entries."""
    for _ in range(203):
        engine.new()
    assert len(http.get("/v0/executions?limit=999").get_json()["executions"]) == 200


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("status=done", 'invalid status "done"'),
        ("label=nocolon", 'invalid label filter "nocolon", expected key:value'),
        ("label=:v", 'invalid label filter ":v", expected key:value'),
        ("cursor=nonsense", "the cursor is invalid"),
        ("cursor=%FF%FE", "the cursor is invalid"),
        *((f"cursor={quote(encoded(text))}", "the cursor is invalid") for text in NOT_CURSORS),
    ],
)
def test_invalid_query_is_refused(http: FlaskClient, query: str, message: str) -> None:
    """An unknown status, a label without a key and a foreign cursor are 400."""
    error = refused(http.get(f"/v0/executions?{query}"), 400, "VALIDATION_ERROR")
    assert error["error"] == f"validation error: {message}"


# Cancel and signal


def test_cancelling_works_once(http: FlaskClient, engine: Engine) -> None:
    """The first cancel returns the cancelled execution, whatever its body; the second is a conflict."""
    id = create(http)["id"]
    answer = http.post(f"/v0/executions/{id}/cancel", data=b"not json")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "cancelled")
    error = refused(http.post(f"/v0/executions/{id}/cancel"), 409, "CONFLICT")
    assert "already cancelled" in error["error"]
    assert engine.log(id, "execution.cancelled")[0].data() == {"reason": "cancelled by request"}


def test_signals_need_a_type_and_an_open_execution(http: FlaskClient, engine: Engine) -> None:
    """A signal is stored unchanged; without a type it is 400, after the end 409."""
    id = create(http)["id"]
    path = f"/v0/executions/{id}/signal"
    answer = http.post(path, json={"signal_type": "go", "payload": [[], None]})
    assert (answer.status_code, answer.get_json()) == (200, {"status": "ok"})
    assert engine.log(id, "signal.received")[0].data() == {"signal_type": "go", "payload": [[], None]}
    assert http.post(path, json={"signal_type": "go"}).status_code == 200
    for body in ({}, {"signal_type": ""}, {"signal_type": 1}, {"signal_type": "x" * 257}):
        refused(http.post(path, json=body), 400, "VALIDATION_ERROR")
    engine.cancel(id)
    refused(http.post(path, json={"signal_type": "go"}), 409, "CONFLICT")


def test_signals_are_limited_by_the_log(http: FlaskClient, engine: Engine) -> None:
    """A log accepts signals up to its limit, then refuses with an error."""
    id = create(http)["id"]
    path = f"/v0/executions/{id}/signal"
    long = {"signal_type": "x", "payload": "x" * 30_000}
    statuses = [http.post(path, json=long).status_code for _ in range(150)]
    assert statuses == sorted(statuses) and set(statuses) == {200, 409}
    assert engine.client.memory_usage(engine.keys.log(id)) < 5_000_000


def test_large_signal_is_kept_in_a_file(http: FlaskClient, engine: Engine) -> None:
    """The log has size and digest; the waiting function gets the whole signal."""
    id = create(http)["id"]
    body = {"signal_type": "x", "payload": "x" * 1_000_000}
    assert http.post(f"/v0/executions/{id}/signal", json=body).status_code == 200
    signal = engine.log(id, "signal.received")[0].data()
    assert signal["payload"] is None and signal["payload_file"]["size"] == 1_000_002


# Events


def test_events_are_paged(http: FlaskClient, engine: Engine) -> None:
    """after_sequence and limit select from the log; latest_sequence is that of the last event, or 0."""
    execution = engine.running()
    for number in range(8):
        engine.store.append(execution.id, 1, number, [("progress.updated", b'{"n":[]}')])
    path = f"/v0/executions/{execution.id}/events"

    def read(query: str) -> tuple[list[int], int]:
        body = http.get(f"{path}?{query}").get_json()
        return [event["sequence"] for event in body["events"]], body["latest_sequence"]

    assert read("") == (list(range(1, 11)), 10)
    assert read("after_sequence=7") == ([8, 9, 10], 10)
    assert read("after_sequence=2&limit=3") == ([3, 4, 5], 5)
    assert read("after_sequence=10") == read("after_sequence=9999999999") == ([], 0)
    for senseless in ("-1", "x", "1.5", "²", "٣", "9" * 40, ""):
        assert read(f"after_sequence={senseless}") == (list(range(1, 11)), 10)
        assert read(f"limit={senseless}") == (list(range(1, 11)), 10)
    event = http.get(f"{path}?after_sequence=2&limit=1").get_json()["events"][0]
    assert (event["type"], event["payload"], event["execution_id"]) == (
        "progress.updated",
        {"n": []},
        execution.id,
    )


def frames(text: str) -> list[dict[str, str]]:
    """Parses an event stream into frames."""
    found = []
    for block in text.split("\n\n"):
        fields = [line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":")]
        if any(name == "data" for name, _ in fields):
            found.append(dict(fields))
    return found


def test_stream_replays_the_log_and_ends(http: FlaskClient, engine: Engine) -> None:
    """The retry hint first, then every event with id, event and data on separate lines, then the end."""
    execution = engine.running()
    engine.store.append(execution.id, 1, 1, [("output.chunk", '{"text":"é\\n\\r"}'.encode())])
    engine.seal(execution.id, 1)
    answer = http.get(f"/v0/executions/{execution.id}/stream")
    assert (answer.status_code, answer.mimetype) == (200, "text/event-stream")
    assert (answer.headers["Cache-Control"], answer.headers["X-Accel-Buffering"]) == ("no-store", "no")
    assert is_id(answer.headers["X-Request-Id"])
    text = answer.get_data(as_text=True)
    assert text.startswith("retry: 5000\n\n")
    assert [(frame["id"], frame["event"]) for frame in frames(text)] == [
        ("1", "execution.created"),
        ("2", "execution.started"),
        ("3", "output.chunk"),
        ("4", "execution.completed"),
    ]
    shown = http.get(f"/v0/executions/{execution.id}/events").get_json()["events"]
    assert [json.loads(frame["data"]) for frame in frames(text)] == shown


@pytest.mark.parametrize(
    ("query", "header", "first"),
    [
        ("after_sequence=2", None, 3),
        ("", "2", 3),
        ("after_sequence=1", "2", 3),
        ("after_sequence=2", "1", 3),
        ("after_sequence=-5", "x", 1),
        ("after_sequence=x", "²", 1),
        ("", "9" * 5000, 1),
        ("", "-1", 1),
    ],
)
def test_stream_resumes_from_the_last_event(
    http: FlaskClient, engine: Engine, query: str, header: str | None, first: int
) -> None:
    """The later of after_sequence and Last-Event-ID wins; an invalid value means the beginning."""
    id = engine.running().id
    engine.seal(id, 1)
    headers = {} if header is None else {"Last-Event-ID": header}
    text = http.get(f"/v0/executions/{id}/stream?{query}", headers=headers).get_data(as_text=True)
    assert [int(frame["id"]) for frame in frames(text)] == list(range(first, 4))


def test_stream_after_the_end_closes(http: FlaskClient, engine: Engine) -> None:
    """A client that has seen the end gets the hint, and the stream closes."""
    id = engine.running().id
    engine.seal(id, 1)
    began = time.monotonic()
    answer = http.get(f"/v0/executions/{id}/stream?after_sequence=3")
    assert (answer.get_data(as_text=True), time.monotonic() - began < 3) == ("retry: 5000\n\n", True)


def test_stream_delivers_live_events(http: FlaskClient, engine: Engine) -> None:
    """Live events reach a connected client immediately, each in its frame."""
    id = engine.running().id
    answer = http.get(f"/v0/executions/{id}/stream?after_sequence=2", buffered=False)
    pieces = iter(answer.response)
    assert next(pieces) in ("retry: 5000\n\n", b"retry: 5000\n\n")

    def work() -> None:
        time.sleep(0.1)
        engine.store.append(id, 1, 1, [("progress.updated", b"{}")])
        engine.seal(id, 1)

    began = time.monotonic()
    with in_thread(work):
        rest = [piece if isinstance(piece, str) else bytes(piece).decode() for piece in pieces]
    assert [frame["event"] for frame in frames("".join(rest))] == ["progress.updated", "execution.completed"]
    assert time.monotonic() - began < 4
    answer.close()


def test_silence_sends_a_heartbeat() -> None:
    """An empty batch keeps the connection alive with a comment that no parser treats as an event."""
    assert list(sse([[], []])) == ["retry: 5000\n\n", ":heartbeat\n\n", ":heartbeat\n\n"]
    assert frames(":heartbeat\n\n") == []


# Access and error format


ROUTES = [
    ("POST", "/v0/executions"),
    ("GET", "/v0/executions"),
    ("GET", "/v0/executions/x"),
    ("POST", "/v0/executions/x/cancel"),
    ("POST", "/v0/executions/x/signal"),
    ("GET", "/v0/executions/x/events"),
    ("GET", "/v0/executions/x/stream"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", f"bearer {TOKEN}", f"Bearer {TOKEN}x", TOKEN, "Basic eDp5", "Bearer é"],
)
def test_requests_without_the_token_are_refused(
    closed: Flask, method: str, path: str, authorization: str | None
) -> None:
    """Every route refuses missing, wrong and partly correct credentials alike."""
    headers = {} if authorization is None else {"Authorization": authorization}
    # A separate address: one that fails often is rate limited.
    address = {
        "REMOTE_ADDR": f"10.{hash((method, path, authorization)) % 250}.{ROUTES.index((method, path))}.1"
    }
    answer = closed.test_client().open(path, method=method, headers=headers, environ_base=address)
    error = refused(answer, 401, "UNAUTHORIZED")
    assert error == {"error": "unauthorized", "code": "UNAUTHORIZED", "details": None}


def test_operator_token_is_accepted(closed: Flask, engine: Engine) -> None:
    """The operator's bearer token opens it."""
    answer = closed.test_client().get("/v0/executions", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (answer.status_code, answer.get_json()) == (200, {"executions": [], "next_cursor": ""})


def test_request_ids_are_echoed_or_created(http: FlaskClient) -> None:
    """A given id is echoed on success, error and stream; a missing or malformed one is replaced."""
    for path in ("/v0/executions", "/v0/executions/x", "/nowhere", "/health"):
        assert http.get(path, headers={"X-Request-Id": "mine 1"}).headers["X-Request-Id"] == "mine 1"
        assert is_id(http.get(path).headers["X-Request-Id"])
        assert is_id(http.get(path, headers={"X-Request-Id": "x" * 129}).headers["X-Request-Id"])
        assert is_id(http.get(path, headers={"X-Request-Id": "é"}).headers["X-Request-Id"])
    assert request_id({"HTTP_X_REQUEST_ID": "x" * 128}) == "x" * 128
    odd = ("", "a\r\nb", "a\x00", "x" * 129)
    assert all(is_id(request_id({"HTTP_X_REQUEST_ID": text})) for text in odd)
    unnamed: dict[str, Any] = {}
    assert is_id(request_id(unnamed)) and request_id(unnamed) == request_id(unnamed)


def test_unknown_paths_and_methods_use_the_doors_error_format(http: FlaskClient) -> None:
    """Both use the door's format, elsewhere that of HIRE; 405 has an Allow header."""
    refused(http.get("/v0/nothing"), 404, "NOT_FOUND")
    answer = http.delete("/v0/executions")
    refused(answer, 405, "METHOD_NOT_ALLOWED")
    assert set(answer.headers["Allow"].split(", ")) >= {"GET", "POST"}
    for path, code in (("/nothing", "NOT_FOUND"), ("/execute", "METHOD_NOT_ALLOWED")):
        body = http.get(path).get_json()
        assert (body["status"], body["error"]["code"]) == ("failed", code)
        assert (
            body["error"]["details"]["charged"] is False
            and "not charged" in body["error"]["details"]["advice"]
        )


def test_cors_for_all_origins(valkey: EmbeddedStore, tmp_path: Path) -> None:
    """With all origins allowed, each gets the headers, on refusals too; without Origin there are none."""
    settings = settings_for(valkey.url, tmp_path, kernel_token=TOKEN, cors_origins=("*",))
    with application(settings) as app:
        http = app.test_client()
        for method, path, status in [
            ("OPTIONS", "/v0/runners/x", 204),
            ("GET", "/v0/executions", 401),
            ("GET", "/v0/health", 200),
        ]:
            answer = http.open(path, method=method, headers={"Origin": "https://any.example"})
            assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (status, "*")
            assert "Access-Control-Allow-Origin" not in http.open(path, method=method).headers


def test_internal_error_reveals_nothing(http: FlaskClient, engine: Engine) -> None:
    """An internal fault is a 500 without details."""
    id = engine.new()
    engine.client.delete(engine.keys.record(id))
    engine.client.set(engine.keys.record(id), "spoilt")
    error = refused(http.get(f"/v0/executions/{id}"), 500, "INTERNAL_ERROR")
    assert error == {"error": "internal error", "code": "INTERNAL_ERROR", "details": None}
    engine.client.delete(engine.keys.record(id))
    engine.client.hset(engine.keys.record(id), mapping={"id": id, "state": "no such state"})
    assert refused(http.get(f"/v0/executions/{id}"), 500, "INTERNAL_ERROR")["details"] is None


def test_logging_context_is_cleared_after_each_request(http: FlaskClient, engine: Engine) -> None:
    """After a success, a refusal or a stream, complete or abandoned, no request id is bound."""
    id = engine.running().id
    for path in ("/v0/executions", "/v0/executions/x", "/nowhere"):
        http.get(path)
        assert structlog.contextvars.get_contextvars() == {}
    early = http.get(f"/v0/executions/{id}/stream", buffered=False)
    next(iter(early.response))
    assert structlog.contextvars.get_contextvars() == {}
    early.close()
    engine.seal(id, 1)
    http.get(f"/v0/executions/{id}/stream").get_data()
    assert structlog.contextvars.get_contextvars() == {}


def test_abandoned_stream_unsubscribes(http: FlaskClient, engine: Engine) -> None:
    """Closing the response ends the wait and removes the subscription."""
    id = engine.running().id
    channel = engine.keys.log(id)
    answer = http.get(f"/v0/executions/{id}/stream", buffered=False)
    pieces = iter(answer.response)
    next(pieces), next(pieces)
    until = time.monotonic() + 5
    while dict(engine.client.pubsub_numsub(channel))[channel.encode()] == 0:
        assert time.monotonic() < until
    answer.close()
    until = time.monotonic() + 5
    while dict(engine.client.pubsub_numsub(channel))[channel.encode()] != 0:
        assert time.monotonic() < until


def test_unused_request_context_can_end(app: Flask) -> None:
    """A request context that never ran the before-request hooks ends cleanly."""
    with app.test_request_context("/health"):
        pass


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_unavailable_store_is_503(tmp_path: Path, method: str, path: str) -> None:
    """Every route returns 503 with Retry-After, and no addresses."""
    path = path.replace("/x", f"/{new_id()}")
    body = {"agent_id": "a", "signal_type": "x"} if method == "POST" else None
    with application(settings_for("redis://:secret@127.0.0.1:1/0", tmp_path)) as app:
        answer = app.test_client().open(path, method=method, json=body)
    error = refused(answer, 503, "SERVICE_UNAVAILABLE")
    assert int(answer.headers["Retry-After"]) > 0
    assert "127.0.0.1" not in json.dumps(error) and "secret" not in json.dumps(error)


def test_full_or_read_only_store_is_503(http: FlaskClient, client: redis.Redis) -> None:
    """A full or read-only store is reported like an unreachable one."""
    client.config_set("maxmemory", 1)
    try:
        answer = http.post("/v0/executions", json={"agent_id": "a"})
    finally:
        client.config_set("maxmemory", 0)
    refused(answer, 503, "SERVICE_UNAVAILABLE")
    assert client.keys("w:x:*") == []
