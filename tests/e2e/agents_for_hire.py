"""Agents that are sold to the seeker's tests: one takes its time, one stumbles, one refuses its input."""

from __future__ import annotations

import os
import time
from typing import Any

from worker import InvalidInput, Transient, agent


@agent("slow", price="0.20", time_limit=60, settle="before_work")
def slow(job: Any) -> dict[str, Any]:
    """Takes four seconds in four steps."""
    for step in range(4):
        job.progress(step / 4, f"step {step}")
        time.sleep(1)
    job.progress(1.0, "done")
    return {"steps": 4}


@agent("stumble", price="0.10", time_limit=20, attempts=1, inline=True)
def stumble(job: Any) -> dict[str, Any]:
    """Meets a passing fault the first two times it is asked for a name."""
    marks = os.path.join(os.environ["WORKER_STATE_DIR"], f"stumbled-{job.input['name']}")
    with open(marks, "a") as file:
        file.write("x")
    if os.path.getsize(marks) <= 2:
        raise Transient("the line was busy")
    return {"tries": os.path.getsize(marks)}


@agent("picky", price="0.10", time_limit=20, attempts=1, inline=True)
def picky(job: Any) -> dict[str, Any]:
    """Wants a word that no schema tells."""
    if job.input.get("word") != "please":
        raise InvalidInput(field="word", expected="please")
    return {"said": job.input["word"]}
