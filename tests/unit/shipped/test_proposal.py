"""The chat agent's answers to swarm tasks, with a working and a failing endpoint on loopback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import openai_server as upstream
from tests.fakes.job import FakeJob, run
from tests.fakes.kernel_request import CONTRACT
from tests.fakes.openai_server import Reply, in_turn, says, serving
from worker.core.errors import Failed, InvalidInput, Transient
from worker.shipped.chat import chat

SCHEMA = CONTRACT["output_schema"]
VOTE = {
    "type": "object",
    "required": ["decision", "count"],
    "properties": {
        "decision": {"enum": ["APPROVE", "REJECT", "abstain"]},
        "count": {"type": "integer"},
        "confidence": {"type": "number"},
    },
}
GOOD = {"decision": "REJECT", "count": 2, "confidence": 0.8}
SIGNED = {"check_summary": "stage=EXPLORE attempt=attempt-1"}


def ask(reply: Reply, schema: Any = VOTE, **more: Any) -> tuple[Any, list[str]]:
    """Return the answer, and each prompt sent to the model."""
    job = {"stage": "EXPLORE", "attempt_id": "attempt-1", "swarm": {}, "labels": {"task_type": "swarm"}}
    input = more.pop("input", {"prompt": "Do not approve it.", "agent_id": "a-1"})
    with serving(reply) as server:
        settings = {"CHAT_BASE_URL": server.url, "CHAT_MODEL": "m-1"}
        fake_job = FakeJob(input, settings=settings, output_schema=schema, **{**job, **more})
        return run(chat, fake_job), server.asked


def test_whole_task_reaches_the_model() -> None:
    """The prompt has all inputs, schema, stage, seed, the policy's limit and the task type's key."""
    seed = {"seed_type": "SIMILAR_HITS_V1", "hits": [{"reuse_payload": {"answer": "an earlier answer"}}]}
    policy = {"acceptance": {"verifier_policy": {"policy_params": {"max_len": 777}}}}
    value, asked = ask(says(json.dumps(GOOD)), stage="DIVERGE_MODE", seed=seed, swarm=policy)
    assert value == GOOD | {"check_summary": "stage=DIVERGE_MODE attempt=attempt-1"}
    [prompt] = asked
    for part in ("Do not approve it.", '"a-1"', json.dumps(VOTE), "DIVERGE_MODE", "an earlier answer", "777"):
        assert part in prompt


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD),
        json.dumps(GOOD, indent=2),
        "```json\n" + json.dumps(GOOD) + "\n```",
        "Here you are:\n```\n" + json.dumps(GOOD) + "\n```\nAnything else?",
        "<think>APPROVE {maybe}? No.</think>\n" + json.dumps(GOOD),
        "I weighed {both sides} and say " + json.dumps(GOOD) + " as my answer.",
        json.dumps(GOOD | {"count": 2.0}),
    ],
)
def test_json_is_extracted_from_model_text(text: str) -> None:
    """JSON that is bare, indented, fenced, after thoughts or inside prose needs one call only."""
    value, asked = ask(says(text))
    assert value == GOOD | SIGNED and isinstance(value["count"], int)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("I would reject it.", "not one JSON value"),
        ('{"decision": "REJECT", "count": 2', "not one JSON value"),
        ('{"decision": "REJECT", "count": NaN}', "not one JSON value"),
        ('{"decision": "MAYBE", "count": 2}', "decision"),
        ('{"decision": "REJECT"}', "count"),
        ('{"decision": "REJECT", "count": "two"}', "count"),
        ('{"decision": "REJECT", "count": 2, "confidence": 95}', "confidence"),
        ('{"decision": "REJECT", "count": 2, "confidence": "high"}', "confidence"),
        ('["REJECT", 2]', "object"),
        ('{"decision": "REJECT", "count": 2, "note": "' + "x" * 70_000 + '"}', "bytes"),
    ],
)
def test_invalid_answer_is_requested_once_more(text: str, problem: str) -> None:
    """The model is told what was wrong with its answer; a valid second answer is used."""
    value, asked = ask(in_turn(says(text), says(json.dumps(GOOD))))
    assert value == GOOD | SIGNED
    assert len(asked) == 2 and problem in asked[1].rpartition("does not fit")[2]
    assert text[:50] in asked[1] and text[:50] not in asked[0]


def test_two_invalid_answers_fail_the_task() -> None:
    """An invalid answer is never sent, and nothing is repaired by guessing."""
    for text in ("no", '{"decision": "MAYBE", "count": 2}', "{}"):
        with pytest.raises(Failed) as caught:
            ask(says(text))
        assert caught.value.code == "OUTPUT_SCHEMA_INVALID"


def test_empty_answer_is_requested_once_more() -> None:
    """A refusal or a filtered answer has no text; the model is asked once more."""
    silent = upstream.chunked(upstream.event(None, "content_filter"), upstream.DONE)
    assert ask(in_turn(silent, says(json.dumps(GOOD))))[0] == GOOD | SIGNED
    with pytest.raises(Failed):
        ask(silent)


@pytest.mark.parametrize(
    "reply",
    [
        upstream.refuses(429, Retry_After="3"),
        upstream.refuses(503),
        upstream.chunked(upstream.event('{"decision"')),
    ],
)
def test_busy_endpoint_is_a_transient_failure(reply: Reply) -> None:
    """A failure in mid-answer is transient too: nothing was shown yet, so it can be repeated."""
    with pytest.raises(Transient):
        ask(reply)


def test_no_remaining_time_is_a_transient_failure() -> None:
    """The second call is bounded by the time that the first one left."""
    with pytest.raises(Transient):
        ask(says(json.dumps(GOOD)), seconds=1.0)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (SCHEMA, '{"answer": "4"}', {"answer": "4", "confidence": 0.5} | SIGNED),
        (SCHEMA, '{"answer": "4", "check_summary": "mine"}', {"answer": "4", "confidence": 0.5} | SIGNED),
        (
            SCHEMA | {"additionalProperties": False},
            '{"answer": "4"}',
            {"answer": "4", "confidence": 0.5} | SIGNED,
        ),
        (
            {"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": False},
            '{"answer": "4"}',
            {"answer": "4"},
        ),
        ({"type": "object", "maxProperties": 1}, '{"answer": "4"}', {"answer": "4"}),
        ({"type": "string"}, '"four"', "four"),
        ({"type": "integer"}, "4.0", 4),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        (
            {"required": [1], "$ref": "https://elsewhere.example"},
            '{"answer": "4"}',
            {"answer": "4", "confidence": 0.5} | SIGNED,
        ),
    ],
)
def test_confidence_and_summary_are_added_when_allowed(schema: Any, text: str, expected: Any) -> None:
    """A missing confidence gets the value that a kernel assumes."""
    value, asked = ask(says(text), schema)
    assert value == expected and len(asked) == 1


def test_oversized_task_is_refused() -> None:
    """A task larger than the model's limit is the task's error, and the model is not called."""
    with pytest.raises(InvalidInput):
        ask(says("{}"), input={"prompt": "x" * 200_001})
