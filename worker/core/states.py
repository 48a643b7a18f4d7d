"""States of an execution. Values only; the scripts enforce the transitions, which are exactly these:

    pending -> running -> completed | failed
       ^          |  ^
       |          v  |
       +------- blocked            any of the three -> failed | cancelled

The phase is separate from the state and tracks the money; work without a price goes straight from
`working` to `done`.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


class Phase(StrEnum):
    OFFERED = "offered"
    VERIFYING = "verifying"
    WORKING = "working"
    SETTLING = "settling"
    PAYMENT_DUE = "payment_due"
    DONE = "done"


class Lane(StrEnum):
    """Where a pending execution waits to be taken."""

    EXPRESS = "express"
    QUEUE = "queue"
    REMOTE = "remote"


# How many times the seeker may send other input on the same payment after the agent rejected one.
MOST_INPUTS = 3

TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
