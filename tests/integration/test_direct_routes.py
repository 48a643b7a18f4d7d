"""What is answered without Flask is answered as with it, and everything else still goes through it."""

from __future__ import annotations

import gc
import io
import json
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from flask import Flask

from tests.engine import Engine
from tests.web_app import TOKEN, application, settings_for
from worker.core.errors import Conflict
from worker.core.ids import is_id, new_id
from worker.doors.direct import DirectRoutes
from worker.doors.limits import BODY_BYTES, HEADER_BYTES
from worker.local.valkey import EmbeddedStore
from worker.remote.intents import Intents

INTENT, RESULT, CREATE = "/v0/agents/intent", "/v0/agents/step-result", "/v0/executions"
SESSION = {"execution_id": new_id(), "session_id": new_id()}
CALL = {**SESSION, "intent": {"type": "invoke_tool", "tool_id": "t"}}
OPERATOR = {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}

Answer = tuple[str, list[tuple[str, str]], bytes]


@pytest.fixture(name="app", scope="module")
def _app(valkey: EmbeddedStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    settings = settings_for(valkey.url, tmp_path_factory.mktemp("direct"), kernel_token=TOKEN)
    with application(settings) as app:
        yield app


class Body(io.BytesIO):
    """Unlike bytes, something that weak references can show to be gone."""


def environ_of(path: str, body: bytes, changes: dict[str, Any]) -> dict[str, Any]:
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": path,
        "SCRIPT_NAME": "",
        "QUERY_STRING": "",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "127.0.0.1",
        "HTTP_X_REQUEST_ID": "asked",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": Body(body),
        "wsgi.url_scheme": "http",
        "wsgi.errors": io.StringIO(),
        "wsgi.input_terminated": True,
        **OPERATOR,
        **changes,
    }
    length = environ["CONTENT_LENGTH"]
    if length and length.isascii() and length.isdigit():
        environ["wsgi.input"] = Body(body[: int(length)])  # as the server ends it
    return {name: value for name, value in environ.items() if value is not None}


class Both:
    """Sends a request to Flask alone, and past the direct routes."""

    def __init__(self, app: Flask) -> None:
        direct: Any = app.wsgi_app
        assert isinstance(direct, DirectRoutes)
        self._ways = [direct, direct._app]

    def __call__(self, path: str, body: bytes, **environ: Any) -> list[Answer]:
        return [self._ask(way, path, body, environ) for way in self._ways]

    def _ask(self, way: Any, path: str, body: bytes, changes: dict[str, Any]) -> Answer:
        answered: list[Any] = []
        environ = environ_of(path, body, changes)
        found = way(environ, lambda status, headers, error=None: answered.extend((status, sorted(headers))))
        content = b"".join(found)
        if hasattr(found, "close"):
            found.close()
        return answered[0], answered[1], content


@pytest.fixture(name="both")
def _both(app: Flask, engine: Engine) -> Both:
    return Both(app)


@pytest.mark.parametrize("path", [INTENT, RESULT, CREATE])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"a":1} and more',
        b"\xff",
        b'{"agent_id": "\\ud800"}',
        b'{"agent_id": "a", "input": 1e999}',
        b'{"agent_id": "a", "labels": {"x": 1}}',
        b'{"agent_id": "a\\u0000"}',
        b"[" * 200 + b"]" * 200,
        b'{"agent_id": "%s"}' % (b"x" * 300),
        json.dumps(CALL).encode(),
        json.dumps({**SESSION, "step_id": "s", "success": True}).encode(),
        json.dumps({"execution_id": "x", "session_id": "y", "intent": {"type": "wait"}}).encode(),
        json.dumps({**SESSION, "intent": {"type": "complete", "output": 1}}).encode(),
    ],
)
def test_refused_bodies_get_the_same_answer(both: Both, path: str, body: bytes) -> None:
    """Whatever is wrong with a body, its refusal is Flask's: status, headers and text."""
    direct, flask = both(path, body)
    assert direct == flask and not direct[0].startswith("2")


@pytest.mark.parametrize(
    "changes",
    [
        {"HTTP_AUTHORIZATION": None},
        {"HTTP_AUTHORIZATION": "Bearer wrong"},
        {"HTTP_AUTHORIZATION": "Bearer \xff"},
        {"HTTP_REBUNO_SIGNATURE": "x"},
        {"HTTP_X_LONG": "x" * 20_000},
        {"HTTP_HOST": "a b"},
        {"CONTENT_LENGTH": "9"},
        {"CONTENT_LENGTH": "100000"},
        {"CONTENT_LENGTH": str(BODY_BYTES + 1)},
        {"CONTENT_LENGTH": "-1"},
        {"CONTENT_LENGTH": "\u0663"},
        {"CONTENT_LENGTH": None},
        {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": None},
        {"REQUEST_METHOD": "PUT"},
        {"REQUEST_METHOD": "OPTIONS"},
        {"PATH_INFO": INTENT + "/"},
        {"PATH_INFO": "/" + INTENT},
        {"PATH_INFO": INTENT + "s"},
        {"SERVER_PROTOCOL": "HTTP/1.0"},
        {"HTTP_HOST": ".x"},
        {"HTTP_HOST": "a..b"},
        {"HTTP_HOST": "a" * 64 + ".com"},
        {"HTTP_UPGRADE": "websocket", "HTTP_CONNECTION": "Upgrade"},
    ],
)
def test_odd_requests_get_the_same_answer(both: Both, changes: dict[str, Any]) -> None:
    """Credentials, headers, lengths, methods and paths out of the ordinary."""
    direct, flask = both(INTENT, json.dumps(CALL).encode(), **changes)
    assert direct == flask and direct[0][0] in "245"


def test_accepted_requests_get_the_same_answer(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Success has Flask's status, headers and body, and an id of its own if none was sent."""
    monkeypatch.setattr(Intents, "submit", lambda self, intent: b'{"accepted":true}')
    monkeypatch.setattr(Intents, "step_result", lambda self, *args, **values: None)
    direct, flask = both(INTENT, json.dumps(CALL).encode())
    assert direct == flask and direct[0] == "200 OK" and ("X-Request-Id", "asked") in direct[1]
    direct, flask = both(RESULT, json.dumps({**SESSION, "step_id": "s", "success": True}).encode())
    assert direct == flask and direct[2] == b'{"status":"ok"}\n'
    direct, flask = both(INTENT, json.dumps(CALL).encode(), HTTP_X_REQUEST_ID=None)
    assert is_id(dict(direct[1])["X-Request-Id"]) and direct[2] == flask[2]
    made = [json.loads(answer[2]) for answer in both(CREATE, b'{"agent_id":"a","input":{"\xc3\xa9":[1]}}')]
    varying = ("id", "created_at", "updated_at")
    assert [{name: each[name] for name in each if name not in varying} for each in made] == [
        {"status": made[0]["status"], "agent_id": "a", "labels": {}, "input": {"é": [1]}, "output": None}
    ] * 2
    direct, flask = both(CREATE, b'{"agent_id":"a"}')
    assert direct[:2] == flask[:2] and direct[0] == "201 CREATED"


@pytest.mark.parametrize(
    "error",
    [Conflict("so it is"), redis.ConnectionError("away"), redis.ResponseError("OOM x"), ValueError("bug")],
)
def test_an_error_is_raised_once_and_answered_by_flask(
    both: Both, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The service is called once, and its error gets the answer that it gets in Flask."""
    calls: list[Any] = []

    def submit(self: Intents, intent: Any) -> bytes:
        calls.append(intent)
        raise error

    monkeypatch.setattr(Intents, "submit", submit)
    direct, flask = both(INTENT, json.dumps(CALL).encode())
    assert direct == flask and direct[0][0] in "45" and len(calls) == 2


@pytest.mark.parametrize("host", [".x", "a..b", "a" * 64 + ".com"])
def test_a_name_that_no_host_has_does_nothing(both: Both, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Flask refuses it, so the service is not called."""
    monkeypatch.setattr(Intents, "submit", lambda self, intent: b"{}")
    direct, flask = both(INTENT, json.dumps(CALL).encode(), HTTP_HOST=host)
    assert direct == flask and direct[0] == "400 BAD REQUEST"


def test_no_websocket_is_answered(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intents, "submit", lambda self, intent: b"{}")
    upgrade = {"HTTP_UPGRADE": "websocket", "HTTP_CONNECTION": "Upgrade"}
    direct, flask = both(INTENT, json.dumps(CALL).encode(), **upgrade)
    assert direct == flask and direct[0] == "400 BAD REQUEST"


@pytest.mark.parametrize("changes", [{}, {"HTTP_X_LONG": "x" * 20_000}])
def test_a_refused_request_leaves_no_garbage(
    both: Both, app: Flask, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Bodies and headers of refused requests are not kept until garbage is searched for."""

    def submit(self: Intents, intent: Any) -> bytes:
        raise Conflict("so it is")

    monkeypatch.setattr(Intents, "submit", submit)
    content = json.dumps(CALL).encode()
    both(INTENT, content, **changes)
    environ = environ_of(INTENT, content, changes)
    left = weakref.ref(environ["wsgi.input"])
    direct: Any = app.wsgi_app
    gc.disable()
    try:
        found = direct(environ, lambda status, headers, error=None: None)
        assert b"".join(found)
        if hasattr(found, "close"):
            found.close()
        del found, environ
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("id", [None, "asked", "\xe9" * 40])
@pytest.mark.parametrize("room", [-1, 0, 1, 40, 60])
def test_an_error_leaves_the_size_of_the_headers(both: Both, id: str | None, room: int) -> None:
    """An id that the request gets here does not count as one that was sent."""
    changes = {"HTTP_X_REQUEST_ID": id, "HTTP_AUTHORIZATION": "Bearer wrong"}
    sent = environ_of(INTENT, b"{}", {**changes, "HTTP_X_LONG": ""})
    size = sum(len(name) + len(value) - 1 for name, value in sent.items() if name.startswith("HTTP_"))
    size += len("CONTENT_LENGTH") + len("2") + 4
    changes["HTTP_X_LONG"] = "x" * (HEADER_BYTES - size - room)
    direct, flask = both(INTENT, b"{}", **changes)
    assert direct[0] == flask[0] and direct[0][:3] == ("431" if room < 0 else "401")


def test_direct_requests_are_counted(both: Both, app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is counted once, under the endpoint's name."""
    monkeypatch.setattr(Intents, "submit", lambda self, intent: b"{}")
    direct: Any = app.wsgi_app
    direct._counts.flush()
    both(INTENT, json.dumps(CALL).encode())
    counted = direct._counts._counts
    assert counted['worker_http_requests_total{endpoint="kernel.agent_intent",status="200"}'] == 2


def test_the_time_before_an_error_is_counted(both: Both, app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flask answers the error at once, but the request took as long as what failed."""

    def submit(self: Intents, intent: Any) -> bytes:
        time.sleep(0.05)
        raise Conflict("so it is")

    direct: Any = app.wsgi_app
    counted: list[float] = []
    monkeypatch.setattr(direct._counts, "count", lambda endpoint, status, took: counted.append(took))
    monkeypatch.setattr(Intents, "submit", submit)
    both(INTENT, json.dumps(CALL).encode())
    assert len(counted) == 2 and min(counted) >= 0.05


def test_every_direct_route_is_one_of_flask(app: Flask) -> None:
    """Their endpoints, by which they are counted and keys are checked, are Flask's."""
    direct: Any = app.wsgi_app
    for path, route in direct._routes.items():
        example = f"{path}x" if path.endswith("/") else path
        endpoint, _ = app.url_map.bind("x").match(example, "POST")
        assert endpoint == route.endpoint


def test_origins_are_answered_by_flask(valkey: EmbeddedStore, tmp_path: Path) -> None:
    """With CORS, answers have more headers."""
    settings = settings_for(valkey.url, tmp_path, cors_origins=("https://example.com",))
    with application(settings) as app:
        assert not isinstance(app.wsgi_app, DirectRoutes)
