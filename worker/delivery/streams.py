"""What a stream may show and when: content that is not paid for is held back until it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from worker.executions.events import Event, Kind

# Kinds that say nothing of the content: under `after_work` all others wait until the money has settled.
_OPEN = frozenset(
    {
        *(kind for kind in Kind if kind.startswith(("execution.", "payment."))),
        Kind.PROGRESS,
        Kind.FILE_WRITTEN,
        Kind.AGENT_TIMEOUT,
    }
)


class Log(Protocol):
    """The engine as far as streams read it."""

    def follow(self, id: str, after: int = 0) -> Iterator[list[Event]]: ...

    def events(self, id: str, after: int = 0, limit: int = 1_000) -> list[Event]: ...


def released(log: Log, id: str, after: int, *, sealed: bool) -> Iterator[list[Event]]:
    """Content as it may be released: held back until the work is paid, then everything in its order."""
    told = after
    for batch in log.follow(id, after):
        if sealed and batch and batch[-1].kind == Kind.EXECUTION_COMPLETED:
            yield from _unsealed(log, id, after, told)
            return
        if batch:
            told = batch[-1].sequence
        yield [event for event in batch if event.kind in _OPEN] if sealed else batch


def _unsealed(log: Log, id: str, after: int, told: int) -> Iterator[list[Event]]:
    """The log from where its reader has all of it; up to `told` the reader has what is open.

    Held content comes in order, so whoever names a piece of it as the last one seen has those before.
    """
    last = log.events(id, after - 1, 1) if after else []
    at = after if last and last[0].kind not in _OPEN else 0
    while batch := log.events(id, at):
        at = batch[-1].sequence
        yield [event for event in batch if event.sequence > told or event.kind not in _OPEN]
