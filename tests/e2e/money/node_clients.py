"""The published npm clients, run with node."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.seeker import Seeker


@dataclass(frozen=True)
class NodeClients:
    """The directory into which they are installed."""

    directory: Path

    def pay(self, client: str, seeker: Seeker, **request: Any) -> dict[str, Any]:
        """Sends one request and pays for it; returns status, body and what the client read of the payment."""
        done = subprocess.run(
            ["node", "pay.mjs", client],
            input=json.dumps(request),
            env={**os.environ, "SEEKER_KEY": seeker.key},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["paid"]["success"] is True and answer["paid"]["transaction"].startswith("0x")
        return answer
