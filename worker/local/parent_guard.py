"""Child processes that do not outlive their parent, even when the parent is killed with -9.

Linux sends a signal by itself when the parent's thread ends. Elsewhere a small shell holds the read end of a
pipe and ends the child when no process holds the write end any more.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_WATCH = 'cat >/dev/null; kill -TERM "$1"'


def death_signal(sig: int = signal.SIGTERM) -> Callable[[], None] | None:
    """A `preexec_fn` that ties a child to the thread that starts it; None where that is unsupported.

    The thread must live as long as the child should. Everything is looked up here, because after a fork
    little is safe to do.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None
    parent, number = os.getpid(), int(sig)

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os.kill(os.getpid(), number)

    return tie


class PipeGuard:
    """The fallback: a shell that sends SIGTERM to `pid` when this process is gone."""

    def __init__(self, pid: int) -> None:
        self._shell: subprocess.Popen[Any] = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "guard", str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Stop watching; the child's pid may soon be another process's."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()
