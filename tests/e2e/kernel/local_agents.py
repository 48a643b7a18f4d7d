"""Agents of the work processes, for tests of the kernel door."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from worker import ToolDenied, ToolFailed, WaitExpired, agent, tool


def note(job: Any, word: str) -> None:
    """Appends one line per run to the file that the test reads."""
    with open(job.input["trace"], "a", encoding="utf-8") as trace:
        trace.write(f"{os.getpid()} {word}\n")


@agent("echo", inline=True)
def echo(job: Any) -> Any:
    """Returns its input."""
    return job.input


@tool("count")
def count(job: Any, of: str) -> int:
    note(job, "tool")
    return len(of)


@agent("patient", inline=True)
def patient(job: Any) -> dict[str, Any]:
    """Works, waits for a signal, continues."""
    note(job, "begin")
    job.say("before the wait\n")
    length = job.tool("count", of="four")
    try:
        answer = job.wait("approval", timeout=job.input.get("timeout"))
    finally:
        note(job, "finally")
    job.say("after the wait\n")
    return {"length": length, "answer": answer, "attempt": job.attempt}


@agent("impatient", inline=True)
def impatient(job: Any) -> dict[str, Any]:
    """Waits with a time limit and handles the time-out."""
    try:
        return {"answer": job.wait("never", timeout=0.5)}
    except WaitExpired:
        return {"answer": None}


@agent("abandoned", inline=True)
def abandoned(job: Any) -> dict[str, Any]:
    """Does not catch the time-out of its wait."""
    return {"answer": job.wait("never", timeout=0.3)}


@agent("asking", inline=True)
def asking(job: Any) -> Any:
    """Waits twice for the same signal type."""
    first = job.wait("word")
    second = job.wait("word")
    return [first, second]


@agent("telling", inline=True)
def telling(job: Any) -> Iterator[str]:
    """Streams, waits, streams again."""
    yield "one "
    yield str(job.wait("middle"))
    yield " three"


@tool("deploy.local")
def deploy_local(job: Any, site: str) -> str:
    note(job, "deploy")
    return f"deployed {site}"


@agent("deployer", inline=True)
def deployer(job: Any) -> dict[str, Any]:
    """Calls a tool that requires approval."""
    try:
        return {"said": job.tool("deploy.local", site="example")}
    except ToolDenied as denied:
        return {"denied": denied.reason}


@agent("delegating", inline=True)
def delegating(job: Any) -> dict[str, Any]:
    """Calls a runner's tool."""
    try:
        return {"value": job.tool(job.input.get("tool", "far.away"), remote=True, n=job.input["n"])}
    except ToolFailed as failed:
        return {"failed": failed.reason}
    except ToolDenied as denied:
        return {"denied": denied.reason}


@tool("limited")
def limited() -> None:
    """Does nothing; a policy limits its calls."""


@agent("hasty", inline=True)
def hasty(job: Any) -> int:
    """Returns how many of three calls the policy allowed."""
    allowed = 0
    for _ in range(3):
        try:
            job.tool("limited")
        except ToolDenied:
            continue
        allowed += 1
    return allowed
