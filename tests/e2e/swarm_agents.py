"""Agents for tests of the swarm door, enabled in swarm.toml. Each run of `count` logs one step."""

from __future__ import annotations

import time
from typing import Any

from worker import Failed, InvalidInput, agent, tool


@tool("note")
def note(word: str) -> str:
    return word


@agent("count", inline=True, time_limit=20)
def count(job: Any) -> dict[str, Any]:
    """Sleeps as long as requested, as one step, and returns its input."""
    job.tool("note", word="began")
    time.sleep(job.input.get("seconds", 0))
    return {
        "answer": str(job.input.get("say", "done")),
        "confidence": 0.75,
        "check_summary": f"stage={job.stage} profile={job.profile}",
        "got": {
            "stage": job.stage,
            "seed": job.seed,
            "budget": (job.swarm or {}).get("budget"),
            "schema": job.output_schema,
            "settings": job.settings,
            "seconds_left": round(job.seconds_left()),
        },
    }


@agent("nothing", inline=True)
def nothing(job: Any) -> dict[str, Any]:
    """Returns the minimum that a kernel accepts."""
    return {"answer": ""}


@agent("nap", inline=True, time_limit=20)
def nap(job: Any) -> str:
    """Work of another door that occupies a process."""
    time.sleep(job.input["seconds"])
    return "slept"


@agent("writer", inline=True)
def writer(job: Any) -> str:
    """Returns text and writes a file."""
    job.file("notes.md", "# found\n", mime="text/markdown")
    return "a text, not an object"


@agent("wrong", inline=True)
def wrong(job: Any) -> Any:
    """Fails in the requested way."""
    match job.input.get("do"):
        case "refuse":
            raise InvalidInput(field="do", expected="something else", received="refuse")
        case "fail":
            raise Failed("NO_MODEL", "the model is forced offline by policy " + "x" * 4000)
        case "raise":
            raise KeyError("a-text-that-must-stay-in-the-log")
        case _:
            return {"no": "answer"}
