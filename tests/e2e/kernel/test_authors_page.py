"""The remote agent and the runner of docs/authors.md, run unchanged with the official SDK."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.kernel.deployment import ROOT, Deployment
from tests.e2e.kernel.sdks import Sdk

BLOCKS = [
    block
    for block in re.findall(r"```py\n(.*?)```", (ROOT / "docs/authors.md").read_text(), re.DOTALL)
    if "rebuno" in block
]


def test_the_pages_agent_and_runner_work_together(
    deployment: Deployment, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """An execution of the page's agent completes with the result that the page's runner computed."""
    log = tmp_path / "log"
    for role, block in zip(("agent", "runner"), BLOCKS, strict=True):
        script = tmp_path / f"{role}.py"
        script.write_text(block)
        program = Sdk("0.4.8", str(script)).program(role, "page", deployment.address(0), log)
        program.start()
        request.addfinalizer(program.stop)
    api = deployment.api(1)
    id = str(api.create("painter", {"frame": 7})["id"])
    ended = api.until(id, "completed", "failed", "cancelled", seconds=30)
    assert ended["status"] == "completed", log.read_text()[-2000:]
    assert ended["output"] == {"picture": {"pixels": 700}}
