"""How a failure is told."""

from __future__ import annotations

import json

import pytest

from worker.delivery.failure import failure_of
from worker.executions.record import Execution, from_mapping


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
def test_the_condition_is_named(code: str, condition: str | None) -> None:
    """A failure that the contract has a word for carries that word."""
    told = failure_of(record("failed", {"code": code, "error": "no", "details": {"field": "f"}}))
    assert (told["code"], told["message"]) == (code, "no")
    assert told["details"].get("refund_condition") == condition
    assert told["details"]["field"] == "f" and told["details"]["retryable"] is False


def test_parked_work_may_be_asked_for_again() -> None:
    """A failure that is not the end says so, whatever its author thought of it."""
    error = {"code": "TRANSIENT_FAILURE", "error": "busy", "details": {"retryable": False}}
    assert failure_of(record("pending", error, parked="retry"))["details"]["retryable"] is True


def test_a_cancelled_task_has_no_other_error() -> None:
    """Cancelled work is told as that, also when something had failed before."""
    told = failure_of(record("cancelled", {"code": "TRANSIENT_FAILURE", "error": "busy", "details": {}}))
    assert told["code"] == "CANCELLED"


def test_a_failure_without_words() -> None:
    """A record that says nothing of its failure is still told in form."""
    assert failure_of(record("failed"))["code"] == "INTERNAL_ERROR"
