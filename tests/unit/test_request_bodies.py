"""Time and size limits on reading a request body."""

from __future__ import annotations

from io import BytesIO
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from flask import Flask
from gunicorn.http.errors import NoMoreData
from werkzeug.exceptions import RequestEntityTooLarge

from worker.core.errors import BadRequest, TooLarge
from worker.doors import bodies
from worker.doors.bodies import SHORT_FORM, TooSlow, form, in_time, raw

SERVED: dict[str, Any] = {"gunicorn.socket": SimpleNamespace(hub=object())}


class Broken:
    """A body whose sender disconnects."""

    def read(self, size: int = -1) -> bytes:
        raise OSError("gone")

    readline = read


def test_slow_sender_gets_408() -> None:
    """A body that is too slow gets 408; one in time is not interrupted, then or later."""
    with pytest.raises(TooSlow) as refused, in_time(SERVED, 0.02):
        gevent.sleep(5)
    assert (refused.value.status, refused.value.code) == (408, "REQUEST_TIMEOUT")
    with in_time(SERVED, 0.02):
        pass
    gevent.sleep(0.05)


def test_a_body_that_has_arrived_needs_no_timer() -> None:
    """The server passes on as it is what came with the head."""
    with in_time({**SERVED, "wsgi.input": BytesIO(b"{}")}, 0.0):
        gevent.sleep(0.01)


def test_other_servers_keep_their_own_timeout() -> None:
    """The limit applies only with gevent's socket."""
    with in_time({}, 0.0):
        gevent.sleep(0.01)


def test_unreadable_body_is_malformed() -> None:
    """400 without the server's error text; a good body is returned unchanged."""
    app = Flask("t")
    environ = {"wsgi.input": Broken(), "wsgi.input_terminated": True}
    with (
        app.test_request_context("/", method="POST", environ_overrides=environ),
        pytest.raises(BadRequest) as bad,
    ):
        raw()
    assert "gone" not in str(bad.value)
    with app.test_request_context("/", method="POST", data=b"{}"):
        assert raw() == b"{}"
    assert 10 <= bodies.BODY_SECONDS <= 120


class Sent:
    """A body as a server passes it on, which ends where its length says."""

    def __init__(self, text: bytes, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.text, self.seconds, self.error = text, seconds, error
        self.sizes: list[int] = []

    def read(self, size: int = -1) -> bytes:
        self.sizes.append(size)
        gevent.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.text

    readline = read


def posted(app: Flask, body: Sent, length: int) -> Any:
    environ = {
        "wsgi.input": body,
        "wsgi.input_terminated": True,
        "CONTENT_LENGTH": str(length),
        "CONTENT_TYPE": "application/x-www-form-urlencoded",
        **SERVED,
    }
    return app.test_request_context("/", method="POST", environ_overrides=environ)


def test_body_of_known_length_is_read_in_one_call() -> None:
    """It stays available; one above the limit is not read at all; the limit itself is allowed."""
    app = Flask("t")
    app.config["MAX_CONTENT_LENGTH"] = 5
    body = Sent(b"a=b&c")
    with posted(app, body, 5):
        assert raw() == raw() == b"a=b&c" and body.sizes == [5]
    body = Sent(b"a=b&cd")
    with posted(app, body, 6), pytest.raises(RequestEntityTooLarge):
        raw()
    assert body.sizes == []
    with posted(app, body, 0):
        assert raw() == b"" and body.sizes == []


def test_body_of_known_length_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too slow is 408, and one that breaks off or is malformed is 400."""
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.02)
    app = Flask("t")
    with posted(app, Sent(b"12", seconds=5), 2), pytest.raises(TooSlow):
        raw()
    for error in (OSError("gone"), NoMoreData("gone")):
        with posted(app, Sent(b"", error=error), 2), pytest.raises(BadRequest, match="ends early") as bad:
            raw()
        assert "gone" not in str(bad.value)


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_chunked_body_within_the_limit_is_read(size: int) -> None:
    """The limit is the same with and without a length; the whole body is returned, also on a second read."""
    app = Flask("t")
    app.config["MAX_CONTENT_LENGTH"] = 100
    environ = {"wsgi.input": BytesIO(b"x" * size), "wsgi.input_terminated": True}
    with app.test_request_context("/", method="POST", environ_overrides=environ):
        assert raw() == raw() == b"x" * size
    with app.test_request_context("/", method="POST", data=b"x" * size):
        assert raw() == b"x" * size


def test_chunked_body_beyond_the_limit_is_refused() -> None:
    """One byte above the limit is refused: the part read is not taken for the whole."""
    app = Flask("t")
    app.config["MAX_CONTENT_LENGTH"] = 100
    environ = {"wsgi.input": BytesIO(b"x" * 101), "wsgi.input_terminated": True}
    with (
        app.test_request_context("/", method="POST", environ_overrides=environ),
        pytest.raises(RequestEntityTooLarge),
    ):
        raw()


def test_truncated_body_is_malformed() -> None:
    """A truncated number is still a number, so a short body must not be accepted."""
    app = Flask("t")
    app.config["MAX_CONTENT_LENGTH"] = 100
    environ = {"wsgi.input": BytesIO(b"12"), "wsgi.input_terminated": True, "CONTENT_LENGTH": "5"}
    with (
        app.test_request_context("/", method="POST", environ_overrides=environ),
        pytest.raises(BadRequest, match="ends early"),
    ):
        raw()


def test_forms_of_strangers_are_small() -> None:
    """A body of separators is refused before it is parsed, and a short form has its own limit of bytes."""
    urlencoded = "application/x-www-form-urlencoded"
    app = Flask("t")
    for most, body, refusal in (
        (None, b"a&" * 100_000, TooLarge),
        (SHORT_FORM, b"token=" + b"%41" * SHORT_FORM, RequestEntityTooLarge),
    ):
        with (
            app.test_request_context("/", method="POST", data=body, content_type=urlencoded),
            pytest.raises(refusal),
        ):
            form(most)
    with app.test_request_context("/", method="POST", data={"text": "a&b" * 1_000}):
        assert form()["text"] == "a&b" * 1_000
