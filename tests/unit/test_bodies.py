"""How long a sender may take over a request's body."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from flask import Flask

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
