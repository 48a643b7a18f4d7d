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
from collections.abc import Sequence
from dataclasses import dataclass

_BEAT = struct.Struct("d")
_RELIEVED, _CURRENT = 8, 9
# Where each of the two runs begins; 0 in _CURRENT means none.
_RUNS = (0, 64, 512)
# After them stand the runs whose leases were asked for: those asked for last, and those before them, because
# what became of these is known only with the answer to the next question. How many of each count, and where
# they begin.
MOST_ASKED = 8
_ASKED = (10, 11)
_FIRST, _SLOT = 960, 448
_BYTES = _FIRST + 2 * MOST_ASKED * _SLOT
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
class AskedRun:
    """A run whose lease was asked for; if granted, under this session.

    `execution_id` is '' where the process waited for whatever comes.
    """

    execution_id: str
    session: str


class StatusPage:
    """Made by the parent before it forks. One thread of the child writes runs; any thread may beat."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _BYTES)
        self._asked = 0
        # Where runs asked for stand that have not begun.
        self._places: dict[str, int] = {}

    # The child's side

    def beat(self) -> None:
        _BEAT.pack_into(self._page, 0, time.monotonic())

    def running(self, execution_id: str, fence: int, seconds: float) -> None:
        other = 2 if self._page[_CURRENT] == 1 else 1
        self._write(_RUNS[other], execution_id, fence, time.monotonic() + seconds)
        self._page[_CURRENT] = other
        for asked in (execution_id, ""):
            place = self._places.pop(asked, None)
            if place is not None:
                self._page[place : place + _CHECKSUM.size] = bytes(_CHECKSUM.size)

    def asks(self, runs: Sequence[tuple[str, str]]) -> None:
        """The process asks for the leases of its next runs, each an execution and a session."""
        self._asked = 1 - self._asked
        count, first = _ASKED[self._asked], _FIRST + self._asked * MOST_ASKED * _SLOT
        self._page[count] = 0
        last = range(first, first + MOST_ASKED * _SLOT)
        self._places = {id: place for id, place in self._places.items() if place not in last}
        written = 0
        for execution_id, session in runs:
            both = f"{execution_id} {session}"
            if len(both.encode()) <= MOST_ID:
                self._places[execution_id] = first + written * _SLOT
                self._write(self._places[execution_id], both, 0, 0.0)
                written += 1
        self._page[count] = written

    def _write(self, at: int, execution_id: str, fence: int, ends_by: float) -> None:
        id = execution_id.encode()
        if len(id) > MOST_ID:
            raise ValueError("an execution id of this length does not fit the page")
        run = _RUN.pack(fence, ends_by, len(id)) + id
        self._page[at : at + _CHECKSUM.size + len(run)] = _CHECKSUM.pack(zlib.crc32(run)) + run

    def idle(self) -> None:
        self._page[_CURRENT] = 0

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

    def relieve(self) -> None:
        self._page[_RELIEVED] = 1

    def run(self) -> CurrentRun | None:
        """What a dead process ran; of a living one, None also while it writes."""
        current = self._page[_CURRENT]
        return self._read(_RUNS[current]) if current else None

    def asked(self) -> list[AskedRun]:
        """What a dead process asked for and had not begun."""
        found = []
        for group, count in enumerate(_ASKED):
            first = _FIRST + group * MOST_ASKED * _SLOT
            read = [self._read(first + each * _SLOT) for each in range(self._page[count])]
            found += [AskedRun(*each.execution_id.rsplit(" ", 1)) for each in read if each is not None]
        return found

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
