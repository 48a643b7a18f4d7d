"""Detects that a stream's client disconnected, without writing to it.

A server notices a closed connection only when it writes; waiting for the next heartbeat would delay
another consumer's takeover. Under gunicorn with gevent the socket itself can be watched.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

# A client that reads nothing for this long counts as gone.
WRITE_SECONDS = 20.0

Gone = Callable[[], None]
# Starts watching; returns the function that stops it.
Watch = Callable[[Gone], Gone]


def client_of(environ: dict[str, Any]) -> Watch:
    """The watch for this request's client; a no-op if the socket cannot be watched."""
    client = _bounded(environ)
    if client is None:
        return lambda gone: lambda: None
    return lambda gone: _watch(client, gone)


def bound_writes(environ: dict[str, Any]) -> None:
    """Disconnects clients that stop reading (write time-out)."""
    _bounded(environ)


def _bounded(environ: dict[str, Any]) -> Any:
    client = environ.get("gunicorn.socket")
    if client is None or not hasattr(client, "hub"):
        return None
    client.settimeout(WRITE_SECONDS)
    return client


def _watch(client: Any, gone: Gone) -> Gone:
    import gevent  # reached only under gunicorn with gevent

    event = client.hub.loop.io(client.fileno(), 1)

    def readable() -> None:
        try:
            sent = client._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            sent = b""
        event.stop()  # data that a client sends on its stream is not read
        if not sent:
            gevent.spawn(gone)

    def stop() -> None:
        with contextlib.suppress(Exception):
            event.stop()
            event.close()

    event.start(readable)
    return stop
