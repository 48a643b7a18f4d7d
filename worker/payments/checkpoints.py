"""Named points around every money script and call, where tests kill or freeze a process.

Active only with WORKER_ENV=test and a directory in WORKER_CHECKPOINTS: the first process of a role that
reaches a point consumes the file `ROLE.POINT` in that directory, and the file's content (`kill` or `stop`)
is applied to that process as a machine would do it, without cleanup.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

CHECKPOINTS = "WORKER_CHECKPOINTS"

Checkpoint = Callable[[str], None]


def unarmed(point: str) -> None:
    """Does nothing."""


def armed(folder: Path, role: str) -> Checkpoint:
    def checkpoint(point: str) -> None:
        file = folder / f"{role}.{point}"
        try:
            action = file.read_text().strip()
            file.unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[action])

    return checkpoint
