"""Limits on the cost of input validation."""

from __future__ import annotations

import time
from typing import Any

import pytest

from worker.capabilities.declare import Capability
from worker.core.errors import BadRequest, TooLarge
from worker.hiring.input_effort import MOST_STEPS, BoundedCheck, BoundedChecks
from worker.hiring.task import TaskInput

COLORS = {"properties": {"colors": {"items": {"type": "string", "pattern": "^#"}}}}


def test_validation_steps_are_limited() -> None:
    """A value that needs more steps is refused as too large; the next one is validated as usual."""
    check = BoundedCheck(COLORS)
    assert check.problems({"colors": ["#f"] * (MOST_STEPS // 2 - 2)}) == []
    with pytest.raises(TooLarge):
        check.problems({"colors": ["#f"] * (MOST_STEPS // 2)})
    assert check.problems({"colors": ["f"]})[0]["field"] == "colors[0]"


@pytest.mark.parametrize(
    ("items", "fits"),
    [
        ([1, 1.0], False),
        ([1, True], True),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
        ([[], {}, ""], True),
    ],
)
def test_unique_items_use_json_equality(items: list[Any], fits: bool) -> None:
    """Numbers compare by value, objects in any key order, and true is not 1."""
    assert (BoundedCheck({"uniqueItems": True}).problems(items) == []) is fits


def test_unique_objects_are_not_compared_pairwise() -> None:
    """Four thousand different objects are compared in under 0.1 s."""
    check, items = BoundedCheck({"uniqueItems": True}), [{"n": n} for n in range(4_000)]
    began = time.thread_time()
    assert check.problems(items) == []
    assert time.thread_time() - began < 0.1


def test_replaced_schema_counts() -> None:
    """A redeclared capability is validated by its new schema; one without a schema accepts everything."""
    checks, one = BoundedChecks(), TaskInput(b"1")
    assert checks.problems(Capability("a"), one) == []
    assert checks.problems(Capability("a", input_schema={"type": "integer"}), one) == []
    assert checks.problems(Capability("a", input_schema={"type": "string"}), one)
    assert checks.problems(Capability("a", input_schema={"type": "integer"}), one) == []


def test_valid_bodies_are_not_checked_again() -> None:
    """A body that was valid is not parsed again; an invalid one is refused each time."""
    checks, capability = BoundedChecks(), Capability("a", input_schema={"type": "integer"})
    assert checks.problems(capability, TaskInput(b"1")) == []
    again = TaskInput(b"1")
    assert checks.problems(capability, again) == [] and "value" not in vars(again)
    assert checks.problems(capability, TaskInput(b'"1"')) and checks.problems(capability, TaskInput(b'"1"'))
    for _ in range(2):
        with pytest.raises(BadRequest):
            checks.problems(capability, TaskInput(b"{"))
        with pytest.raises(BadRequest):
            checks.problems(Capability("b"), TaskInput(b"{"))


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, {"not": {}}])
def test_references_and_negations_are_counted(schema: dict[str, Any]) -> None:
    """The bounded checker supports references and negations."""
    assert BoundedCheck(schema).problems(1)
