"""Buffers a job's streamed text and progress, and flushes them to the event log.

Two threads flush: the author's when the buffer is large enough, the keeper's when it is old enough. After
a crash the function emits everything again; what the log already has is skipped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import IO, cast

from worker.agents.lease import Lease
from worker.core.errors import Failed
from worker.core.json import encode, short
from worker.engine.events import Kind
from worker.files.store import MAX_SIZE

CHUNK_SECONDS = 0.05
CHUNK_BYTES = 4096
# Most characters in one event.
MOST_CHARACTERS = 8192
MOST_PROGRESS = 500
_SPOOL_BYTES = 1 << 20
_OVERFLOW = "overflow"


@dataclass
class _Unwritten:
    """Output received since the last flush."""

    text: list[str] = field(default_factory=list)
    size: int = 0
    since: float = 0.0
    progress: tuple[float, str] | None = None

    def __bool__(self) -> bool:
        return bool(self.text) or self.progress is not None


class OutputBuffer:
    """The text and the progress of one attempt."""

    def __init__(self, lease: Lease, nudge: Callable[[], None]) -> None:
        self._lease = lease
        self._nudge = nudge
        self._lock = threading.Lock()
        self._unsent = _Unwritten()
        self._streamed = 0
        self._marks = 0
        self._spool: IO[bytes] | None = None
        self._overflow: bool | None = None

    def progress(self, fraction: float, message: str) -> None:
        shown = short(message, MOST_PROGRESS)
        with self._lock:
            self._marks += 1
            if self._marks <= self._lease.execution.marks:
                return
            self._unsent.progress = (min(1.0, max(0.0, float(fraction))), shown)
            self._touched()
        self._flush_when_due()

    def say(self, output: object) -> None:
        text, data = _utf8(output)
        with self._lock:
            self._spool_text(data)
            start, self._streamed = self._streamed, self._streamed + len(text)
            fresh = text[max(0, self._lease.execution.streamed - start) :]
            if fresh:
                self._unsent.text.append(fresh)
                self._unsent.size += len(data)
                self._touched()
        self._flush_when_due()

    def flush(self) -> None:
        """Writes buffered text and progress to the log."""
        with self._lock:
            if self._unsent:
                self._send(self._unsent)
                self._unsent = _Unwritten()

    def flush_when_old(self) -> float | None:
        """For the keeper: flushes output that is old enough; returns seconds until the next flush is due."""
        with self._lock:
            if not self._unsent or self._lease.stopped is not None:
                return None
            left = self._unsent.since + CHUNK_SECONDS - time.monotonic()
        if left > 0:
            return left
        self.flush()
        return None

    @property
    def overflowed(self) -> bool:
        """Whether the log could not take all of the text."""
        return bool(self._overflow)

    def whole(self) -> IO[bytes]:
        """All of the text, as a file positioned at its start."""
        with self._lock:
            spool = self._spool_text(b"")
        spool.seek(0)
        return spool

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def _spool_text(self, data: bytes) -> IO[bytes]:
        spool = self._spool
        if spool is None:
            spool = self._spool = cast(IO[bytes], SpooledTemporaryFile(max_size=_SPOOL_BYTES))  # noqa: SIM115
        if spool.tell() + len(data) > MAX_SIZE:
            raise Failed("OUTPUT_TOO_LARGE", "the agent's output is too large to deliver", limit=MAX_SIZE)
        spool.write(data)
        return spool

    def _touched(self) -> None:
        if not self._unsent.since:
            self._unsent.since = time.monotonic()
            self._nudge()

    def _flush_when_due(self) -> None:
        unsent = self._unsent
        if unsent.size >= CHUNK_BYTES or (unsent and time.monotonic() - unsent.since >= CHUNK_SECONDS):
            self.flush()

    def _send(self, unsent: _Unwritten) -> None:
        facts: list[tuple[str, bytes]] = []
        shown: dict[str, str | int | float] = {}
        if unsent.progress is not None:
            fraction, message = unsent.progress
            shown = {"progress": fraction, "message": message, "marks": self._marks}
            facts.append((Kind.PROGRESS, encode({"fraction": fraction, "message": message})))
        text = "" if self._is_over() else "".join(unsent.text)
        offset = self._streamed - len(text)
        for start in range(0, len(text), MOST_CHARACTERS):
            piece = text[start : start + MOST_CHARACTERS]
            facts.append((Kind.OUTPUT_CHUNK, encode({"text": piece, "offset": offset + start})))
        if not facts or self._lease.append(facts, shown | ({"said": self._streamed} if text else {})):
            return
        if shown:
            self._lease.append([], shown)
        if text:
            payload = encode({"offset": offset})
            self._lease.keep(_OVERFLOW, payload, kind=Kind.OUTPUT_OVERFLOW, payload=payload)
            self._overflow = True

    def _is_over(self) -> bool:
        """Whether the log once could not take text; from then on it gets none, also in a later run."""
        if self._overflow is None:
            self._overflow = _OVERFLOW in self._lease.remembered
        return self._overflow


def _utf8(output: object) -> tuple[str, bytes]:
    broken: Exception | None = None
    if isinstance(output, str):
        try:
            return output, output.encode()
        except UnicodeEncodeError as half:
            broken = half
    raise Failed("OUTPUT_INVALID", "streamed output must be text in valid Unicode") from broken
