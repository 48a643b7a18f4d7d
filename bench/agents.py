"""Agents that do nothing, so that all that is measured is what the engine costs."""

from __future__ import annotations

from worker import agent
from worker.agents.job import Job


@agent("nothing-queued")
def queued(job: Job) -> None:
    """Done as soon as it begins; waits in the queue."""


@agent("nothing-express", inline=True)
def express(job: Job) -> None:
    """Done as soon as it begins; takes the express lane."""
