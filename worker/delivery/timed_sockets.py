"""Sockets with one time limit for everything that is sent and received, however steadily bytes arrive."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any


class _Timed:
    """Applies the deadline of the whole call to every send and receive of a socket."""

    deadline: float | None = None

    def _arm(self: Any) -> None:
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the whole call took too long")
            self.settimeout(left)

    def recv_into(self, *args: Any, **options: Any) -> int:
        self._arm()
        return int(super().recv_into(*args, **options))  # type: ignore[misc]

    def send(self, *args: Any, **options: Any) -> int:
        self._arm()
        return int(super().send(*args, **options))  # type: ignore[misc]

    def sendall(self, *args: Any, **options: Any) -> None:
        self._arm()
        super().sendall(*args, **options)  # type: ignore[misc]


class TimedSocket(_Timed, socket.socket):
    pass


class TimedTls(_Timed, ssl.SSLSocket):
    pass
