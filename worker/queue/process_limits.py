"""Decides when to replace a warm process: author code leaks, and replacing the process frees what leaked."""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

_PAGE = resource.getpagesize()
# Jitter, so that processes that started together are not replaced together.
_JITTER = 0.1
# The last part of the runs or the life, in which a successor is started.
_LAST_PART = 0.05
# How much of what a run used is expected of the next, if that one shows less.
_FADING = 0.7
# More than by which the kernel's two ways of counting memory differ.
_ROUGH = 16 << 20


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """`memory` is in bytes above the start value; `open_files` None means half of the process's limit."""

    runs: int = 1_000
    seconds: float = 3600.0
    memory: int = 256 << 20
    open_files: int | None = None


class _Growth:
    """By how much each run raises a level, as far as the last runs tell."""

    def __init__(self, level: Callable[[], int]) -> None:
        self._level = level
        self._before = level()
        self._expected = 0.0

    def by_run(self) -> float:
        """What the run under way has used, or a part of what those before it did."""
        return self._to(self._level())

    def ran(self) -> None:
        level = self._level()
        self._expected, self._before = self._to(level), level

    def _to(self, level: int) -> float:
        return max(level - self._before, self._expected * _FADING)


class ProcessWear:
    """Tracks how much of its limits a warm process has used."""

    def __init__(self, limits: ProcessLimits) -> None:
        shorter = random.uniform(1 - _JITTER, 1)
        self._runs_left = max(1, round(limits.runs * shorter))
        self._last_runs = int(self._runs_left * _LAST_PART)
        self._ends_at = time.monotonic() + limits.seconds * shorter
        self._last_seconds = limits.seconds * shorter * _LAST_PART
        self._most_memory = memory_used() + limits.memory
        self._most_files = limits.open_files or resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._memory, self._files = _Growth(peak_memory), _Growth(open_files)
        self._ran = False
        self._reason = ""

    def ran(self) -> None:
        """Counts a run."""
        self._runs_left -= 1
        self._ran = True
        self._memory.ran()
        self._files.ran()

    def runs_after_this(self) -> int:
        """How many runs may follow the one under way, as far as that can be told before its end.

        What leaks is expected to go on as it did.
        """
        if self.ends_after_this():
            return 0
        memory, files = self._memory.by_run(), self._files.by_run()
        left = [self._runs_left - 1.0]
        if memory > 1:
            left.append((self._most_memory - memory_used()) / memory)
        if files > 1:
            left.append((self._most_files - open_files()) / files)
        return max(0, int(min(left)))

    def ends_after_this(self) -> bool:
        """Whether the run under way is the last one, as far as that can be told before its end."""
        return self._runs_left <= 1 or time.monotonic() >= self._ends_at

    def nearly(self) -> str:
        """Which limit will be reached soon, if that can be told; ''."""
        if self._runs_left <= self._last_runs:
            return "runs"
        return "age" if time.monotonic() >= self._ends_at - self._last_seconds else ""

    def reason(self) -> str:
        """Returns which limit was reached first, or ''."""
        self._reason = self._reason or self._reached()
        return self._reason

    def _reached(self) -> str:
        if time.monotonic() >= self._ends_at:
            return "age"
        # A process that starts beyond a limit would otherwise be replaced endlessly.
        if not self._ran:
            return ""
        if self._runs_left <= 0:
            return "runs"
        if peak_memory() + _ROUGH > self._most_memory and memory_used() > self._most_memory:
            return "memory"
        return "open_files" if open_files() > self._most_files else ""


def memory_used() -> int:
    """Resident bytes of this process; the peak where there is no /proc."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            return int(statm.read(100).split()[1]) * _PAGE
    except FileNotFoundError:
        return peak_memory()


def peak_memory() -> int:
    """Roughly the most resident bytes that this process ever had; a tenth of the cost of `memory_used`."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def open_files() -> int:
    """Number of open file descriptors. Linux 6.2 and later say it without a list."""
    try:
        count = os.stat("/proc/self/fd").st_size
    except FileNotFoundError:
        count = 0
    return count or _listed_files()


def _listed_files() -> int:
    for place in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(place))
        except FileNotFoundError:
            continue
    return 0
