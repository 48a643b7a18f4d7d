"""Agents that do nothing, so that only the engine's cost is measured."""

from __future__ import annotations

import time

from worker import agent
from worker.agents.job import Job

PRICE = "0.01"


@agent("nothing-queued")
def queued(job: Job) -> None:
    """Finishes at once; goes through the queue."""


@agent("nothing-express", inline=True)
def express(job: Job) -> None:
    """Finishes at once; takes the express lane."""


@agent("nothing-paid", price=PRICE, inline=True)
def paid(job: Job) -> dict[str, bool]:
    """Finishes at once, and is sold."""
    return {"done": True}


@agent("nothing-paid-queued", price=PRICE)
def paid_queued(job: Job) -> dict[str, bool]:
    """The same, through the queue."""
    return {"done": True}


@agent("sleeper")
def sleeper(job: Job) -> None:
    """Holds the queue's process, so that what comes after it waits."""
    time.sleep(1_800)
