"""Agents under attack."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from worker import InvalidInput, agent


@agent("prose", price="0.01", inline=True, example_output="a" * 40 + "!")
def prose(job: Any) -> str:
    """Returns text, which a contract's pattern may be matched against."""
    return str(job.input["text"])


@agent("notes", price="0.01", inline=True)
def notes(job: Any) -> dict[str, Any]:
    """Returns its input."""
    return {"notes": job.input}


AT_IMPORT = dict(os.environ)
# A value that was wiped is nothing but stars.
SECRET = re.compile(rb"(WORKER_KEY|SIGNING_KEY|SECRET_KEY|KERNEL_TOKEN|AGENT_KEYS|SWARM_KEYS)=(?!\*+\0)[^\0]")


@agent("spy", price="0.01", inline=True)
def spy(job: Any) -> dict[str, Any]:
    """Looks for the worker's secrets wherever a process exposes its environment."""
    shown = [f"{name}={value}".encode() for name, value in {**AT_IMPORT, **os.environ}.items()]
    for pid in ("self", str(os.getppid())):
        shown.append(Path(f"/proc/{pid}/environ").read_bytes())
    found = {match[1].decode() for text in shown for match in SECRET.finditer(text)}
    return {"found": sorted(found)}


def _even(value: Any) -> None:
    while value == "for ever":
        pass
    if value["number"] % 2:
        raise InvalidInput("not even", field="number", expected="an even number", received=value["number"])


@agent("even", price="0.01", inline=True, check=_even)
def even(job: Any) -> dict[str, Any]:
    """Accepts only even numbers."""
    return {"half": job.input["number"] // 2}
