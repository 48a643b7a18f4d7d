"""Console of `worker dev`: prints under the execution's id, and a debugger at `breakpoint()`."""

from __future__ import annotations

import fcntl
import io
import os
import pdb
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import IO, Any, TextIO

from worker.capabilities.declare import Capability

# Time limit of an attempt that stops at a breakpoint.
LONGEST_STOP = 1_800.0


class Console:
    """Standard output of one work process, which runs one execution at a time."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._plain: TextIO = sys.stdout
        self._heading = ""
        self._turn: IO[str] | None = None

    def install(self) -> None:
        """Takes over prints and breakpoints of this process."""
        self._plain = sys.stdout
        sys.stdout = _Headed(self._plain, lambda: self._heading)
        sys.breakpointhook = self._stop

    def watch(self, capability: Capability) -> Capability:
        """Wraps the capability: reports its runs to this console and allows time for breakpoints."""
        function = capability.run
        if function is None or capability.name.startswith("_"):
            return capability

        @wraps(function)
        def run(job: Any) -> Any:
            self._begin(f"{job.id} {capability.name} | ")
            return function(job)

        return replace(capability, run=run, time_limit=max(capability.time_limit, LONGEST_STOP))

    def _begin(self, heading: str) -> None:
        """Starts the next execution: sets the heading of its prints, and ends the last one's debugger."""
        self._heading = heading
        if self._turn is not None:
            self._turn.close()
            self._turn = None
            sys.stdout = _Headed(self._plain, lambda: self._heading)

    def _stop(self, *args: Any, **options: Any) -> Any:
        """Stops at `breakpoint()`. The debugger owns the output from here to the end of the execution."""
        if self._turn is None:
            self._turn = (self._state / "breakpoint.lock").open("a")
            fcntl.flock(self._turn, fcntl.LOCK_EX)  # only one debugger at a time may read the keyboard
        sys.stdout = self._plain
        if os.environ.get("PYTHONBREAKPOINT"):
            return sys.__breakpointhook__(*args, **options)
        frame = sys._getframe(1)
        print(f"{self._heading}stopped at {_place(frame)}; c goes on, h helps", flush=True)
        debugger = pdb.Pdb(nosigint=True)
        debugger.set_trace(frame)
        return None


class _Headed(io.TextIOBase):
    """Writes each line under the heading of the running execution."""

    def __init__(self, output: TextIO, heading: Callable[[], str]) -> None:
        self._output = output
        self._heading = heading
        self._open = False

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            self._output.write(line if self._open else self._heading() + line)
            self._open = not line.endswith("\n")
        self._output.flush()
        return len(text)

    def flush(self) -> None:
        self._output.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._output.fileno()

    def isatty(self) -> bool:
        return self._output.isatty()


def _place(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{frame.f_lineno} in {frame.f_code.co_name}"
