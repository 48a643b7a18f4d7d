"""How a failure is told: the same in an answer, a poll and a webhook."""

from __future__ import annotations

from typing import Any

from worker.executions.record import Execution
from worker.executions.states import State

# The contract's names of what gives a seeker the money back, or never takes it.
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
    parked = bool(execution.raw.get("parked"))
    details = {**error.get("details", {}), **condition, "retryable": parked}
    return {"code": code, "message": error.get("error", "the work failed"), "details": details}
