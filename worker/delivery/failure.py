"""The failure format shared by answers, polls and webhooks."""

from __future__ import annotations

from typing import Any

from worker.core.states import State
from worker.engine.record import Execution

# The contract's names for failures that are refunded or never charged.
_CONDITIONS = {
    "OUTPUT_SCHEMA_INVALID": "output_schema_invalid",
    "OUTPUT_INVALID": "output_schema_invalid",
    "DEADLINE_MISSED": "deadline_missed",
    "SLA_TIMEOUT": "no_response",
}


def failure_of(execution: Execution) -> dict[str, Any]:
    """Code, message and details of a failed, cancelled or parked execution."""
    if execution.state is State.CANCELLED:
        return {"code": "CANCELLED", "message": "the task was cancelled", "details": {"retryable": False}}
    error = execution.error
    code = error.get("code", "INTERNAL_ERROR")
    condition = {"refund_condition": _CONDITIONS[code]} if code in _CONDITIONS else {}
    details = {**error.get("details", {}), **condition, "retryable": bool(execution.parked)}
    return {"code": code, "message": error.get("error", "the work failed"), "details": details}
