"""Agents of the next deploy: the current ones, plus one on each lane that old processes do not know."""

from __future__ import annotations

from typing import Any

from tests.fakes.money_agents import SHARED, work
from worker.capabilities.declare import agent


@agent("brandnew", price="0.01", inline=True, **SHARED)
def brandnew(job: Any) -> dict[str, Any]:
    return work(job)


@agent("brandnew-long", price="0.03", inline=False, **SHARED)
def brandnew_long(job: Any) -> dict[str, Any]:
    return work(job)
