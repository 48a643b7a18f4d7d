"""Published Python packages for tests, with environments of their own that git ignores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.npm import alone, missing


def installed(requirements: Path, cache: str) -> Path:
    """The Python of an environment with exactly these requirements, which may differ from ours."""
    with alone(cache) as folder:
        python = folder / "bin" / "python"
        wanted = requirements.read_text()
        mark = folder / "installed"
        if not mark.exists() or mark.read_text() != wanted:
            steps = (
                [sys.executable, "-m", "venv", "--clear", str(folder)],
                [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "-r", str(requirements)],
            )
            for step in steps:
                done = subprocess.run(step, capture_output=True, text=True, timeout=600)
                if done.returncode:
                    missing(f"the Python packages cannot be installed: {done.stderr[-300:]}")
            mark.write_text(wanted)
    return python
