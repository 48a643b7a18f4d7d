"""Polling for conditions that other processes and threads bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], seconds: float = 15.0, description: str = "it") -> T:
    """The first true answer of `check`; fails the test when there is none in time."""
    until = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < until, f"not within {seconds:g} s: {description}"
        time.sleep(0.02)
    return found
