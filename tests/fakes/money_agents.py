"""Agents that succeed, sleep, fail or need retries as their input says."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any

from worker.capabilities.declare import agent
from worker.core.errors import Failed, InvalidInput, Transient


def tries(key: str) -> int:
    """Counts the calls with this key, across all processes."""
    path = Path(os.environ["MONEY_AGENTS_DIR"]) / key
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size


def work(job: Any) -> dict[str, Any]:
    """Does what the input says."""
    asked = job.input
    match asked.get("do", "ok"):
        case "sleep":
            until = time.monotonic() + asked["seconds"]
            while time.monotonic() < until:
                job.progress(0.5, "asleep")
                time.sleep(0.05)
        case "flaky" if tries(asked["key"]) <= asked["fails"]:
            raise Transient("not this time")
        case "invalid":
            raise InvalidInput(field="do", expected="another word")
        case "fail":
            raise Failed("NOT_DONE", "this cannot be done")
    # Random, to reveal a second run.
    return {"asked": asked, "run": secrets.token_hex(8)}


SHARED: dict[str, Any] = {
    "attempts": 1,
    "time_limit": 20,
    "input_schema": {"type": "object"},
    "example_input": {"do": "ok"},
    "example_output": {"asked": {"do": "ok"}, "run": "00"},
}


@agent("echo", price="0.01", inline=True, **SHARED)
def echo(job: Any) -> dict[str, Any]:
    """Short work, paid after it."""
    return work(job)


@agent("thrice", price="0.01", inline=True, **{**SHARED, "attempts": 3})
def thrice(job: Any) -> dict[str, Any]:
    """The same with more than one attempt, as most agents have."""
    return work(job)


@agent("early", price="0.02", inline=True, settle="before_work", **SHARED)
def early(job: Any) -> dict[str, Any]:
    """Short work, paid before it where the contract says so."""
    return work(job)


def by_length(input: Any) -> str:
    """A tenth of a cent per letter."""
    return f"{len(input['text']) * 0.001:.3f}"


@agent("by-length", price=by_length, max_price="0.05", inline=True, **SHARED)
def priced(job: Any) -> dict[str, Any]:
    """Work whose price depends on its input."""
    return work(job)


@agent("long", price="0.03", inline=False, **SHARED)
def long(job: Any) -> dict[str, Any]:
    """Work that goes through the queue."""
    return work(job)
