"""Small helps for process trees: what starts the web process, and a child that ends with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_GUNICORN_CONFIG = Path(__file__).parents[1] / "config" / "gunicorn.py"


def web_command() -> list[str]:
    """How the web process is started, from whatever directory."""
    return [sys.executable, "-m", "gunicorn", "-c", str(_GUNICORN_CONFIG)]


def die_with_parent(parent: int, with_signal: int = signal.SIGKILL) -> None:
    """Makes sure that this process does not outlive the one that started it, however that one ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, with_signal)
    else:
        threading.Thread(target=_follow, args=(parent, with_signal), name="parent-watch", daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), with_signal)


def _follow(parent: int, with_signal: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), with_signal)


def end(pid: int, with_signal: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, with_signal)
