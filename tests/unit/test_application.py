"""The doors' application routes and answers as Flask does."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask, Response, session
from werkzeug.exceptions import HTTPException

from worker.doors.answers import JsonAnswer
from worker.doors.application import Application

HOSTS = [
    None,
    "",
    "a",
    "A.example:80",
    "a.example:443",
    "127.0.0.1:8000",
    "[::1]:80",
    "a..b",
    ".a",
    "a.",
    "a" * 63,
    "a" * 64,
    "a" * 63 + ":8000",
    "a:",
    "a:b",
    "a:99999",
    "a:123456",
    "a_b",
    "a b",
    "a\n",
    "a\xdf",
    "xn--a",
    "xn--\xff",
    "a@b",
    "a/b",
    "-a-",
]
PATHS = ["", "/", "/x", "//x", "x", "/x/", "/x//", "/y/\xe9", "/y/\xff\xfe", "/y/a%2fb", "/z", "/y/../x"]


def applications() -> list[Flask]:
    made = [Flask("a", static_folder=None), Application("a", static_folder=None)]
    for app in made:
        app.url_map.strict_slashes = False
        app.add_url_rule("/", "root")
        app.add_url_rule("/x", "x", methods=["POST"])
        app.add_url_rule("/y/<name>", "y")
    return made


def routed(app: Flask, environ: dict[str, Any]) -> Any:
    with app.app_context():
        context = app.request_context(dict(environ))
    asked = context.request
    if context.url_adapter is not None:
        context.match_request()
    wrong = asked.routing_exception
    if isinstance(wrong, HTTPException):
        return wrong.code, getattr(wrong, "new_url", None), getattr(wrong, "valid_methods", None)
    return asked.endpoint, asked.view_args, asked.path, asked.host


@pytest.mark.parametrize("method", ["GET", "POST", "get", "OPTIONS", "BREW"])
@pytest.mark.parametrize("more", [{}, {"HTTP_UPGRADE": "websocket", "HTTP_CONNECTION": "Upgrade"}])
def test_every_request_is_routed_as_by_flask(method: str, more: dict[str, str]) -> None:
    """Whatever its Host, its path, its scheme and what it wants to upgrade to."""
    flask, ours = applications()
    seen = set()
    for scheme in ("http", "https"):
        for host in HOSTS:
            for path in PATHS:
                environ = {
                    "REQUEST_METHOD": method,
                    "wsgi.url_scheme": scheme,
                    "SERVER_NAME": "127.0.0.1",
                    "SERVER_PORT": "80",
                    "SCRIPT_NAME": "",
                    "PATH_INFO": path,
                    "QUERY_STRING": "a=%C3%A9&b",
                    **more,
                }
                if host is not None:
                    environ["HTTP_HOST"] = host
                expected = routed(flask, environ)
                assert routed(ours, environ) == expected, environ
                seen.add(str(expected))
    assert len(seen) > (1 if more else 3)


def test_there_are_no_sessions() -> None:
    """Nobody can leave anything in the one that all requests share."""
    app = Application("a", static_folder=None)
    app.secret_key = "x"

    @app.get("/")
    def view() -> Response:
        assert not session
        with pytest.raises(RuntimeError):
            session["a"] = 1
        return Response("ok")

    for _ in range(2):
        answer = app.test_client().get("/")
        assert answer.data == b"ok" and "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("headers", [None, {}, {"A": "b", "Content-Type": "x/y", "Content-Length": "9"}])
def test_json_answer_is_a_response(headers: dict[str, str] | None) -> None:
    """With its own type and length, whatever headers it is given."""
    answer, plain = JsonAnswer(b'{"a":1}\n', 402, headers), Response(b'{"a":1}\n', 402)
    plain.headers["Content-Type"] = "application/json"
    plain.headers.extend({name: text for name, text in (headers or {}).items() if name == "A"})
    assert sorted(answer.headers) == sorted(plain.headers)
    assert (answer.status, answer.data, answer.get_json()) == (plain.status, plain.data, {"a": 1})
    answer.headers["content-type"] = "text/plain"
    assert answer.headers.getlist("Content-Type") == ["text/plain"]


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\r\nX-B: c", "\n", "x" * 5_000 + "\n"])
def test_no_header_has_a_line_break(text: str) -> None:
    """It would begin a header of its own."""
    with pytest.raises(ValueError, match="newline"):
        JsonAnswer(b"", 200, {"A": text})
    answer = JsonAnswer(b"")
    for change in (answer.headers.add, answer.headers.set, answer.headers.setdefault):
        with pytest.raises(ValueError, match="newline"):
            change("A", text)


@pytest.mark.parametrize("name", ["ETag", "etag", "X-New"])
def test_headers_that_an_answer_has_are_kept(name: str) -> None:
    """As in Flask's answers, in whatever case they are written."""
    answer, plain = JsonAnswer(b"{}", 200, {"ETag": "1"}), Response(b"{}", headers={"ETag": "1"})
    assert answer.headers.setdefault(name, "2") == plain.headers.setdefault(name, "2")
    assert answer.headers.getlist(name) == plain.headers.getlist(name)
    with pytest.raises(ValueError, match="newline"):
        answer.headers.setdefault("X-Other", "a\nb")
