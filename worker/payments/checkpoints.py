"""Named points around every script and call that concerns money, where tests end or freeze a process.

Only with WORKER_ENV=test and a directory in WORKER_CHECKPOINTS anything happens here: a file named
`ROLE.POINT` in it is used up by the first process of that role that comes to the point, and what the file
says (`kill` or `stop`) is done to that process as a machine would do it, without a last word.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

CHECKPOINTS = "WORKER_CHECKPOINTS"

Checkpoint = Callable[[str], None]


def unarmed(point: str) -> None:
    """Nothing waits here."""


def armed(folder: Path, role: str) -> Checkpoint:
    def checkpoint(point: str) -> None:
        file = folder / f"{role}.{point}"
        try:
            what = file.read_text().strip()
            file.unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])

    return checkpoint
