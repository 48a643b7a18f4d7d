"""Greenlets, where the process has them."""

from __future__ import annotations

import time


def let_greenlets_run() -> None:
    """Lets those that are ready go first. Among threads, where no sleep is short, does nothing."""
    if time.sleep.__module__ != "time":
        time.sleep(0)
