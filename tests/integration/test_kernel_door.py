"""The kernel door as its clients see it: bodies, statuses, errors, pages, streams."""

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

from tests.doors import TOKEN, application, settings_for
from tests.engine import Engine, in_thread
from worker.doors.answers import request_id, sse
from worker.ids import is_id, new_id
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
    """Something in the form of a cursor."""
    return urlsafe_b64encode(text.format(id=NOBODY).encode()).decode()


def create(http: FlaskClient, **body: Any) -> dict[str, Any]:
    answer = http.post("/v0/executions", json={"agent_id": "a", **body})
    assert answer.status_code == 201
    return dict(answer.get_json())


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The error's body, which has the one form that clients know."""
    assert (answer.status_code, answer.mimetype) == (status, "application/json")
    body = answer.get_json()
    assert set(body) == {"error", "code", "details"}
    assert body["code"] == code and isinstance(body["error"], str)
    assert is_id(answer.headers["X-Request-Id"])
    return dict(body)


# Creating and reading


def test_creation_answers_with_the_execution(http: FlaskClient) -> None:
    """201 with id, status, agent, labels, input, times, and an output that is null until there is one."""
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
def test_any_json_is_an_input(http: FlaskClient, value: Any) -> None:
    """Strings, lists and null are inputs like any other; fields that we do not know are ignored."""
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
def test_a_malformed_creation_names_its_field(
    http: FlaskClient, engine: Engine, body: Any, field: str
) -> None:
    """Each fault is a 400 that names the field, and nothing is created."""
    error = refused(http.post("/v0/executions", json=body), 400, "VALIDATION_ERROR")
    assert error["details"]["field"] == field
    assert error["error"].startswith("validation error: ")
    assert engine.store.count(engine.keys.everything) == 0


@pytest.mark.parametrize("raw", [b"", b"nonsense", b"[1]", b'"x"', b"\xff", b'{"agent_id":"a"', b"null"])
def test_a_body_that_is_no_object_is_refused(http: FlaskClient, raw: bytes) -> None:
    """Empty, broken and other bodies are 400, whatever their content type."""
    for kind in ("application/json", "text/plain"):
        refused(http.post("/v0/executions", data=raw, content_type=kind), 400, "VALIDATION_ERROR")


def test_the_content_type_does_not_matter(http: FlaskClient) -> None:
    """A JSON body is read as JSON under any name."""
    answer = http.post("/v0/executions", data=b'{"agent_id":"a"}', content_type="text/plain")
    assert answer.status_code == 201


def test_a_body_over_a_megabyte_is_too_large(http: FlaskClient, engine: Engine) -> None:
    """400, as this protocol wants it; up to the limit an input is taken whole."""
    raw = b'{"agent_id":"a","input":"' + b"x" * (1 << 20) + b'"}'
    error = refused(http.post("/v0/executions", data=raw), 400, "VALIDATION_ERROR")
    assert "too large" in error["error"]
    assert engine.store.count(engine.keys.everything) == 0
    assert len(create(http, input="x" * 900_000)["input"]) == 900_000


@pytest.mark.parametrize("labels", [{"a:b": "c:d"}, {" ": " "}, {"é\n\x00": "\u202e"}, {"": ""}, {"{}": '"'}])
def test_labels_may_be_any_text(http: FlaskClient, labels: dict[str, str]) -> None:
    """Odd characters in a label come back as they were; a filter finds them up to the first colon."""
    body = create(http, labels=labels)
    assert body["labels"] == labels
    [(name, value)] = labels.items()
    if name and ":" not in name:
        found = http.get("/v0/executions", query_string={"label": f"{name}:{value}"}).get_json()
        assert [each["id"] for each in found["executions"]] == [body["id"]]


def test_a_finished_execution_shows_its_output(http: FlaskClient, engine: Engine) -> None:
    """After completion status and output are shown; an agent without output gives null."""
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
def test_what_is_unknown_is_not_found(http: FlaskClient, method: str, path: str, id: str) -> None:
    """Every route answers 404 in JSON for an execution that is not there, however odd its id."""
    body = {"signal_type": "x"} if path == "/signal" else None
    answer = http.open(f"/v0/executions/{id}{path}", method=method, json=body)
    assert len(refused(answer, 404, "NOT_FOUND")["error"]) < 200


# Lists


def test_lists_are_filtered_and_paged(http: FlaskClient) -> None:
    """Filters combine, pages follow each other by cursor, and the last one has an empty cursor."""
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
def test_a_limit_that_is_none_is_the_usual_one(
    http: FlaskClient, engine: Engine, limit: str, count: int
) -> None:
    """Zero, negative and senseless limits mean fifty."""
    for _ in range(52):
        engine.new()
    body = http.get("/v0/executions", query_string={"limit": limit}).get_json()
    assert len(body["executions"]) == count


def test_a_limit_is_cut_at_two_hundred(http: FlaskClient, engine: Engine) -> None:
    """No page is longer than 200."""
    for _ in range(203):
        engine.new()
    assert len(http.get("/v0/executions?limit=999").get_json()["executions"]) == 200


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("status=done", 'invalid status "done"'),
        ("label=nocolon", 'invalid label filter "nocolon", expected key:value'),
        ("label=:v", 'invalid label filter ":v", expected key:value'),
        ("cursor=nonsense", "the cursor is not one of ours"),
        ("cursor=%FF%FE", "the cursor is not one of ours"),
        *((f"cursor={quote(encoded(text))}", "the cursor is not one of ours") for text in NOT_CURSORS),
    ],
)
def test_a_senseless_query_is_refused(http: FlaskClient, query: str, message: str) -> None:
    """An unknown status, a label without a key and a foreign cursor are 400."""
    error = refused(http.get(f"/v0/executions?{query}"), 400, "VALIDATION_ERROR")
    assert error["error"] == f"validation error: {message}"


# Cancelling and signalling


def test_cancelling_works_once(http: FlaskClient, engine: Engine) -> None:
    """The first cancel answers with the cancelled execution, whatever its body; the second is a conflict."""
    id = create(http)["id"]
    answer = http.post(f"/v0/executions/{id}/cancel", data=b"not json")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "cancelled")
    error = refused(http.post(f"/v0/executions/{id}/cancel"), 409, "CONFLICT")
    assert "already cancelled" in error["error"]
    assert engine.log(id, "execution.cancelled")[0].data() == {"reason": "cancelled by request"}


def test_signals_need_a_type_and_a_living_execution(http: FlaskClient, engine: Engine) -> None:
    """A signal is stored as it came; without a type it is 400, after the end 409."""
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


def test_signals_without_end_are_refused(http: FlaskClient, engine: Engine) -> None:
    """A log takes signals up to its limit and then says so."""
    id = create(http)["id"]
    path = f"/v0/executions/{id}/signal"
    long = {"signal_type": "x", "payload": "x" * 30_000}
    statuses = [http.post(path, json=long).status_code for _ in range(150)]
    assert statuses == sorted(statuses) and set(statuses) == {200, 409}
    assert engine.client.memory_usage(engine.keys.log(id)) < 5_000_000


def test_a_very_long_signal_is_kept_in_a_file(http: FlaskClient, engine: Engine) -> None:
    """The log has its size and digest; whoever waits for it gets it whole."""
    id = create(http)["id"]
    body = {"signal_type": "x", "payload": "x" * 1_000_000}
    assert http.post(f"/v0/executions/{id}/signal", json=body).status_code == 200
    told = engine.log(id, "signal.received")[0].data()
    assert told["payload"] is None and told["payload_file"]["size"] == 1_000_002


# Events


def test_events_are_read_in_pieces(http: FlaskClient, engine: Engine) -> None:
    """after_sequence and limit cut the log; latest_sequence is the last event's, or 0."""
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
    """What an event-stream parser makes of a text."""
    found = []
    for block in text.split("\n\n"):
        fields = [line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":")]
        if any(name == "data" for name, _ in fields):
            found.append(dict(fields))
    return found


def test_a_stream_replays_and_ends(http: FlaskClient, engine: Engine) -> None:
    """The retry hint first, then every event with id, event and data on lines of their own, then the end."""
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
def test_a_stream_goes_on_where_it_was_left(
    http: FlaskClient, engine: Engine, query: str, header: str | None, first: int
) -> None:
    """after_sequence and Last-Event-ID both count, the later one wins, and nonsense means the beginning."""
    id = engine.running().id
    engine.seal(id, 1)
    headers = {} if header is None else {"Last-Event-ID": header}
    text = http.get(f"/v0/executions/{id}/stream?{query}", headers=headers).get_data(as_text=True)
    assert [int(frame["id"]) for frame in frames(text)] == list(range(first, 4))


def test_a_stream_past_the_end_closes(http: FlaskClient, engine: Engine) -> None:
    """Who has seen the end already gets the hint and no endless silence."""
    id = engine.running().id
    engine.seal(id, 1)
    began = time.monotonic()
    answer = http.get(f"/v0/executions/{id}/stream?after_sequence=3")
    assert (answer.get_data(as_text=True), time.monotonic() - began < 3) == ("retry: 5000\n\n", True)


def test_a_stream_is_live(http: FlaskClient, engine: Engine) -> None:
    """Events that come while somebody listens arrive at once, each in its frame."""
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
        rest = [piece if isinstance(piece, str) else piece.decode() for piece in pieces]
    assert [frame["event"] for frame in frames("".join(rest))] == ["progress.updated", "execution.completed"]
    assert time.monotonic() - began < 4
    answer.close()


def test_a_silent_moment_is_a_heartbeat() -> None:
    """An empty batch keeps the connection alive with a comment that no parser takes for an event."""
    assert list(sse([[], []])) == ["retry: 5000\n\n", ":heartbeat\n\n", ":heartbeat\n\n"]
    assert frames(":heartbeat\n\n") == []


# Who may, and how errors look


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
    "given",
    [None, "", "Bearer", "Bearer ", f"bearer {TOKEN}", f"Bearer {TOKEN}x", TOKEN, "Basic eDp5", "Bearer é"],
)
def test_without_the_token_nothing_is_told(closed: Flask, method: str, path: str, given: str | None) -> None:
    """Every route refuses missing, wrong and half-right credentials alike."""
    headers = {} if given is None else {"Authorization": given}
    # An address of its own: one that fails often is slowed down.
    address = {"REMOTE_ADDR": f"10.{hash((method, path, given)) % 250}.{ROUTES.index((method, path))}.1"}
    answer = closed.test_client().open(path, method=method, headers=headers, environ_base=address)
    error = refused(answer, 401, "UNAUTHORIZED")
    assert error == {"error": "unauthorized", "code": "UNAUTHORIZED", "details": None}


def test_with_the_token_the_door_is_open(closed: Flask, engine: Engine) -> None:
    """The operator's bearer token opens it."""
    answer = closed.test_client().get("/v0/executions", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (answer.status_code, answer.get_json()) == (200, {"executions": [], "next_cursor": ""})


def test_request_ids_go_in_and_out(http: FlaskClient) -> None:
    """A given id is echoed on success, error and stream; a missing or senseless one is replaced."""
    for path in ("/v0/executions", "/v0/executions/x", "/nowhere", "/health"):
        assert http.get(path, headers={"X-Request-Id": "mine 1"}).headers["X-Request-Id"] == "mine 1"
        assert is_id(http.get(path).headers["X-Request-Id"])
        assert is_id(http.get(path, headers={"X-Request-Id": "x" * 129}).headers["X-Request-Id"])
        assert is_id(http.get(path, headers={"X-Request-Id": "é"}).headers["X-Request-Id"])
    assert request_id("x" * 128) == "x" * 128
    assert all(is_id(request_id(given)) for given in (None, "", "a\r\nb", "a\x00", "x" * 129))


def test_unknown_paths_and_methods(http: FlaskClient) -> None:
    """Both answer in the door's form, a seeker's elsewhere; 405 says with Allow what would do."""
    refused(http.get("/v0/nothing"), 404, "NOT_FOUND")
    answer = http.delete("/v0/executions")
    refused(answer, 405, "METHOD_NOT_ALLOWED")
    assert set(answer.headers["Allow"].split(", ")) >= {"GET", "POST"}
    for elsewhere, code in ((http.get("/"), "NOT_FOUND"), (http.get("/execute"), "METHOD_NOT_ALLOWED")):
        body = elsewhere.get_json()
        assert (body["status"], body["error"]["code"]) == ("failed", code)
        assert (
            body["error"]["details"]["charged"] is False
            and "nothing was" in body["error"]["details"]["advice"]
        )


def test_pages_of_any_origin(valkey: EmbeddedStore, tmp_path: Path) -> None:
    """Where all origins are allowed, each is told so, on refusals too; who sends none is told nothing."""
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


def test_an_error_of_ours_tells_nothing(http: FlaskClient, engine: Engine) -> None:
    """What goes wrong inside is a 500 without a word about it."""
    id = engine.new()
    engine.client.delete(engine.keys.record(id))
    engine.client.set(engine.keys.record(id), "spoilt")
    error = refused(http.get(f"/v0/executions/{id}"), 500, "INTERNAL_ERROR")
    assert error == {"error": "internal error", "code": "INTERNAL_ERROR", "details": None}
    engine.client.delete(engine.keys.record(id))
    engine.client.hset(engine.keys.record(id), mapping={"id": id, "state": "no such state"})
    assert refused(http.get(f"/v0/executions/{id}"), 500, "INTERNAL_ERROR")["details"] is None


def test_nothing_of_a_request_stays_in_the_logging_context(http: FlaskClient, engine: Engine) -> None:
    """After a success, a refusal or a stream, read to its end or left early, no request id is bound."""
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


def test_a_stream_that_is_left_gives_up_its_place(http: FlaskClient, engine: Engine) -> None:
    """Closing the response ends the waiting: the subscription goes away."""
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


def test_a_context_without_a_request_is_harmless(app: Flask) -> None:
    """A request context that never saw the request's beginning can end."""
    with app.test_request_context("/health"):
        pass


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_store_that_is_away_is_a_503(tmp_path: Path, method: str, path: str) -> None:
    """Every route says so, with Retry-After, and without a word about addresses."""
    path = path.replace("/x", f"/{new_id()}")
    body = {"agent_id": "a", "signal_type": "x"} if method == "POST" else None
    with application(settings_for("redis://:secret@127.0.0.1:1/0", tmp_path)) as app:
        answer = app.test_client().open(path, method=method, json=body)
    error = refused(answer, 503, "SERVICE_UNAVAILABLE")
    assert int(answer.headers["Retry-After"]) > 0
    assert "127.0.0.1" not in json.dumps(error) and "secret" not in json.dumps(error)


def test_a_store_that_refuses_is_a_503(http: FlaskClient, client: redis.Redis) -> None:
    """A full or read-only store is told like one that is away."""
    client.config_set("maxmemory", 1)
    try:
        answer = http.post("/v0/executions", json={"agent_id": "a"})
    finally:
        client.config_set("maxmemory", 0)
    refused(answer, 503, "SERVICE_UNAVAILABLE")
    assert client.keys("w:x:*") == []
