"""Answers built from a schema, the bounded checker, and pruning outputs to closed schemas."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.shipped.text.check import MAX_PARTS, Checker, matches, satisfies, sound
from worker.shipped.text.prune import prune
from worker.shipped.text.shape import AnswerContent, Unsatisfiable, shape

ANSWER = AnswerContent(
    text="The pier broke. A loan is needed.",
    sentences=("The pier broke.", "A loan is needed."),
    confidence=0.6,
    check_summary="2 of 9 sentences",
    keywords=("pier", "loan"),
    given={"proposal_id": "p-1"},
    abstention="Abstain: nothing is known.",
)
NOTHING = AnswerContent(text=None, check_summary="abstained", abstention="Abstain: nothing is known.")
WHOLE = {"answer": ANSWER.text, "confidence": 0.6, "check_summary": "2 of 9 sentences"}
DOUBT = WHOLE | {"confidence": 0.0}


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }


CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (obj(answer={"type": "string"}) | CLOSED, {"answer": ANSWER.text}),
        (obj(answer={"type": "string", "maxLength": 20}) | CLOSED, {"answer": "The pier broke. A…"}),
        (obj(confidence={"type": "number"}) | CLOSED, {"confidence": 0.6}),
        (obj(confidence={"type": "integer", "maximum": 10}) | CLOSED, {"confidence": 6}),
        (obj(confidence={"type": "integer"}) | CLOSED, {"confidence": 60}),
        (obj(decision={"type": "string"}), {"decision": "abstain"} | DOUBT),
        (obj(decision={"enum": ["repair", "loan", "abstain"]}), {"decision": "abstain"} | DOUBT),
        (obj(decision={"enum": ["yes", "no", None]}), {"decision": None} | DOUBT),
        (obj(decision_confidence={"type": "number"}) | CLOSED, {"decision_confidence": 0.0}),
        (obj(needs_review={"type": "boolean"}) | CLOSED, {"needs_review": True}),
        (obj(proposal_id={"type": "string"}) | CLOSED, {"proposal_id": "p-1"}),
        (obj(title={"type": "string"}) | CLOSED, {"title": "The pier broke"}),
        (
            obj(keywords={"type": "array", "items": {"type": "string"}}) | CLOSED,
            {"keywords": ["pier", "loan"]},
        ),
        (
            obj(points={"type": "array", "maxItems": 1, "items": obj(text={"type": "string"}) | CLOSED})
            | CLOSED,
            {"points": [{"text": "The pier broke."}]},
        ),
        (obj(result=obj(answer={"type": "string"}) | CLOSED) | CLOSED, {"result": {"answer": ANSWER.text}}),
        (obj(kind={"const": "brief/1"}) | CLOSED, {"kind": "brief/1"}),
        (obj(note={"type": ["null", "string"]}), {"note": None} | DOUBT),
        (obj(note={"type": "null"}), {"note": None} | DOUBT),
        (obj(n={"anyOf": [{"type": "number"}, {"type": "null"}]}), {"n": None} | DOUBT),
        (obj([], answer={"type": "string"}, serial={"type": "integer"}) | CLOSED, {"answer": ANSWER.text}),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": obj(answer={"type": "string"}) | CLOSED}},
            {"answer": ANSWER.text},
        ),
        (
            {"allOf": [obj(answer={"type": "string"}), obj(title={"type": "string"})], "maxProperties": 2},
            {"title": "The pier broke", "answer": ANSWER.text},
        ),
        (
            obj(answer={"anyOf": [{"type": "null"}, {"type": "string"}]}) | CLOSED,
            {"answer": ANSWER.text},
        ),
        (
            obj(answer={"oneOf": [{"type": "array", "minItems": 500}, {"type": "string"}]}) | CLOSED,
            {"answer": ANSWER.text},
        ),
        ({"type": "string"}, ANSWER.text),
        ({"type": "array", "items": {"type": "string"}}, ["The pier broke.", "A loan is needed."]),
        (
            {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
            ["The pier broke."],
        ),
        (True, WHOLE),
        ({}, WHOLE),
        (obj(answer={"type": "string"}), WHOLE),
        (obj(answer={"type": "string"}) | {"maxProperties": 1}, {"answer": ANSWER.text}),
    ],
)
def test_schema_fields_are_filled_by_meaning(schema: Any, expected: Any) -> None:
    """Each kind of schema is filled according to its field names, and the result validates."""
    value = shape(ANSWER, schema)
    assert value == expected
    jsonschema.Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        None,
        [],
        "string",
        {"type": "weird"},
        {"type": 5},
        obj(a={"enum": []}),
        obj(a={"enum": ["first", "second"]}),
        obj(decision={"const": "yes"}),
        obj(abusive={"type": "boolean"}),
        obj(price={"type": "number"}),
        obj(answer={"type": "string", "maxLength": 12}) | CLOSED,
        obj(name={"type": "string"}),
        obj(risks={"type": "array"}),
        obj(tags={"type": "array", "minItems": 3}),
        obj(decision={"type": "string"}) | {"additionalProperties": False},
        obj(decision={"type": "string"}, confidence={"type": "number", "minimum": 0.06}),
        obj(confidence={"type": "number", "minimum": 0.7}),
        obj(a=False),
        obj(a={"type": "string", "minLength": 9000}),
        obj(a={"type": "string", "minLength": 5, "maxLength": 4}),
        obj(a={"type": "string", "pattern": "^Q{40}$"}),
        obj(a={"type": "string", "pattern": "("}),
        obj(a={"type": "number", "minimum": 2, "maximum": 1}),
        obj(a={"type": "integer", "minimum": 0.2, "maximum": 0.8}),
        obj(a={"type": "integer", "minimum": 10**400, "multipleOf": 0.1}),
        obj(a={"type": "array", "minItems": 10**9}),
        obj(a={"not": {}}),
        obj(a={"anyOf": [False, {"enum": []}]}),
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"patternProperties": {"(a+)+$": {}}},
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "required": [f"f{i}" for i in range(5000)]},
    ],
)
def test_impossible_schemas_are_refused(schema: Any) -> None:
    """Unsatisfiable, invalid, endless and external schemas are refused, not guessed at."""
    with pytest.raises(Unsatisfiable):
        shape(ANSWER, schema)


def doubling(depth: int, keyword: str) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"d{depth}": {"type": "object", "required": ["zz"], "properties": {"zz": {"enum": [1]}}}
    }
    for i in range(depth):
        defs[f"d{i}"] = {keyword: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
    return {"$ref": "#/$defs/d0", "$defs": defs}


def nested(depth: int) -> dict[str, Any]:
    lists: dict[str, Any] = {"type": "array", "minItems": 100}
    return lists if depth == 1 else {**lists, "items": nested(depth - 1)}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(40, "anyOf"),
        doubling(40, "oneOf"),
        doubling(40, "allOf"),
        obj(a=nested(3)),
        {"allOf": [{"allOf": [{"allOf": [{"type": "object"}] * 30}] * 30}] * 30},
        obj(a={"type": "string", "pattern": "^(a+)+$" * 20}),
    ],
)
def test_adversarial_schemas_terminate(schema: Any) -> None:
    """Exponential references, nested lists and evil patterns end in bounded steps, by answer or refusal."""
    with suppress(Unsatisfiable):
        shape(ANSWER, schema)


def test_steps_and_values_are_limited() -> None:
    """All checks share one step limit, and a schema with too many parts is refused."""
    checker = Checker()
    assert not checker.holds({}, doubling(40, "anyOf"))
    assert checker.left < 0 and not checker.holds(1, {"type": "integer"})
    assert sound({"enum": list(range(1000))}) and not sound({"enum": list(range(MAX_PARTS))})


_KEYWORDS = """
type properties required items minItems maxItems minLength maxLength pattern enum const anyOf oneOf allOf not
$ref $defs minimum maximum multipleOf additionalProperties answer confidence if then
"""
_LEAVES = ["string", "object", "array", "integer", "null", "#", "#/$defs", "a", True, False, None, 3, 0.5]
SCHEMAS = st.recursive(
    st.sampled_from(_LEAVES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYWORDS.split()), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS)
def test_any_schema_is_satisfied_or_refused(schema: Any) -> None:
    """Any value sent as a schema gives a value that validates, or Unsatisfiable."""
    try:
        value = shape(ANSWER, schema)
    except Unsatisfiable:
        return
    jsonschema.Draft202012Validator(schema).validate(value)


def test_answer_without_text_abstains() -> None:
    """The free-text fields say so, no field is invented, and optional fields are left out."""
    schema = obj(["answer"], answer={"type": "string"}, title={"type": "string"}, price={"type": "number"})
    doubt = {"answer": "Abstain: nothing is known.", "confidence": 0.0, "check_summary": "abstained"}
    assert shape(NOTHING, schema) == shape(NOTHING, True) == doubt
    short = obj(answer={"type": "string", "maxLength": 10})
    assert shape(NOTHING, short) == doubt | {"answer": "abstain"}
    for schema in (obj(title={"type": "string"}), obj(tags={"type": "array"}), {"type": "string"}):
        with pytest.raises(Unsatisfiable):
            shape(NOTHING, schema)


def test_checker_agrees_with_jsonschema() -> None:
    """The bounded checker agrees with jsonschema for ordinary schemas."""
    schema = obj(a={"type": "string", "pattern": "^x+$"}, b={"type": "integer"})
    assert satisfies({"a": "xx", "b": 1}, schema)
    assert not satisfies({"a": "yx", "b": 1}, schema)
    assert not satisfies({"a": "xx", "b": 1.5}, schema)
    assert not satisfies({"a": "xx"}, schema)
    assert satisfies(5, True) and not satisfies(5, False)


def test_draft_7_schemas_are_supported() -> None:
    """A schema that names an older draft is checked by that draft."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "integer"}],
    }
    assert satisfies([1, "x"], schema) and not satisfies(["x"], schema)


def test_patterns_run_in_linear_time() -> None:
    """A pattern that would hang a backtracking engine is answered at once; unsupported ones are refused."""
    assert not matches("^(a+)+$", "a" * 5000 + "!")
    assert matches("b", "abc")
    assert not matches("(?=lookahead)", "lookahead") and not matches(5, "x") and not matches("a" * 2000, "a")


def test_pruning_follows_closed_schemas_only() -> None:
    """Keys are removed only where a schema forbids them; open or unusual schemas change nothing."""
    value = {"score": 7.5, "extra": 1, "list": [{"x": 1, "y": 2.4}]}
    closed = obj(score={"type": "integer"}, list={"items": obj(y={"type": "integer"}) | CLOSED}) | CLOSED
    assert prune(value, closed) == {"score": 8, "list": [{"y": 2}]}
    assert prune(value, obj(score={"type": "number"})) == value
    for odd in (None, True, [], "x", {"properties": 5}, {"items": [1]}):
        assert prune(value, odd) == value
