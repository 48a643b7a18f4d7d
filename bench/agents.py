"""Agents that do nothing, so that only the engine's cost is measured."""

from __future__ import annotations

from worker import agent
from worker.agents.job import Job


@agent("nothing-queued")
def queued(job: Job) -> None:
    """Finishes at once; goes through the queue."""


@agent("nothing-express", inline=True)
def express(job: Job) -> None:
    """Finishes at once; takes the express lane."""
