"""Kept connections to one server: one for each open call, reused newest first, and bounded when idle.

A connection that the server has closed meanwhile is noticed before it is used, because a call that is
dropped has no known outcome.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cached_property
from urllib.parse import urlsplit

from worker.core.sockets import is_quiet

# Ports of a URL that names none.
PORTS = {"http": 80, "https": 443}
# An idle connection is closed after this time.
_IDLE_S = 60.0


class NotConnected(Exception):
    """No connection was made, so nothing was sent. The cause is the exception's own."""


class KeptLinks:
    """Connections to the server of a URL. At most `kept` idle ones stay open."""

    def __init__(
        self, url: str, *, connect_s: float, kept: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._where = urlsplit(url)
        self._connect_s = connect_s
        self._kept = kept
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: deque[tuple[socket.socket, float]] = deque()

    def take(self) -> socket.socket:
        """Returns a connected link that no other call uses; raises NotConnected."""
        return self.take_idle() or self._new()

    def take_idle(self) -> socket.socket | None:
        """The same; None if a connection would have to be made."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                link, since = self._idle.pop()
            # A router may have forgotten an old one without telling either end.
            if since >= self._clock() - _IDLE_S and is_quiet(link):
                return link
            link.close()

    def give_back(self, link: socket.socket) -> None:
        """Keeps a link whose answer was read to its end."""
        now = self._clock()
        with self._lock:
            self._idle.append((link, now))
            over = len(self._idle) > self._kept or self._idle[0][1] < now - _IDLE_S
            oldest = self._idle.popleft()[0] if over else None
        if oldest is not None:
            oldest.close()

    def close(self) -> None:
        """Closes the idle links."""
        with self._lock:
            idle, self._idle = self._idle, deque()
        for link, _ in idle:
            link.close()

    def _new(self) -> socket.socket:
        try:
            # A host that no resolver can encode raises a ValueError.
            return self._connected()
        except (OSError, ValueError) as error:
            raise NotConnected from error

    def _connected(self) -> socket.socket:
        secure, host = self._where.scheme == "https", self._where.hostname or ""
        port = self._where.port or PORTS["https" if secure else "http"]
        link = socket.create_connection((host, port), self._connect_s)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(link, server_hostname=host) if secure else link
        except BaseException:
            link.close()
            raise

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context
