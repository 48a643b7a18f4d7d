"""Process helpers: the web command, and a child process that ends with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1


def web_command() -> list[str]:
    """Returns the command that starts the web process from any directory."""
    return [sys.executable, "-m", "gunicorn", "-c", "python:worker.web"]


def die_with_parent(parent: int, with_signal: int = signal.SIGKILL) -> None:
    """Ensures that this process does not outlive its parent, however the parent ends."""
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


@contextmanager
def only_this_process() -> Iterator[None]:
    """Exits a copy of this process forked inside the block as soon as it leaves the block."""
    entered = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != entered:
            os._exit(1)
