"""What a kept connection shows before it is used again."""

from __future__ import annotations

import select
import socket
import ssl
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def _poll() -> Callable[[], Any]:
    """The system's own: gevent's asks its loop, and an empty read costs three times as much."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey.get_original("select", "poll") if monkey else select.poll


def _shows(file: int) -> bool:
    """Whether a connection has something to read, its end or an error, or is closed already."""
    if file < 0:
        return True
    poll = _poll()()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))


def is_quiet(link: Any) -> bool:
    """Whether a connection on which nothing is expected is still open, and nothing came."""
    if type(link) is socket.socket:
        return not _shows(link.fileno())
    # A server of TLS may have sent something that is not for us.
    patience = link.gettimeout()
    link.settimeout(0)
    try:
        link.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    finally:
        link.settimeout(patience)
    return False
