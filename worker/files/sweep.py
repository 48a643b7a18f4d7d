"""Removes files left by dead writers: parts on disk, unfinished uploads in a bucket."""

from __future__ import annotations

import random
import threading

import structlog

from worker.core.errors import Problem
from worker.files.store import Files

log = structlog.get_logger()

EVERY_US = 3600 * 1_000_000
# How long a part is kept after its writer can last have been alive.
SPARE_SECONDS = 86_400.0


class FileSweep:
    """A chore of the clock, about once an hour. A bucket may be slow, so it runs beside the clock's ticks.

    `longest`: most seconds a writer may live. An upload in a bucket does not show whether its writer does.
    Every clock sweeps; a file that another one has removed is not an error.
    """

    def __init__(self, files: Files, *, longest: float, every_us: int = EVERY_US) -> None:
        self._files = files
        self._older_than = longest + SPARE_SECONDS
        self._every_us = every_us
        self._due = 0
        self._running: threading.Thread | None = None

    def chore(self, at: int) -> None:
        """Called by the clock about once a second, with the store's time."""
        if at < self._due or (self._running is not None and self._running.is_alive()):
            return
        self._due = at + int(self._every_us * random.uniform(0.8, 1.2))
        self._running = threading.Thread(target=self._sweep, name="sweep", daemon=True)
        self._running.start()

    def _sweep(self) -> None:
        try:
            removed = self._files.sweep(self._older_than)
        except Problem as problem:  # the file storage is unavailable: the next round is in an hour
            log.warning("files.sweep_postponed", code=problem.code)
        except Exception:
            log.exception("files.sweep_failed")
        else:
            if removed:
                log.info("files.swept", removed=removed)
