"""Agents for the tests of streams and files: one slow, one with large deliverables."""

from __future__ import annotations

import time
from typing import Any

from worker import agent

PRICE = "0.01"
HEAVY = 24 << 20


@agent("slow", price=PRICE, time_limit=60.0)
def slow(job: Any) -> dict[str, Any]:
    """Works for the given number of seconds."""
    time.sleep(float(job.input["seconds"]))
    return {}


@agent("heavy", price=PRICE, time_limit=60.0)
def heavy(job: Any) -> None:
    """Delivers more than a connection's buffers hold."""
    job.file("heavy.bin", b"\0" * HEAVY, mime="application/octet-stream")
