"""Time and size limits on reading a request body."""

from __future__ import annotations

from io import BytesIO
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from flask import Flask
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
