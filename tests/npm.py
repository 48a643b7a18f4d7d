"""Published npm packages for tests, installed once into a directory that git ignores."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

VAR = Path(__file__).parents[1] / "var"
_INSTALL = ("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts")


def missing(why: str) -> None:
    """Without node there is nothing to test; in CI that is a failure."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(why)
    pytest.skip(why)


@contextmanager
def alone(cache: str) -> Iterator[Path]:
    """The folder of a cache, for one test process at a time."""
    VAR.mkdir(parents=True, exist_ok=True)
    with (VAR / f"{cache}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield VAR / cache


def installed(source: Path, cache: str, *options: str) -> Path:
    """The folder with what package.json in `source` names, and the scripts beside it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("node and npm are not installed")
    with alone(cache) as folder:
        wanted = (source / "package.json").read_text()
        mark = folder / "installed"
        if not mark.exists() or mark.read_text() != wanted:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / "package.json", folder)
            command = [*_INSTALL, *options]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
            if done.returncode:
                missing(f"the npm packages cannot be installed: {done.stderr[-300:]}")
            mark.write_text(wanted)
        for script in source.glob("*.mjs"):
            shutil.copy(script, folder)
    return folder
