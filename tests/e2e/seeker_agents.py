"""Agents for the seeker's tests: a slow one, one that fails transiently, one that rejects its input."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
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
    """Fails transiently on the first two calls for a name."""
    marks = os.path.join(os.environ["WORKER_STATE_DIR"], f"stumbled-{job.input['name']}")
    with open(marks, "a") as file:
        file.write("x")
    if os.path.getsize(marks) <= 2:
        raise Transient("the line was busy")
    return {"tries": os.path.getsize(marks)}


@agent("picky", price="0.10", time_limit=20, attempts=1, inline=True)
def picky(job: Any) -> dict[str, Any]:
    """Requires a word that its schema does not state."""
    if job.input.get("word") != "please":
        raise InvalidInput(field="word", expected="please")
    return {"said": job.input["word"]}


@agent("tale", price="0.10", time_limit=60)
def tale(job: Any) -> Iterator[str]:
    """Streams six lines over three seconds."""
    for number in range(6):
        yield f"line {number}\n"
        time.sleep(0.5)
