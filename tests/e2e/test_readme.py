"""Runs the code of README.md and docs/authors.md; that of other pages runs in test_examples.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.tree import Local

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
BASH = re.compile(r"```bash\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/authors.md"])
def test_python_examples_in_the_docs_run(page: str, tmp_path: Path) -> None:
    """Each Python block declares a working agent and is run through a real tree."""
    (tmp_path / "page_agents.py").write_text("\n".join(PYTHON.findall((ROOT / page).read_text())))
    name, input, wanted = {
        "README.md": ("word-count", {"text": "to be or not"}, {"words": 4}),
        "docs/authors.md": ("route", {"stops": [5, 1, 2]}, {"total": 4}),
    }[page]
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    local = Local(tmp_path, PYTHONPATH=path, WORKER_AGENTS="page_agents")
    try:
        local.start()
        run = [sys.executable, "-m", "worker", "run", name, "--state", str(local.state)]
        done = subprocess.run(
            [*run, "--input", json.dumps(input)], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == wanted
    finally:
        local.close()


def test_shell_examples_for_hiring_run(tmp_path: Path) -> None:
    """The shell lines, pasted unchanged, buy a logo and then three files."""
    local = Local(tmp_path, FACILITATOR_URL="", WORKER_AGENTS="worker.shipped")
    try:
        local.start()
        # A second terminal in the repository: with what is installed there and what `make run` stores.
        python = tmp_path / ".venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        (tmp_path / "var").symlink_to(local.state)
        environ = {**os.environ, "HOME": str(tmp_path)}
        lines = "set -e\n" + "\n".join(BASH.findall(README))
        assert "http://127.0.0.1:8000" in lines
        lines = lines.replace("http://127.0.0.1:8000", local.facts["url"])
        done = subprocess.run(
            ["bash", "-c", lines], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("402\n")
        assert done.stdout.count('"status":"completed"') >= 2
        assert len(list((tmp_path / "logos").rglob("*.svg"))) == 3
    finally:
        local.close()
