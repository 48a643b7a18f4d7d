"""The agents of the money tests, and one that may be retried."""

from __future__ import annotations

from typing import Any

from tests.fakes.money_agents import SHARED, work
from worker.capabilities.declare import agent


@agent("steady", price="0.01", inline=True, **{**SHARED, "attempts": 4})
def steady(job: Any) -> dict[str, Any]:
    """Short work that is retried when its process dies."""
    return work(job)
