"""Candidate outputs: their shape and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from worker.swarm import candidate, serde
from worker.swarm.candidate import AnswerRefused, ImpossibleSchema, Said
from worker.swarm.readings import Reading

ANSWER = {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "string"}}}


@pytest.mark.parametrize(
    ("said", "schema", "output"),
    [
        (Said({"answer": "a"}), ANSWER, {"answer": "a"}),
        (Said({"answer": "a"}, text="other"), ANSWER, {"answer": "a"}),
        (Said({"summary": "s"}, text="t"), ANSWER, {"summary": "s", "answer": "t"}),
        (Said(text="t"), ANSWER, {"answer": "t"}),
        (Said(text="t"), {}, {"answer": "t"}),
        (Said("v"), {}, {"answer": "v"}),
        (Said("v"), ANSWER, {"answer": "v"}),
        (Said("v"), {"type": "string"}, "v"),
        (Said(text="t"), {"type": "string"}, "t"),
        (Said([1, 2]), {"type": "array"}, [1, 2]),
        (Said(), {"type": "null"}, None),
        (Said([1, 2]), ANSWER, {"answer": [1, 2]}),
        (
            Said({}, "t", {"decision": "yes", "confidence": 0.5, "check_summary": "s", "mood": "good"}),
            {},
            {"answer": "t", "decision": "yes", "confidence": 0.5, "check_summary": "s"},
        ),
        (Said({"confidence": 0.9}, None, {"confidence": 0.1}), {}, {"confidence": 0.9}),
        (Said({}, None, {"confidence": math.nan, "decision": 4, "check_summary": None}), {}, {}),
        (Said({}, None, {"confidence": True}), {}, {}),
        (Said({"a": 1}, "t"), {"additionalProperties": False, "properties": {"a": {}}}, {"a": 1}),
        (Said({}, "t"), {"additionalProperties": False, "properties": {"answer": {}}}, {"answer": "t"}),
        (Said({}, "t"), {"properties": {"answer": {"type": "object"}}}, {}),
    ],
)
def test_an_output_carries_what_the_agent_gave(said: Said, schema: Any, output: Any) -> None:
    """Values stay, the voted names are filled from what was said, and nothing is invented or forced in."""
    assert candidate.shape(said, schema) == output


def test_the_agents_own_value_is_not_changed() -> None:
    """Shaping works on a copy."""
    value = {"summary": "s"}
    candidate.shape(Said(value, "t"), ANSWER)
    assert value == {"summary": "s"}


@pytest.mark.parametrize(("reading", "status"), [(Reading.KERNEL, 502), (Reading.DOCUMENTS, 400)])
@pytest.mark.parametrize("output", [{}, {"answer": 1}, None, [], "x", {"answer": math.nan}, {"answer": b"x"}])
def test_an_answer_that_does_not_fit_is_refused_by_reading(
    output: Any, reading: Reading, status: int
) -> None:
    """The documents' form gets 400, a kernel 502, because to a kernel any 4xx is final."""
    with pytest.raises(AnswerRefused) as caught:
        candidate.require_fit(output, ANSWER, reading)
    assert caught.value.status == status
    assert caught.value.code == "INVALID_OUTPUT"
    assert caught.value.details["field"] == "candidate_output"


def test_the_class_keeps_its_own_status() -> None:
    """A refusal in one reading leaves the next one's status alone."""
    with pytest.raises(AnswerRefused):
        candidate.require_fit({}, ANSWER, Reading.DOCUMENTS)
    assert AnswerRefused().status == 502


def test_the_size_limit_is_exact() -> None:
    """65536 bytes of compact JSON pass, one more does not; bytes count, not characters."""
    frame = len(serde.compact({"answer": ""}))
    candidate.require_fit({"answer": "x" * (65536 - frame)}, ANSWER, Reading.KERNEL)
    candidate.require_fit({"answer": "é" * ((65536 - frame) // 2)}, ANSWER, Reading.KERNEL)
    for answer in ("x" * (65537 - frame), "é" * ((65536 - frame) // 2 + 1)):
        with pytest.raises(AnswerRefused) as caught:
            candidate.require_fit({"answer": answer}, ANSWER, Reading.KERNEL)
        assert caught.value.details["received"] > 65536


def test_the_size_is_measured_as_the_kernel_prints_it() -> None:
    """A float that Rust prints longer than Python counts with the kernel's length."""
    frame = len(serde.compact({"answer": "", "n": 0.0000125}))
    text = "x" * (65536 - frame)
    candidate.require_fit({"answer": text, "n": 0.0000125}, ANSWER, Reading.KERNEL)
    with pytest.raises(AnswerRefused):
        candidate.require_fit({"answer": text + "x", "n": 0.0000125}, ANSWER, Reading.KERNEL)


def test_what_the_kernel_would_read_otherwise_is_judged_as_read() -> None:
    """An integer beyond u64 is a float to the kernel, and one beyond every float is no number."""
    integer = {"properties": {"n": {"type": "integer"}}}
    candidate.require_fit({"n": 2**64 - 1}, integer, Reading.KERNEL)
    candidate.require_fit({"n": 2**64}, {"properties": {"n": {"type": "number"}}}, Reading.KERNEL)
    with pytest.raises(AnswerRefused, match="integer"):
        candidate.require_fit({"n": 2**64}, integer, Reading.KERNEL)
    with pytest.raises(AnswerRefused, match="range"):
        candidate.require_fit({"n": 10**400}, {}, Reading.KERNEL)


def test_a_number_that_grows_when_the_kernel_reads_it_counts_with_its_new_length() -> None:
    """The kernel's parser gives this number another digit, so the same text is one byte over."""
    output: dict[str, Any] = {"answer": "", "n": 2.480395816598782e-109}
    output["answer"] = "x" * (65536 - len(serde.compact(output)))
    assert len(serde.compact(output)) == 65536
    with pytest.raises(AnswerRefused, match="large"):
        candidate.require_fit(output, ANSWER, Reading.KERNEL)
    output["answer"] = output["answer"][1:]
    candidate.require_fit(output, ANSWER, Reading.KERNEL)


def test_nesting_is_limited() -> None:
    """An output that the kernel could store but not send back is refused, a circle too."""
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    candidate.require_fit(deep, {}, Reading.KERNEL)
    circle: list[Any] = []
    circle.append(circle)
    for value in ([deep], circle):
        with pytest.raises(AnswerRefused, match="nested"):
            candidate.require_fit(value, {}, Reading.KERNEL)


def test_a_schema_that_nothing_fits_is_refused_before_the_run() -> None:
    """The task is 422 and its reason is named; an ordinary schema passes."""
    candidate.require_possible(ANSWER)
    with pytest.raises(ImpossibleSchema) as caught:
        candidate.require_possible({"type": "array", "required": []})
    assert caught.value.status == 422
    assert caught.value.details["field"] == "task_contract.output_schema"
    assert "array" in caught.value.message
