"""Notices that the client of a stream has gone, without writing to it.

A server learns of a closed connection when it writes; between two heartbeats that takes too long for
somebody else to take over at once. Under gunicorn and gevent the socket itself can be watched.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

# A client that takes nothing for so long counts as gone.
WRITE_SECONDS = 20.0

Gone = Callable[[], None]
# Begins to watch, and returns what ends that.
Watch = Callable[[Gone], Gone]


def client_of(environ: dict[str, Any]) -> Watch:
    """The watch over the client of this request; where there is no such socket, nobody is watched."""
    client = _bounded(environ)
    if client is None:
        return lambda gone: lambda: None
    return lambda gone: _watch(client, gone)


def bound_writes(environ: dict[str, Any]) -> None:
    """Who does not read a stream is let go after a while."""
    _bounded(environ)


def _bounded(environ: dict[str, Any]) -> Any:
    client = environ.get("gunicorn.socket")
    if client is None or not hasattr(client, "hub"):
        return None
    client.settimeout(WRITE_SECONDS)
    return client


def _watch(client: Any, gone: Gone) -> Gone:
    import gevent  # only a gunicorn with gevent comes here

    event = client.hub.loop.io(client.fileno(), 1)

    def readable() -> None:
        try:
            sent = client._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            sent = b""
        event.stop()  # what a client sends on its stream is nothing we read
        if not sent:
            gevent.spawn(gone)

    def stop() -> None:
        with contextlib.suppress(Exception):
            event.stop()
            event.close()

    event.start(readable)
    return stop
