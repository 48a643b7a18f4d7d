"""What an execution can be, and what may follow what. Values only: no store, no clock.

    pending -> running -> completed | failed
       ^          |  ^
       |          v  |
       +------- blocked            any of the three -> failed | cancelled

A phase stands beside the state and says how it is with the money; work without a price goes straight
from `working` to `done`.
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
    """Where a pending execution waits for somebody to take it."""

    EXPRESS = "express"
    QUEUE = "queue"
    REMOTE = "remote"


# How often another input is welcome on the same payment after the agent refused one.
MOST_INPUTS = 3

TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})

_NEXT: dict[State, frozenset[State]] = {
    State.PENDING: frozenset({State.RUNNING, State.FAILED, State.CANCELLED}),
    State.RUNNING: frozenset({State.PENDING, State.BLOCKED, *TERMINAL}),
    State.BLOCKED: frozenset({State.PENDING, State.RUNNING, State.FAILED, State.CANCELLED}),
}


def may_follow(before: State, after: State) -> bool:
    return after in _NEXT.get(before, frozenset())
