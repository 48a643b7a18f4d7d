"""Candidate outputs: their shape, and which are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from worker.swarm import candidate, serde
from worker.swarm.candidate import AgentResult, AnswerRefused, ImpossibleSchema
from worker.swarm.dialects import Dialect

ANSWER = {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "string"}}}


@pytest.mark.parametrize(
    ("result", "schema", "output"),
    [
        (AgentResult({"answer": "a"}), ANSWER, {"answer": "a"}),
        (AgentResult({"answer": "a"}, text="other"), ANSWER, {"answer": "a"}),
        (AgentResult({"summary": "s"}, text="t"), ANSWER, {"summary": "s", "answer": "t"}),
        (AgentResult(text="t"), ANSWER, {"answer": "t"}),
        (AgentResult(text="t"), {}, {"answer": "t"}),
        (AgentResult("v"), {}, {"answer": "v"}),
        (AgentResult("v"), ANSWER, {"answer": "v"}),
        (AgentResult("v"), {"type": "string"}, "v"),
        (AgentResult(text="t"), {"type": "string"}, "t"),
        (AgentResult([1, 2]), {"type": "array"}, [1, 2]),
        (AgentResult(), {"type": "null"}, None),
        (AgentResult([1, 2]), ANSWER, {"answer": [1, 2]}),
        (
            AgentResult(
                {}, "t", {"decision": "yes", "confidence": 0.5, "check_summary": "s", "mood": "good"}
            ),
            {},
            {"answer": "t", "decision": "yes", "confidence": 0.5, "check_summary": "s"},
        ),
        (AgentResult({"confidence": 0.9}, None, {"confidence": 0.1}), {}, {"confidence": 0.9}),
        (AgentResult({}, None, {"confidence": math.nan, "decision": 4, "check_summary": None}), {}, {}),
        (AgentResult({}, None, {"confidence": True}), {}, {}),
        (AgentResult({"a": 1}, "t"), {"additionalProperties": False, "properties": {"a": {}}}, {"a": 1}),
        (
            AgentResult({}, "t"),
            {"additionalProperties": False, "properties": {"answer": {}}},
            {"answer": "t"},
        ),
        (AgentResult({}, "t"), {"properties": {"answer": {"type": "object"}}}, {}),
    ],
)
def test_output_carries_the_agents_value(result: AgentResult, schema: Any, output: Any) -> None:
    """Values are kept, the voted fields are filled from the agent's answer, and nothing is invented."""
    assert candidate.shape(result, schema) == output


def test_agents_value_is_not_modified() -> None:
    """Shaping works on a copy."""
    value = {"summary": "s"}
    candidate.shape(AgentResult(value, "t"), ANSWER)
    assert value == {"summary": "s"}


@pytest.mark.parametrize(("reading", "status"), [(Dialect.KERNEL, 502), (Dialect.DOCUMENTS, 400)])
@pytest.mark.parametrize("output", [{}, {"answer": 1}, None, [], "x", {"answer": math.nan}, {"answer": b"x"}])
def test_unfit_answer_is_refused_by_dialect(output: Any, reading: Dialect, status: int) -> None:
    """400 in the specification's dialect, 502 to a kernel, because a kernel treats any 4xx as final."""
    with pytest.raises(AnswerRefused) as caught:
        candidate.require_fit(output, ANSWER, reading)
    assert caught.value.status == status
    assert caught.value.code == "INVALID_OUTPUT"
    assert caught.value.details["field"] == "candidate_output"


def test_problem_class_keeps_its_status() -> None:
    """A refusal in one dialect does not change the status in the next one."""
    with pytest.raises(AnswerRefused):
        candidate.require_fit({}, ANSWER, Dialect.DOCUMENTS)
    assert AnswerRefused().status == 502


def test_the_size_limit_is_exact() -> None:
    """65536 bytes of compact JSON pass, one more does not; bytes count, not characters."""
    frame = len(serde.compact({"answer": ""}))
    candidate.require_fit({"answer": "x" * (65536 - frame)}, ANSWER, Dialect.KERNEL)
    candidate.require_fit({"answer": "é" * ((65536 - frame) // 2)}, ANSWER, Dialect.KERNEL)
    for answer in ("x" * (65537 - frame), "é" * ((65536 - frame) // 2 + 1)):
        with pytest.raises(AnswerRefused) as caught:
            candidate.require_fit({"answer": answer}, ANSWER, Dialect.KERNEL)
        assert caught.value.details["received"] > 65536


def test_size_is_measured_in_the_kernels_format() -> None:
    """A float that Rust prints longer than Python counts with the kernel's length."""
    frame = len(serde.compact({"answer": "", "n": 0.0000125}))
    text = "x" * (65536 - frame)
    candidate.require_fit({"answer": text, "n": 0.0000125}, ANSWER, Dialect.KERNEL)
    with pytest.raises(AnswerRefused):
        candidate.require_fit({"answer": text + "x", "n": 0.0000125}, ANSWER, Dialect.KERNEL)


def test_value_is_judged_as_the_kernel_parses_it() -> None:
    """A kernel reads an integer beyond u64 as a float; beyond the float range it is not a number."""
    integer = {"properties": {"n": {"type": "integer"}}}
    candidate.require_fit({"n": 2**64 - 1}, integer, Dialect.KERNEL)
    candidate.require_fit({"n": 2**64}, {"properties": {"n": {"type": "number"}}}, Dialect.KERNEL)
    with pytest.raises(AnswerRefused, match="integer"):
        candidate.require_fit({"n": 2**64}, integer, Dialect.KERNEL)
    with pytest.raises(AnswerRefused, match="range"):
        candidate.require_fit({"n": 10**400}, {}, Dialect.KERNEL)


def test_number_counts_with_its_reparsed_length() -> None:
    """The kernel's parser gives this number another digit, so the same text is one byte over the limit."""
    output: dict[str, Any] = {"answer": "", "n": 2.480395816598782e-109}
    output["answer"] = "x" * (65536 - len(serde.compact(output)))
    assert len(serde.compact(output)) == 65536
    with pytest.raises(AnswerRefused, match="large"):
        candidate.require_fit(output, ANSWER, Dialect.KERNEL)
    output["answer"] = output["answer"][1:]
    candidate.require_fit(output, ANSWER, Dialect.KERNEL)


def test_nesting_is_limited() -> None:
    """An output that the kernel could store but not return is refused, as is a circular one."""
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    candidate.require_fit(deep, {}, Dialect.KERNEL)
    circle: list[Any] = []
    circle.append(circle)
    for value in ([deep], circle):
        with pytest.raises(AnswerRefused, match="nested"):
            candidate.require_fit(value, {}, Dialect.KERNEL)


def test_unsatisfiable_schema_is_refused_before_the_run() -> None:
    """An unsatisfiable task is 422 with its reason; an ordinary schema passes."""
    candidate.require_possible(ANSWER)
    with pytest.raises(ImpossibleSchema) as caught:
        candidate.require_possible({"type": "array", "required": []})
    assert caught.value.status == 422
    assert caught.value.details["field"] == "task_contract.output_schema"
    assert "array" in caught.value.message


@pytest.mark.parametrize(
    ("value", "schema", "sent"),
    [
        ({"n": 1.0}, {"properties": {"n": {"type": "integer"}}}, {"n": 1}),
        ({"n": 1.0}, {"properties": {"n": {"type": "number"}}}, {"n": 1.0}),
        ({"n": 1.5}, {"properties": {"n": {"type": "integer"}}}, {"n": 1.5}),
        ({"n": 1e300}, {"properties": {"n": {"type": "integer"}}}, {"n": 1e300}),
        ({"n": [2.0]}, {"properties": {"n": {"items": {"type": "integer"}}}}, {"n": [2]}),
        (3.0, {"type": "integer"}, 3),
        ({"n": True}, {"properties": {"n": {"type": "integer"}}}, {"n": True}),
        ({"n": math.inf}, {"properties": {"n": {"type": "integer"}}}, {"n": math.inf}),
    ],
)
def test_whole_floats_are_sent_as_integers_where_required(value: Any, schema: Any, sent: Any) -> None:
    """JSON Schema accepts 1.0 as an integer; a kernel does not."""
    output = candidate.shape(AgentResult(value), schema)
    assert output == sent and repr(output) == repr(sent)
