"""The kernel's subset of JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker.swarm import minimal_schema

VECTORS = json.loads((Path(__file__).parent / "vectors" / "wattswarm-verify.json").read_text())


@pytest.mark.parametrize("case", VECTORS["schema_minimal"], ids=lambda case: json.dumps(case["schema"]))
def test_kernels_schema_vectors_pass(case: dict[str, Any]) -> None:
    """Every verdict observed at a kernel is reproduced."""
    assert (minimal_schema.check(case["value"], case["schema"]) == []) is case["valid"]


@pytest.mark.parametrize(
    ("schema", "value", "valid"),
    [
        (True, {}, False),
        (None, {}, False),
        ("object", {}, False),
        ({"type": ["object", "null"]}, 1, True),
        ({"type": "foo"}, {}, False),
        ({"type": 5}, {}, True),
        ({"required": []}, [], False),
        ({"required": []}, {}, True),
        ({"required": ["a"]}, {"a": None}, True),
        ({"required": ["a", 7, None]}, {"a": 1}, True),
        ({"required": "a"}, {}, True),
        ({"required": {"a": 1}}, 3, True),
        ({"additionalProperties": False, "properties": {}}, {"q": 1}, True),
        ({"type": "integer"}, 1.0, False),
        ({"type": "integer"}, -(2**63), True),
        ({"type": "integer"}, 2**64 - 1, True),
        ({"type": "integer"}, 2**64, False),
        ({"type": "integer"}, True, False),
        ({"type": "number"}, 1, True),
        ({"type": "number"}, 1.5, True),
        ({"type": "boolean"}, 1, False),
        ({"type": "boolean"}, False, True),
        ({"type": "null"}, 0, False),
        ({"type": "array"}, {}, False),
        ({"type": "string"}, None, False),
        ({"properties": {"a": {"type": "string"}}}, {"a": 1}, False),
        ({"properties": {"a": {"type": ["string"]}}}, {"a": 1}, True),
        ({"properties": {"a": {"type": "nope"}}}, {"a": 1}, False),
        ({"properties": {"a": {"type": "nope"}}}, {}, True),
        ({"properties": {"a": "string"}}, {"a": 1}, True),
        ({"properties": {"a": False}}, {"a": 1}, True),
        ({"properties": [["a", {"type": "string"}]]}, {"a": 1}, True),
        ({"properties": {"a": {"properties": {"b": {"type": "string"}}}}}, {"a": {"b": 1}}, True),
        ({"enum": [1], "minimum": 5, "pattern": "x", "$ref": "#/nowhere", "not": {}}, 3, True),
    ],
)  # fmt: skip
def test_only_the_supported_keywords_count(schema: Any, value: Any, valid: bool) -> None:
    """Types, required keys and property types decide as in the kernel; everything else is ignored."""
    assert (minimal_schema.check(value, schema) == []) is valid


def test_every_violation_is_named() -> None:
    """The list names the missing key and the key of the wrong type."""
    wrong = minimal_schema.check(
        {"n": "x"}, {"type": "object", "required": ["a"], "properties": {"n": {"type": "number"}}}
    )
    assert len(wrong) == 2
    assert "'a'" in wrong[0]
    assert "'n'" in wrong[1] and "'number'" in wrong[1]


def test_long_keys_are_shortened_in_messages() -> None:
    """A hostile schema cannot fill an error message."""
    [wrong] = minimal_schema.check({}, {"required": ["k" * 10_000]})
    assert len(wrong) < 120


@pytest.mark.parametrize(
    "schema",
    [
        [],
        True,
        {"type": "foo"},
        {"type": "array", "required": []},
        {"type": "string", "required": ["a"]},
        {"required": ["a"], "properties": {"a": {"type": "uuid"}}},
    ],
)
def test_unsatisfiable_schemas_are_detected(schema: Any) -> None:
    """A contradictory schema is detected, and indeed no sample value fits it."""
    assert minimal_schema.impossible(schema)
    for value in (None, True, 1, 1.5, "", [], {}, {"a": 1}, {"a": "x"}, {"a": None}):
        assert minimal_schema.check(value, schema)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, None),
        ({"type": ["foo"]}, 1),
        ({"properties": {"a": {"type": "uuid"}}}, {}),
        ({"required": ["a"], "properties": {"a": {"type": "null"}}}, {"a": None}),
        ({"required": [1], "properties": []}, {}),
        ({"type": "object", "required": ["a"], "properties": {"a": True}}, {"a": 1}),
    ],
)
def test_satisfiable_schemas_are_accepted(schema: Any, value: Any) -> None:
    """A schema that at least one value satisfies is never reported as unsatisfiable."""
    assert minimal_schema.check(value, schema) == []
    assert minimal_schema.impossible(schema) is None
