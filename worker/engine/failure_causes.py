"""Reads the recorded causes of failed attempts: for operator and author only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from worker.engine.step_fields import is_cause


def failure_causes(steps: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Returns the causes, oldest first: attempt, code, error, where and reason."""
    found = sorted(filter(is_cause, steps), key=lambda name: int(name.rpartition(":")[2]))
    return [json.loads(steps[name]) for name in found]
