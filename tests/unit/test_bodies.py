"""How long a sender may take over a request's body."""

from __future__ import annotations

from io import BytesIO
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from flask import Flask
from werkzeug.exceptions import RequestEntityTooLarge

from worker.doors import bodies
from worker.doors.bodies import TooSlow, in_time, raw
from worker.errors import BadRequest

SERVED: dict[str, Any] = {"gunicorn.socket": SimpleNamespace(hub=object())}


class Broken:
    """A body whose sender breaks off."""

    def read(self, size: int = -1) -> bytes:
        raise OSError("gone")

    readline = read


def test_a_sender_who_takes_too_long_is_told_so() -> None:
    """408 in the middle of the reading; who is in time is not disturbed, then or later."""
    with pytest.raises(TooSlow) as refused, in_time(SERVED, 0.02):
        gevent.sleep(5)
    assert (refused.value.status, refused.value.code) == (408, "REQUEST_TIMEOUT")
    with in_time(SERVED, 0.02):
        pass
    gevent.sleep(0.05)


def test_other_servers_keep_their_own_time() -> None:
    """Without gevent's socket there is no such limit."""
    with in_time({}, 0.0):
        gevent.sleep(0.01)


def test_a_body_that_cannot_be_read_is_malformed() -> None:
    """400 without the server's words; a good one is given as it came."""
    app = Flask("t")
    given = {"wsgi.input": Broken(), "wsgi.input_terminated": True}
    with (
        app.test_request_context("/", method="POST", environ_overrides=given),
        pytest.raises(BadRequest) as bad,
    ):
        raw()
    assert "gone" not in str(bad.value)
    with app.test_request_context("/", method="POST", data=b"{}"):
        assert raw() == b"{}"
    assert 10 <= bodies.BODY_SECONDS <= 120


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_a_body_in_chunks_may_be_as_long_as_any(size: int) -> None:
    """The limit is the same with and without a length, and the whole body is given, also when asked twice."""
    app = Flask("t")
    app.config["MAX_CONTENT_LENGTH"] = 100
    given = {"wsgi.input": BytesIO(b"x" * size), "wsgi.input_terminated": True}
    with app.test_request_context("/", method="POST", environ_overrides=given):
        assert raw() == raw() == b"x" * size
    with app.test_request_context("/", method="POST", data=b"x" * size):
        assert raw() == b"x" * size


def test_a_body_in_chunks_beyond_the_limit_is_refused() -> None:
    """One byte more than may be sent is too much: what was read is not taken for the whole."""
    app = Flask("t")
    app.config["MAX_CONTENT_LENGTH"] = 100
    given = {"wsgi.input": BytesIO(b"x" * 101), "wsgi.input_terminated": True}
    with (
        app.test_request_context("/", method="POST", environ_overrides=given),
        pytest.raises(RequestEntityTooLarge),
    ):
        raw()


def test_a_body_that_ends_before_its_length_is_malformed() -> None:
    """The first digits of a number are a number too, and must not be worked on as what was sent."""
    app = Flask("t")
    app.config["MAX_CONTENT_LENGTH"] = 100
    given = {"wsgi.input": BytesIO(b"12"), "wsgi.input_terminated": True, "CONTENT_LENGTH": "5"}
    with (
        app.test_request_context("/", method="POST", environ_overrides=given),
        pytest.raises(BadRequest, match="ends early"),
    ):
        raw()
