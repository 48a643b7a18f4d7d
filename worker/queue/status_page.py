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
_SIGNED_ON, _RELIEVED, _CURRENT = 8, 9, 10
# Where each of the two runs begins; 0 in _CURRENT means none.
_RUNS = (0, 64, 512)
_CHECKSUM = struct.Struct("=I")
_RUN = struct.Struct("=qdH")
MOST_ID = 400


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """`ends_by` is in seconds of the machine's monotonic clock."""

    execution_id: str
    fence: int
    ends_by: float


class StatusPage:
    """Made by the parent before it forks. One thread of the child writes runs; any thread may beat."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    # The child's side

    def beat(self) -> None:
        _BEAT.pack_into(self._page, 0, time.monotonic())

    def running(self, execution_id: str, fence: int, seconds: float) -> None:
        id = execution_id.encode()
        if len(id) > MOST_ID:
            raise ValueError("an execution id of this length does not fit the page")
        run = _RUN.pack(fence, time.monotonic() + seconds, len(id)) + id
        other = 2 if self._page[_CURRENT] == 1 else 1
        at = _RUNS[other]
        self._page[at : at + _CHECKSUM.size + len(run)] = _CHECKSUM.pack(zlib.crc32(run)) + run
        self._page[_CURRENT] = other

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
        if not current:
            return None
        at = _RUNS[current]
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
