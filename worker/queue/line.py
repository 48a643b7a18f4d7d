"""What a work process tells its supervisor, over a pipe: short lines that cost microseconds."""

from __future__ import annotations

import os
from dataclasses import dataclass

from worker.executions.record import Execution


class Line:
    """The child's end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def running(self, execution: Execution, seconds: float) -> None:
        self._write(f"run {execution.id} {execution.fence} {seconds:.3f}")

    def idle(self) -> None:
        self._write("idle")

    def beat(self) -> None:
        self._write("beat")

    def kill_me(self) -> None:
        self._write("kill")

    def _write(self, text: str) -> None:
        os.write(self._fd, text.encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Message:
    """One line as the supervisor reads it."""

    word: str
    execution_id: str = ""
    fence: int = 0
    seconds: float = 0.0


def parse(line: bytes) -> Message:
    word, *rest = line.decode().split(" ")
    if word == "run":
        return Message(word, rest[0], int(rest[1]), float(rest[2]))
    return Message(word)
