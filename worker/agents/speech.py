"""What a job says and shows on its way: joined for a moment, then written into the log.

Two threads write: the author's when enough has gathered, the keeper's when it has waited long enough. After
a crash the function says everything again; what the log already has is swallowed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import IO, cast

from worker.agents.hold import Hold
from worker.agents.output import encode, short
from worker.delivery.files import MAX_SIZE
from worker.errors import Failed
from worker.executions.events import Kind

CHUNK_SECONDS = 0.05
CHUNK_BYTES = 4096
# One event holds no more than this many characters.
MOST_CHARACTERS = 8192
MOST_PROGRESS = 500
_SPOOL_BYTES = 1 << 20
_OVERFLOW = "overflow"


@dataclass
class _Unsent:
    """What was said and shown since the log was last written."""

    text: list[str] = field(default_factory=list)
    size: int = 0
    since: float = 0.0
    progress: tuple[float, str] | None = None

    def __bool__(self) -> bool:
        return bool(self.text) or self.progress is not None


class Speech:
    """The text and the progress of one attempt."""

    def __init__(self, hold: Hold, nudge: Callable[[], None]) -> None:
        self._hold = hold
        self._nudge = nudge
        self._lock = threading.Lock()
        self._unsent = _Unsent()
        self._said = 0
        self._marks = 0
        self._spool: IO[bytes] | None = None
        self._overflow: bool | None = None

    def progress(self, fraction: float, message: str) -> None:
        shown = short(message, MOST_PROGRESS)
        with self._lock:
            self._marks += 1
            if self._marks <= self._hold.execution.marks:
                return
            self._unsent.progress = (min(1.0, max(0.0, float(fraction))), shown)
            self._touched()
        self._flush_when_due()

    def say(self, text: object) -> None:
        data = _utf8(text)
        assert isinstance(text, str)
        with self._lock:
            self._keep_whole(data)
            start, self._said = self._said, self._said + len(text)
            fresh = text[max(0, self._hold.execution.said - start) :]
            if fresh:
                self._unsent.text.append(fresh)
                self._unsent.size += len(data)
                self._touched()
        self._flush_when_due()

    def flush(self) -> None:
        """Writes what was said and shown into the log."""
        with self._lock:
            if self._unsent:
                self._send(self._unsent)
                self._unsent = _Unsent()

    def flush_when_old(self) -> float | None:
        """For the keeper: writes what has waited long enough; seconds until something will have."""
        with self._lock:
            if not self._unsent or self._hold.stopped is not None:
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
        """All that was said, as a file to read from its beginning."""
        with self._lock:
            self._keep_whole(b"")
            spool = self._spool
        assert spool is not None
        spool.seek(0)
        return spool

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def _keep_whole(self, data: bytes) -> None:
        if self._spool is None:
            self._spool = cast(IO[bytes], SpooledTemporaryFile(max_size=_SPOOL_BYTES))  # noqa: SIM115
        if self._spool.tell() + len(data) > MAX_SIZE:
            raise Failed("OUTPUT_TOO_LARGE", "the agent said more than can be delivered", limit=MAX_SIZE)
        self._spool.write(data)

    def _touched(self) -> None:
        if not self._unsent.since:
            self._unsent.since = time.monotonic()
            self._nudge()

    def _flush_when_due(self) -> None:
        unsent = self._unsent
        if unsent.size >= CHUNK_BYTES or (unsent and time.monotonic() - unsent.since >= CHUNK_SECONDS):
            self.flush()

    def _send(self, unsent: _Unsent) -> None:
        facts: list[tuple[str, bytes]] = []
        shown: dict[str, str | int | float] = {}
        if unsent.progress is not None:
            fraction, message = unsent.progress
            shown = {"progress": fraction, "message": message, "marks": self._marks}
            facts.append((Kind.PROGRESS, encode({"fraction": fraction, "message": message})))
        text = "" if self._is_over() else "".join(unsent.text)
        offset = self._said - len(text)
        for start in range(0, len(text), MOST_CHARACTERS):
            piece = text[start : start + MOST_CHARACTERS]
            facts.append((Kind.OUTPUT_CHUNK, encode({"text": piece, "offset": offset + start})))
        if not facts or self._hold.append(facts, shown | ({"said": self._said} if text else {})):
            return
        if shown:
            self._hold.append([], shown)
        if text:
            payload = encode({"offset": offset})
            self._hold.keep(_OVERFLOW, payload, kind=Kind.OUTPUT_OVERFLOW, payload=payload)
            self._overflow = True

    def _is_over(self) -> bool:
        """The log stays without text after the first that it could not take, also in a later run."""
        if self._overflow is None:
            self._overflow = _OVERFLOW in self._hold.remembered
        return self._overflow


def _utf8(text: object) -> bytes:
    broken: Exception | None = None
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError as half:
            broken = half
    raise Failed("OUTPUT_INVALID", "what an agent says must be text in valid Unicode") from broken
