"""The file of a benchmark run: rows are added at once, and a failing row loses no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bench.__main__ as command
from bench import report
from bench.rounds import Measurement, Reading, WorkMissing


def saved(file: Path) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads(file.read_text())["measurements"]}


def test_rows_replace_those_of_the_same_name(tmp_path: Path) -> None:
    """Another run of one row leaves the others as they were."""
    file = tmp_path / "new" / "results.json"
    for row in ({"name": "a", "run": 1}, {"name": "b", "run": 1}, {"name": "a", "run": 2}):
        report.save(file, row, quick=False)
    assert saved(file) == {"a": {"name": "a", "run": 2}, "b": {"name": "b", "run": 1}}


@pytest.mark.parametrize("changed", ["machine", "quick"])
def test_rows_of_another_kind_of_run_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """Figures of two machines, or of a quick and a full run, never stand side by side."""
    file = tmp_path / "results.json"
    report.save(file, {"name": "a"}, quick=False)
    if changed == "machine":
        monkeypatch.setattr(report, "machine", lambda: {"cpus": 128})
    report.save(file, {"name": "b"}, quick=changed == "quick")
    assert list(saved(file)) == ["b"]


def test_failing_row_does_not_lose_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported with its reason, the next one is measured, and the command fails."""

    def fails(stand: object, *, quick: bool, told: object) -> Measurement:
        raise WorkMissing("half of it")

    def works(stand: object, *, quick: bool, told: object) -> Measurement:
        reading: Reading = {"asked": 1, "done": 1}
        return Measurement("works", "about", {"a": [reading]})

    monkeypatch.setattr(command, "MEASUREMENTS", {"fails": fails, "works": works})
    file = tmp_path / "results.json"
    assert command.main(["--quick", "--json", str(file)]) == 1
    rows = saved(file)
    assert rows["fails"]["failed"] == "WorkMissing: half of it"
    assert rows["works"]["contenders"]["a"]["median"] == {"asked": 1, "done": 1}
