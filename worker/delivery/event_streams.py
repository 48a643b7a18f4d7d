"""What a stream may show and when: unpaid content is held back until its payment settles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from worker.engine.events import Event, Kind
from worker.engine.record import Execution

# Kinds that reveal no content: under `after_work` all others wait until the payment has settled.
# A file's size and checksum would reveal a small one, and a call that waits for approval has arguments.
_OPEN = frozenset(
    {
        *(kind for kind in Kind if kind.startswith(("execution.", "payment."))),
        Kind.PROGRESS,
        Kind.AGENT_TIMEOUT,
    }
) - {Kind.EXECUTION_BLOCKED}


def opens_early(execution: Execution) -> bool:
    """Whether content may be read before the end: it is paid for, and no mismatch can refund it.

    If the contract has an output schema, an output that does not match is refunded.
    """
    return execution.before_work and not execution.context.get("output_schema")


class EventLog(Protocol):
    """The part of the engine that streams read."""

    def follow(self, id: str, after: int = 0) -> Iterator[list[Event]]: ...

    def events(self, id: str, after: int = 0, limit: int = 1_000) -> list[Event]: ...


def released(log: EventLog, id: str, after: int, *, sealed: bool) -> Iterator[list[Event]]:
    """Holds content back until the work is paid for, then yields everything in order."""
    sent = after
    for batch in log.follow(id, after):
        if sealed and batch and batch[-1].kind == Kind.EXECUTION_COMPLETED:
            yield from _unsealed(log, id, after, sent)
            return
        if batch:
            sent = batch[-1].sequence
        yield [event for event in batch if event.kind in _OPEN] if sealed else batch


def _unsealed(log: EventLog, id: str, after: int, sent: int) -> Iterator[list[Event]]:
    """Replays the log from where the reader has all of it; up to `sent` it already has the open events.

    Held content is sent in order, so a reader whose last event was held content has all earlier ones.
    """
    last = log.events(id, after - 1, 1) if after else []
    at = after if last and last[0].kind not in _OPEN else 0
    while batch := log.events(id, at):
        at = batch[-1].sequence
        yield [event for event in batch if event.sequence > sent or event.kind not in _OPEN]
