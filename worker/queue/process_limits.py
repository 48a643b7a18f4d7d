"""Decides when to replace a warm process: author code leaks, and replacing the process frees what leaked."""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from dataclasses import dataclass

_PAGE = resource.getpagesize()
# Jitter, so that processes that started together are not replaced together.
_JITTER = 0.1


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """`memory` is in bytes above the start value; `open_files` None means half of the process's limit."""

    runs: int = 1_000
    seconds: float = 3600.0
    memory: int = 256 << 20
    open_files: int | None = None


class ProcessWear:
    """Tracks how much of its limits a warm process has used."""

    def __init__(self, limits: ProcessLimits) -> None:
        shorter = random.uniform(1 - _JITTER, 1)
        self._runs_left = max(1, round(limits.runs * shorter))
        self._ends_at = time.monotonic() + limits.seconds * shorter
        self._most_memory = memory_used() + limits.memory
        self._most_files = limits.open_files or resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._ran = False

    def ran(self) -> None:
        """Counts a run."""
        self._runs_left -= 1
        self._ran = True

    def reason(self) -> str:
        """Returns which limit is reached, or ''."""
        if time.monotonic() >= self._ends_at:
            return "age"
        # A process that starts beyond a limit would otherwise be replaced endlessly.
        if not self._ran:
            return ""
        if self._runs_left <= 0:
            return "runs"
        if memory_used() > self._most_memory:
            return "memory"
        return "open_files" if open_files() > self._most_files else ""


def memory_used() -> int:
    """Resident bytes of this process; the peak where there is no /proc."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            return int(statm.read(100).split()[1]) * _PAGE
    except FileNotFoundError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def open_files() -> int:
    """Number of open file descriptors."""
    for place in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(place))
        except FileNotFoundError:
            continue
    return 0
