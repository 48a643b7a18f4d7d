"""An installed package is complete without a clone of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from worker.local.valkey import free_port

ROOT = Path(__file__).parents[2]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("WORKER_", "PYTHON"))
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**inherited, **environ},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(name="wheel", scope="module")
def _wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Build from a copy: building leaves files behind and would include those of earlier builds.
    source = folder / "source"
    shutil.copytree(ROOT / "worker", source / "worker", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    [wheel] = folder.glob("*.whl")
    return wheel


def test_wheel_contains_all_package_data(wheel: Path) -> None:
    """Scripts, schemas, descriptions and the local chain's contracts are package data; nothing else is."""
    names = zipfile.ZipFile(wheel).namelist()
    tree = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "worker").rglob("*")
        if path.suffix in (".lua", ".json", ".yaml", ".txt")
    }
    assert tree and tree <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"worker"}


def test_installed_worker_proves_itself_from_an_empty_directory(wheel: Path, tmp_path: Path) -> None:
    """`pip install` into an empty environment provides all that `worker local --prove --once` needs."""
    environment, empty = tmp_path / "environment", tmp_path / "empty"
    empty.mkdir()
    run(sys.executable, "-m", "venv", environment, cwd=tmp_path)
    run(environment / "bin" / "python", *PIP, "install", wheel, cwd=tmp_path)
    finished = run(
        environment / "bin" / "worker", "local", "--prove", "--once", cwd=empty, PORT=str(free_port())
    )
    assert "settled" in finished
