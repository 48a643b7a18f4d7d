"""Events: the immutable entries of a log, how they are stored and how they are shown.

A stored event is one line: `at kind step cause correlation payload`. Its position in the list is its
sequence. cause and correlation are sequences in the same log (0: the event itself), and the event's id is
derived from all of these.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from worker.core.ids import event_id

# Limits of a log. Text and progress have lower limits, to leave room for steps, signals and files.
MOST_EVENTS = 10_000
MOST_LOG_BYTES = 4 << 20
RESERVED_EVENTS = 1_000
RESERVED_BYTES = 1 << 20


class Kind(StrEnum):
    EXECUTION_CREATED = "execution.created"
    EXECUTION_STARTED = "execution.started"
    EXECUTION_BLOCKED = "execution.blocked"
    EXECUTION_RESUMED = "execution.resumed"
    EXECUTION_COMPLETED = "execution.completed"
    EXECUTION_FAILED = "execution.failed"
    EXECUTION_CANCELLED = "execution.cancelled"
    EXECUTION_RESET = "execution.reset"
    EXECUTION_SEALED = "execution.sealed"
    INTENT_ACCEPTED = "intent.accepted"
    INTENT_DENIED = "intent.denied"
    STEP_CREATED = "step.created"
    STEP_DISPATCHED = "step.dispatched"
    STEP_STARTED = "step.started"
    STEP_COMPLETED = "step.completed"
    STEP_FAILED = "step.failed"
    STEP_RETRIED = "step.retried"
    STEP_TIMED_OUT = "step.timed_out"
    STEP_CANCELLED = "step.cancelled"
    STEP_APPROVAL_REQUIRED = "step.approval_required"
    SIGNAL_RECEIVED = "signal.received"
    AGENT_TIMEOUT = "agent.timeout"
    PAYMENT_CLAIMED = "payment.claimed"
    PAYMENT_VERIFIED = "payment.verified"
    PAYMENT_REFUSED = "payment.refused"
    PAYMENT_UNKNOWN = "payment.unknown"
    PAYMENT_SETTLED = "payment.settled"
    PROGRESS = "progress.updated"
    OUTPUT_CHUNK = "output.chunk"
    OUTPUT_OVERFLOW = "output.overflow"
    OUTPUT_RESET = "output.reset"
    FILE_WRITTEN = "file.written"

    # Pushed to connections only, never logged.
    EXECUTION_ASSIGNED = "execution.assigned"
    TOOL_RESULT = "tool.result"
    APPROVAL_RESOLVED = "approval.resolved"
    JOB_ASSIGNED = "job.assigned"


TERMINAL_KINDS = frozenset({Kind.EXECUTION_COMPLETED, Kind.EXECUTION_FAILED, Kind.EXECUTION_CANCELLED})


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `payload` is the stored JSON, not yet decoded."""

    execution_id: str
    sequence: int
    at: int
    kind: str
    step_id: str
    cause: int
    correlation: int
    payload: bytes

    @property
    def terminal(self) -> bool:
        return self.kind in TERMINAL_KINDS

    @property
    def id(self) -> str:
        return event_id(self.execution_id, self.sequence)

    def data(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.payload)
        return decoded

    def shown(self) -> dict[str, Any]:
        """Returns the event as the kernel door and every stream show it."""
        return {
            "id": self.id,
            "execution_id": self.execution_id,
            "step_id": self.step_id,
            "type": self.kind,
            "schema_version": 1,
            "timestamp": iso(self.at),
            "payload": self.data(),
            "causation_id": event_id(self.execution_id, self.cause or self.sequence),
            "correlation_id": event_id(self.execution_id, self.correlation or self.sequence),
            "idempotency_key": "",
            "sequence": self.sequence,
        }


def decode(execution_id: str, sequence: int, line: bytes) -> Event:
    at, kind, step, cause, correlation, payload = line.split(b" ", 5)
    return Event(
        execution_id=execution_id,
        sequence=sequence,
        at=int(at),
        kind=kind.decode(),
        step_id="" if step == b"-" else step.decode(),
        cause=int(cause),
        correlation=int(correlation),
        payload=payload,
    )


# JSON allows these inside a string, but many event-stream parsers treat each as a line end.
_LINE_ENDS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def one_line(data: str) -> str:
    """Escapes anything in the JSON that could end its line in an event stream."""
    for char, escaped in _LINE_ENDS:
        data = data.replace(char, escaped)
    return data


def iso(at_us: int) -> str:
    """Formats as RFC 3339 in UTC, with microseconds."""
    second, left = divmod(at_us, 1_000_000)
    return f"{_to_second(second)}.{left:06d}Z"


# Most times that are shown have just been, and many of one second.
@lru_cache(maxsize=256)
def _to_second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()[:19]
