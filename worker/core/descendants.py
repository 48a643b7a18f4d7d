"""Finds and kills all descendants of this process, however they were started. Linux only (/proc)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection

_PR_SET_CHILD_SUBREAPER = 36
# If a process forks faster than its children are killed, stop; its parent kills the process group.
_MOST_ROUNDS = 50
# Servers that Python's multiprocessing starts once and reuses.
_HELPERS = (
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
    ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
)


def adopt_orphans() -> None:
    """Makes this process the parent of orphaned descendants (subreaper), even in other sessions."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """The direct children of this process; empty where there is no /proc."""
    if not has_children():
        return set()
    own = os.getpid()
    try:
        # After every run: plain files are much faster here than paths.
        threads = os.listdir("/proc/self/task")
        return {int(pid) for each in threads for pid in _read(f"/proc/self/task/{each}/children").split()}
    except FileNotFoundError:
        return {pid for pid in _all_processes() if _parent_of(pid) == own}


def has_children() -> bool:
    """One call of the kernel instead of the several files that name them; True where it cannot be asked."""
    if sys.platform != "linux":
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def end_children(spared: Collection[int] = ()) -> int:
    """Kills all descendants but the spared children and Python's own helpers; returns how many."""
    ended: set[int] = set()
    for _ in range(_MOST_ROUNDS):
        # Children of a killed child are reparented to us.
        found = children().difference(spared, _helpers())
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        ended |= found
    return len(ended)


def _helpers() -> set[int]:
    found = (getattr(getattr(sys.modules.get(name), owner, None), pid, None) for name, owner, pid in _HELPERS)
    return {pid for pid in found if pid}


def _read(file: str) -> bytes:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        found = b""
        while part := os.read(descriptor, 65_536):
            found += part
        return found
    finally:
        os.close(descriptor)


def _all_processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []


def _parent_of(pid: int) -> int:
    try:
        return int(_read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
    except OSError:
        return 0
