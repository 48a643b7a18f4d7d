"""How a failure is reported."""

from __future__ import annotations

import json

import pytest

from worker.delivery.failure import failure_of
from worker.engine.record import Execution, from_mapping


def record(state: str, error: dict[str, object] | None = None, **raw: str) -> Execution:
    fields = {"id": "x", "agent": "a", "door": "hire", "lane": "express", "state": state, "phase": "done"}
    fields |= {"error": json.dumps(error) if error else "", **raw}
    return from_mapping({name: value.encode() for name, value in fields.items()})


@pytest.mark.parametrize(
    ("code", "condition"),
    [
        ("OUTPUT_SCHEMA_INVALID", "output_schema_invalid"),
        ("DEADLINE_MISSED", "deadline_missed"),
        ("SLA_TIMEOUT", "no_response"),
        ("NO_IDEA", None),
    ],
)
def test_latency_violation_names_its_condition(code: str, condition: str | None) -> None:
    """A failure that maps to a refund condition of the contract names it."""
    error = failure_of(record("failed", {"code": code, "error": "no", "details": {"field": "f"}}))
    assert (error["code"], error["message"]) == (code, "no")
    assert error["details"].get("refund_condition") == condition
    assert error["details"]["field"] == "f" and error["details"]["retryable"] is False


def test_retryable_failure_says_so() -> None:
    """A failure that will be retried says so, even if its author marked it final."""
    error = {"code": "TRANSIENT_FAILURE", "error": "busy", "details": {"retryable": False}}
    assert failure_of(record("pending", error, parked="retry"))["details"]["retryable"] is True


def test_cancelled_task_reports_only_its_cancellation() -> None:
    """Cancelled work is reported as cancelled, even after an earlier failure."""
    error = failure_of(record("cancelled", {"code": "TRANSIENT_FAILURE", "error": "busy", "details": {}}))
    assert error["code"] == "CANCELLED"


def test_failure_without_details() -> None:
    """A record without error details is still reported in the right format."""
    assert failure_of(record("failed"))["code"] == "INTERNAL_ERROR"
