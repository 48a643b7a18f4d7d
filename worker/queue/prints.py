"""Output printed by author code: the parent reads it and passes it to the log, rate-limited."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger()

# Burst and rate limit of one process's output: bytes at once, and bytes per second after that.
BURST = 256 << 10
PER_SECOND = 4 << 10
_READ = 64 << 10
# Bounds one read, so that endless output does not keep the reader from other duties.
_MOST_READS = 16
REPORT_SECONDS = 10.0
_STDERR = 2


def write_all(data: bytes) -> None:
    while data:
        data = data[os.write(_STDERR, data) :]


class PrintedOutput:
    """The parent's end of one process's standard output and error."""

    def __init__(self, fd: int, kind: str, *, write: Callable[[bytes], object] = write_all) -> None:
        self.fd = fd
        self._kind = kind
        self._write = write
        self._allowed = float(BURST)
        self._seen = self._reported = time.monotonic()
        self._dropped = 0

    def read(self) -> bool:
        """Passes on available output; False when the pipe is closed."""
        for _ in range(_MOST_READS):
            try:
                data = os.read(self.fd, _READ)
            except BlockingIOError:
                break
            if not data:
                return False
            self._pass_on(data)
        return True

    def close(self) -> None:
        self.read()
        self.report(0.0)
        os.close(self.fd)

    def _pass_on(self, data: bytes) -> None:
        now = time.monotonic()
        self._allowed = min(BURST, self._allowed + (now - self._seen) * PER_SECOND)
        self._seen = now
        shown = data[: int(self._allowed)]
        self._allowed -= len(shown)
        self._dropped += len(data) - len(shown)
        if shown:
            self._write(shown)

    def report(self, after: float = REPORT_SECONDS) -> None:
        """Logs how much was dropped since the last report."""
        now = time.monotonic()
        if self._dropped and now - self._reported >= after:
            log.warning("work.prints_dropped", kind=self._kind, bytes=self._dropped)
            self._dropped, self._reported = 0, now
