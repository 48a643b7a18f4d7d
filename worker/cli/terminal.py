"""Terminal output of commands: tables, progress bars, and one status line updated in place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Sequence
from typing import Any, TextIO

_STATUS_CHARACTERS = 100
_LEAST_TERMINAL = 40


def bar(fraction: Any, message: str, width: int) -> str:
    """Returns a progress bar with its percentage; an unusable fraction counts as 0."""
    usable = isinstance(fraction, int | float) and not isinstance(fraction, bool) and fraction == fraction
    done = min(max(float(fraction), 0.0), 1.0) if usable else 0.0
    return f"[{'#' * int(done * width):.<{width}}] {done:4.0%}  {message}"


def printable(text: str) -> str:
    """Replaces characters that could move a terminal's cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = (), width: int = 0
) -> list[str]:
    """Returns aligned lines. `right` names right-aligned columns; `width` cuts longer lines, 0 does not."""
    lines = [[*header], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    texts = [
        "  ".join(
            cell.rjust(wide) if name in right else cell.ljust(wide)
            for cell, wide, name in zip(line, widths, header, strict=True)
        ).rstrip()
        for line in lines
    ]
    return [text if not width or len(text) <= width else text[: width - 3] + "..." for text in texts]


def terminal_width(out: TextIO) -> int:
    """Returns the width to which tables are cut; 0 for files and pipes, which get whole lines."""
    return max(_LEAST_TERMINAL, shutil.get_terminal_size().columns) if out.isatty() else 0


def print_json(value: Any) -> None:
    """Prints a document on standard output, for other programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


class StatusLine:
    """Prints lines and one status line: updated in place on a terminal, else a new line per change."""

    def __init__(self, out: TextIO, *, indent: str = "") -> None:
        self._out = out
        self._indent = indent
        self._shown = ""
        self._last = ""

    def line(self, text: str) -> None:
        self.clear()
        print(text, file=self._out, flush=True)

    def move(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        if not self._out.isatty():
            print(f"{self._indent}{text}", file=self._out, flush=True)
            return
        self.clear()
        self._shown = text[:_STATUS_CHARACTERS]
        print(self._shown, end="", file=self._out, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r" + " " * len(self._shown) + "\r", end="", file=self._out, flush=True)
            self._shown = ""
