"""A page of memory in which a work process tells its parent how it is and what it runs.

A message for each run would wake the parent twice; it reads the page when it ticks, and once more after the
process has died. A run is written beside the one before it and then named by one byte, so that a process that
is killed at any moment leaves a whole one.
"""

from __future__ import annotations

import mmap
import struct
import time
import zlib
from dataclasses import dataclass

_BEAT = struct.Struct("d")
_SIGNED_ON, _RELIEVED, _CURRENT, _HAS_NEXT = 8, 9, 10, 11
# Where each of the two runs begins; 0 in _CURRENT means none. After them stands the run that begins next.
_RUNS = (0, 64, 512)
_NEXT = 960
_CHECKSUM = struct.Struct("=I")
_RUN = struct.Struct("=qdH")
MOST_ID = 400


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """`ends_by` is in seconds of the machine's monotonic clock."""

    execution_id: str
    fence: int
    ends_by: float


@dataclass(frozen=True, slots=True)
class NextRun:
    """A run whose lease was asked for and which has not begun; where it was granted, under this session."""

    execution_id: str
    session: str


class StatusPage:
    """Made by the parent before it forks. One thread of the child writes runs; any thread may beat."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    # The child's side

    def beat(self) -> None:
        _BEAT.pack_into(self._page, 0, time.monotonic())

    def running(self, execution_id: str, fence: int, seconds: float) -> None:
        other = 2 if self._page[_CURRENT] == 1 else 1
        self._write(_RUNS[other], execution_id, fence, time.monotonic() + seconds)
        self._page[_CURRENT] = other
        self._page[_HAS_NEXT] = 0

    def asks(self, execution_id: str, session: str) -> None:
        """The process asks for the lease of its next run, which begins when the one before it has ended."""
        self._page[_HAS_NEXT] = 0
        both = f"{execution_id} {session}"
        if len(both.encode()) <= MOST_ID:
            self._write(_NEXT, both, 0, 0.0)
            self._page[_HAS_NEXT] = 1

    def _write(self, at: int, execution_id: str, fence: int, ends_by: float) -> None:
        id = execution_id.encode()
        if len(id) > MOST_ID:
            raise ValueError("an execution id of this length does not fit the page")
        run = _RUN.pack(fence, ends_by, len(id)) + id
        self._page[at : at + _CHECKSUM.size + len(run)] = _CHECKSUM.pack(zlib.crc32(run)) + run

    def idle(self) -> None:
        self._page[_CURRENT] = 0

    def signed_on(self) -> None:
        """The store lists this process among those that take work."""
        self._page[_SIGNED_ON] = 1

    @property
    def relieved(self) -> bool:
        """Whether another process has signed on in place of this one."""
        return bool(self._page[_RELIEVED])

    # The parent's side

    @property
    def last_beat(self) -> float:
        """0.0 before the first one."""
        beat: float = _BEAT.unpack_from(self._page, 0)[0]
        return beat

    @property
    def has_signed_on(self) -> bool:
        return bool(self._page[_SIGNED_ON])

    def relieve(self) -> None:
        self._page[_RELIEVED] = 1

    def run(self) -> CurrentRun | None:
        """What a dead process ran; of a living one, None also while it writes."""
        current = self._page[_CURRENT]
        return self._read(_RUNS[current]) if current else None

    def next_run(self) -> NextRun | None:
        """What a dead process asked for and had not begun; it may not have been granted, or be over."""
        found = self._read(_NEXT) if self._page[_HAS_NEXT] else None
        return NextRun(*found.execution_id.rsplit(" ", 1)) if found else None

    def _read(self, at: int) -> CurrentRun | None:
        size = _CHECKSUM.size + _RUN.size + MOST_ID
        data = self._page[at : at + size]
        body = data[_CHECKSUM.size :]
        fence, ends_by, length = _RUN.unpack_from(body)
        body = body[: _RUN.size + length]
        if zlib.crc32(body) != _CHECKSUM.unpack_from(data)[0]:
            return None
        return CurrentRun(body[_RUN.size :].decode(), fence, ends_by)

    def close(self) -> None:
        self._page.close()
