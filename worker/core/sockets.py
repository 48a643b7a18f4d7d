"""What a kept connection shows before it is used again."""

from __future__ import annotations

import ssl
from typing import Any


def is_quiet(socket: Any) -> bool:
    """Whether a connection on which nothing is expected is still open, and nothing came."""
    patience = socket.gettimeout()
    socket.settimeout(0)
    try:
        socket.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    finally:
        socket.settimeout(patience)
    return False
