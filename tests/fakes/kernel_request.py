"""Requests of a swarm kernel: its sample contract and recorded exchanges."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "unit" / "swarm" / "vectors"
CONTRACT = json.loads((VECTORS / "wattswarm-task-contract.json").read_text())
RECORDED = json.loads((VECTORS / "wattswarm-verify.json").read_text())
VERIFY = RECORDED["verify"]
DOCUMENTS = json.loads((VECTORS / "documents.json").read_text())


def contract(**changes: Any) -> dict[str, Any]:
    """The sample contract, valid for two more minutes."""
    return {**copy.deepcopy(CONTRACT), "expiry_ms": int(time.time() * 1000) + 120_000, **changes}


def execute_body(**changes: Any) -> dict[str, Any]:
    """An ExecuteRequest as a kernel writes it, with the recorded sample contract."""
    return {
        "task_id": "task-1",
        "execution_id": "exec-1",
        "task_type": "swarm",
        "inputs": {"prompt": "hello"},
        "profile": "default",
        "task_contract": copy.deepcopy(CONTRACT),
        "stage": "EXPLORE",
        "attempt_id": "attempt-1",
        "seed_bundle": None,
        **changes,
    }
