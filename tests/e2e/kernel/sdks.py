"""The official clients in both generations that use this protocol, each in its own environment.

An environment is built once and kept in a cache shared by the tests (`SDK_CACHE`, else `var/sdks`).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.kernel.deployment import ROOT, TOKEN, Program

CACHE = Path(os.environ.get("SDK_CACHE") or ROOT / "var" / "sdks")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Sdk:
    """One generation: its version and the script that uses it."""

    version: str
    script: str

    def python(self) -> str:
        """The interpreter of its environment, which is built if missing."""
        home = CACHE / self.version
        done = home / "done"
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / f"{self.version}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
                install = [str(home / "bin" / "pip"), "install", "--quiet", f"rebuno=={self.version}"]
                subprocess.run(install, check=True, timeout=300)
                done.touch()
        return str(home / "bin" / "python")

    def program(self, role: str, name: str, address: str, log: Path, *, key: str = TOKEN) -> Program:
        """An agent or a runner as a process, not started yet."""
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "REBUNO_URL": address,
            "REBUNO_API_KEY": key,
        }
        command = [self.python(), "-u", str(HERE / self.script), role, name]
        return Program(f"{role}-{name}", command, environ, log)


SDKS = [Sdk("0.2.0", "sdk_020.py"), Sdk("0.4.8", "sdk_048.py")]
