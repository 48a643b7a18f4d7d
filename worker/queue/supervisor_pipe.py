"""Supervisor pipe protocol: short lines from a work process to its parent."""

from __future__ import annotations

import os
from dataclasses import dataclass

from worker.engine.record import Execution


class SupervisorPipe:
    """The child's end of the pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def running(self, execution: Execution, seconds: float) -> None:
        self._write(f"run {execution.id} {execution.fence} {seconds:.3f}")

    def idle(self) -> None:
        self._write("idle")

    def beat(self) -> None:
        self._write("beat")

    def replace_me(self) -> None:
        self._write("replace")

    def kill_me(self) -> None:
        self._write("kill")

    def _write(self, text: str) -> None:
        os.write(self._fd, text.encode() + b"\n")


@dataclass(frozen=True, slots=True)
class PipeMessage:
    """A message as parsed by the supervisor."""

    word: str
    execution_id: str = ""
    fence: int = 0
    seconds: float = 0.0


def parse(line: bytes) -> PipeMessage:
    word, *rest = line.decode().split(" ")
    if word == "run":
        return PipeMessage(word, rest[0], int(rest[1]), float(rest[2]))
    return PipeMessage(word)
