"""The check process: runs checks of untrusted schemas and inputs, each in a fork with limited CPU time.

A pattern can hang the interpreter, so a check runs in a process that the kernel kills when its CPU time is
used up. The CPU time used is measured and charged to the callers.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import Any, NoReturn

import redis
import structlog

from worker.core.errors import Problem
from worker.core.json import encode
from worker.core.processes import die_with_parent, end
from worker.queue.checks import CPU_SECONDS, MICROSECONDS, PATIENCE, CheckOutcome, CheckQueue, WaitingCheck
from worker.queue.presence import Presence
from worker.queue.runner import failure
from worker.store.outage import note

log = structlog.get_logger()

# Wall-clock limit: on a busy machine a second of CPU time takes longer.
WALL_SECONDS = 4.0
MOST_ANSWER = 64 << 10
_POP_SECONDS = 2.0
_BEAT_SECONDS = 1.0
_PAUSE = 0.5

# Called with a job that has only an input.
Check = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Ended:
    """A fork's output, whether it exited by itself, and its CPU time."""

    written: bytes
    well: bool
    late: bool
    cpu_us: int


class CheckProcess:
    """Takes checks until SIGTERM."""

    def __init__(
        self,
        queue: CheckQueue,
        checks: Mapping[str, Check],
        *,
        now: Callable[[], int],
        presence: Presence,
    ) -> None:
        self._queue = queue
        self._checks = checks
        self._now = now
        self._presence = presence
        self._busy = False
        self._leaving = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while not self._leaving:
            try:
                self._next()
            except redis.RedisError as error:
                note(error, "checks")
                time.sleep(_PAUSE)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._leaving = True
        if not self._busy:
            raise SystemExit(0)

    def _next(self) -> None:
        self._presence.sign()
        check = self._queue.take(_POP_SECONDS)
        if check is None:
            return
        self._busy = True
        try:
            # The callers of old checks have given up.
            late = self._now() - check.asked_us > PATIENCE * MICROSECONDS
            result, cpu_us = (CheckOutcome(), 0) if late else self._judge(check)
            self._queue.answer(check, result, cpu_us)
        finally:
            self._busy = False

    def _judge(self, check: WaitingCheck) -> tuple[CheckOutcome, int]:
        """The result of a check, and its CPU time in us."""
        function = self._checks.get(check.kind)
        if function is None:
            return CheckOutcome(), 0
        ended = run_apart(lambda: _outcome(check.kind, function, check.input), beat=self._presence.sign)
        if ended.well and ended.written:
            return CheckOutcome(**json.loads(ended.written)), ended.cpu_us
        return CheckOutcome(too_long=not ended.late), ended.cpu_us


def _outcome(kind: str, function: Check, input: Any) -> bytes:
    try:
        return encode({"answer": {"value": function(SimpleNamespace(input=input))}})
    except Problem as refused:
        return b'{"problem":%s}' % failure(refused.code, refused.message, **refused.details)
    except Exception as error:  # a bug in the author's check; its text is for the log only
        log.error("checks.broken", exc_info=error, kind=kind)
        return b'{"problem":%s}' % failure("INTERNAL_ERROR", "the check failed")


def run_apart(work: Callable[[], bytes], *, beat: Callable[[], None] = lambda: None) -> _Ended:
    """Runs `work` in a fork with CPU_SECONDS of CPU time. This process must have no other threads."""
    parent = os.getpid()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_check(parent, read, write, work)
    os.close(write)
    try:
        written, late = _read(read, time.monotonic() + WALL_SECONDS, beat)
    finally:
        os.close(read)
        end(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    cpu_us = int((usage.ru_utime + usage.ru_stime) * MICROSECONDS)
    # The fork closes its end of the pipe after writing everything; it may have been killed here by then.
    well = bool(written) and written.endswith(b"\n")
    return _Ended(written, well, late, cpu_us)


def _read(fd: int, until: float, beat: Callable[[], None]) -> tuple[bytes, bool]:
    """The fork's complete output, and whether its time ran out first."""
    written = b""
    while len(written) <= MOST_ANSWER:
        left = until - time.monotonic()
        if left <= 0:
            return b"", True
        beat()
        ready, _, _ = select.select([fd], [], [], min(left, _BEAT_SECONDS))
        if not ready:
            continue
        found = os.read(fd, 65_536)
        if not found:
            return written, False
        written += found
    return b"", False


def _become_check(parent: int, read: int, write: int, work: Callable[[], bytes]) -> NoReturn:
    with contextlib.suppress(BaseException):  # the fork must never return into the loop
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(parent)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.close(read)
        answer = work() + b"\n"
        while answer:
            answer = answer[os.write(write, answer) :]
    os._exit(0)
