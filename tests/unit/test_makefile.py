"""`make run` installs the production requirements and nothing for tests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"^([A-Za-z0-9_.-]+)==(\S+)", re.MULTILINE)


def planned(target: str, directory: Path) -> str:
    """Return what make would do for a target in a fresh checkout."""
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt", "setup.cfg", "pyproject.toml"):
        (directory / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_running_installs_the_production_set_alone(tmp_path: Path) -> None:
    """Tests add the development requirements to the production ones."""
    run = planned("run", tmp_path)
    assert "-r requirements.txt" in run and "requirements-dev.txt" not in run
    lint = planned("lint", tmp_path)
    assert lint.index("-r requirements.txt") < lint.index("-r requirements-dev.txt")


def test_both_sets_pin_the_same_versions() -> None:
    """Production runs the versions that were tested."""
    sets = [dict(PINNED.findall((ROOT / f"requirements{end}.txt").read_text())) for end in ("", "-dev")]
    assert sets[0].items() <= sets[1].items() and len(sets[0]) < len(sets[1]) / 1.3
