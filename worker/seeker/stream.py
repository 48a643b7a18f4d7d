"""A task's event stream. It only shows progress and says when to poll; the poll is authoritative."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.seeker.http import ConnectionDropped, Transport

# Without events the task is polled this often anyway.
LOOK_SECONDS = 15.0
MOST_BREAKS = 3

_QUIET = frozenset(
    {
        "progress.updated",
        "output.chunk",
        "file.written",
        "execution.created",
        "execution.started",
        "payment.claimed",
        "payment.verified",
    }
)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    sequence: int
    kind: str
    payload: Mapping[str, Any]

    @property
    def turn(self) -> bool:
        """Whether something may have changed that a poll would show."""
        return self.kind not in _QUIET and not self.kind.startswith("step.")


def events(lines: Iterable[str]) -> Generator[StreamEvent | None, None, None]:
    """Parse events from the lines of a stream; None for a heartbeat."""
    sequence, data = 0, ""
    for line in lines:
        if line.startswith(":"):
            yield None
        elif line.startswith("id:"):
            text = line[3:].strip()
            sequence = int(text) if text.isdigit() and len(text) < 17 else 0
        elif line.startswith("data:"):
            data = line[5:].strip()
        elif not line and data:
            if (event := _event(sequence, data)) is not None:
                yield event
            data = ""


def _event(sequence: int, data: str) -> StreamEvent | None:
    try:
        shown = json.loads(data)
        return StreamEvent(sequence, str(shown["type"]), dict(shown.get("payload") or {}))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


class StreamFollower:
    """Follows one task's stream and resumes it where it broke off."""

    def __init__(
        self,
        http: Transport,
        url: str,
        headers: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http, self._url, self._headers, self._clock = http, url, headers, clock
        self._open: Generator[StreamEvent | None, None, None] | None = None
        self._last = 0
        self._breaks = 0

    @property
    def broken(self) -> bool:
        """Whether to stop using the stream: it broke off several times in a row."""
        return self._breaks >= MOST_BREAKS

    def until_turn(self, show: Callable[[StreamEvent], None]) -> None:
        """Show events until one makes a poll worthwhile or LOOK_SECONDS have passed."""
        until = self._clock() + LOOK_SECONDS
        try:
            for event in self._events():
                if event is not None:
                    self._breaks = 0
                    if event.sequence > self._last:
                        self._last = event.sequence
                        show(event)
                    if event.turn:
                        return
                if self._clock() > until:
                    return
            self._breaks += 1
        except ConnectionDropped:
            self._breaks += 1
        self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _events(self) -> Iterator[StreamEvent | None]:
        if self._open is None:
            resumed = {"Last-Event-ID": str(self._last)} if self._last else {}
            self._open = events(self._http.lines(self._url, {**self._headers, **resumed}))
        return self._open
