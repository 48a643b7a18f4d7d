"""Whether a kept connection can be used again."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from worker.core.sockets import is_quiet

UNDER_GEVENT = """
from gevent import monkey
monkey.patch_all()
import socket
from worker.core.sockets import is_quiet
near, far = socket.socketpair()
assert is_quiet(near)
far.send(b"x")
assert not is_quiet(near)
"""


@pytest.mark.parametrize("patience", [None, 0.0, 5.0])
def test_an_open_connection_on_which_nothing_came_is_quiet(patience: float | None) -> None:
    """Whatever its time-out, which stays."""
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(patience)
        assert is_quiet(near)
        assert near.gettimeout() == patience


def test_a_connection_with_something_to_read_is_not_quiet() -> None:
    """What came stays to be read."""
    near, far = socket.socketpair()
    with near, far:
        far.send(b"x")
        assert not is_quiet(near)


@pytest.mark.parametrize("closed", ["near", "far", "half", "reset"])
def test_a_closed_connection_is_not_quiet(closed: str) -> None:
    """By either side, in one direction, or with something unread."""
    near, far = socket.socketpair()
    with near, far:
        if closed == "half":
            far.shutdown(socket.SHUT_WR)
        elif closed == "reset":
            near.send(b"unread")
            far.close()
        else:
            {"near": near, "far": far}[closed].close()
        assert not is_quiet(near)


def test_quiet_connections_are_found_under_gevent() -> None:
    """Whose own poll asks its loop."""
    subprocess.run([sys.executable, "-c", UNDER_GEVENT], check=True, timeout=60)
