"""Agents for tests of the dashboard: they wait for people, stream, retry and are sold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from worker import Failed, Transient, agent, tool


@tool("look_up")
def look_up(job: Any, text: str) -> str:
    return text[::-1]


@tool("pay_out")
def pay_out(job: Any, to: str, amount: str) -> str:
    return f"{amount} to {to}"


@agent("report", price="0.25", inline=True, example_input={"about": "bees"})
def report(job: Any) -> Iterator[str]:
    """Writes a short report."""
    job.progress(0.2, "reading")
    found = job.tool("look_up", text=str(job.input))
    yield from ("Bees dance.\n", "The dance shows the way.\n")
    job.file("found.txt", found, mime="text/plain")


@agent("payout", inline=True)
def payout(job: Any) -> dict[str, Any]:
    """Pays somebody, when a person agrees."""
    return {"paid": job.tool("pay_out", to=job.input["to"], amount=job.input["amount"])}


@agent("letter", inline=True)
def letter(job: Any) -> dict[str, Any]:
    """Waits for a word from outside."""
    return {"word": job.wait("word", timeout=3600)}


@agent("slow")
def slow(job: Any) -> None:
    """Works until it is cancelled."""
    while True:
        job.progress(0.5, "half of it")
        time.sleep(0.2)


@agent("shaky", inline=True, attempts=3)
def shaky(job: Any) -> dict[str, Any]:
    """Succeeds at the second attempt; `broken` fails for good."""
    if job.input.get("broken"):
        raise Failed("SOURCE_AWAY", "the source is away")
    if job.attempt == 1:
        raise Transient("the source is busy")
    return {"attempt": job.attempt}
