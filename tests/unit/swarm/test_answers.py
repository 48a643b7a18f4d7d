"""Answers in both dialects, and error bodies."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import pytest

from tests.fakes.kernel_request import DOCUMENTS, VERIFY, execute_body
from worker.core.errors import BadRequest, Problem, Unavailable
from worker.swarm import answers, policies, wire
from worker.swarm.answers import ProposedWork, RuntimeIdentity
from worker.swarm.candidate import AgentResult, AnswerRefused
from worker.swarm.wire import InlineEvidence

US = RuntimeIdentity("swarm-runtime", "swarm-model-v1")


def verified(body: dict[str, Any]) -> dict[str, Any]:
    """Verify as the door does: bytes in, bytes out."""
    request = wire.parse_verify(wire.read_json(json.dumps(body).encode()))
    policies.require_binding(request.policy)
    verdict = policies.evaluate(request.policy, request.candidate.output, request.output_schema)
    answer: dict[str, Any] = json.loads(answers.verify_answer(verdict, request, US))
    return answer


def execute_request(**changes: Any) -> wire.ExecuteRequest:
    return wire.parse_execute(execute_body(**changes))


@pytest.mark.parametrize("case", VERIFY)
def test_recorded_verifications_are_reproduced(case: dict[str, Any]) -> None:
    """The answer has the reference's values, keys and key order."""
    answer = verified(case["request"])
    assert answer == case["response"]
    assert list(answer) == list(case["response"])


def test_specification_example_is_answered_in_its_form() -> None:
    """With the elided policy hash computed, the example's answer has the same keys, types and meaning."""
    example = copy.deepcopy(DOCUMENTS["verify"])
    derived = hashlib.sha256(b"vp.schema_only.v1{}").hexdigest()
    for bare in (derived, policies.KERNEL_HASHES[policies.SCHEMA_ONLY]):
        example["request"]["policy"]["policy_hash"] = f"sha256:{bare}"
        answer = verified(example["request"])
        result_hash = answer.pop("verifier_result_hash")
        expected = {k: v for k, v in example["response"].items() if k != "verifier_result_hash"}
        assert answer == expected
        preimage = (
            '{"candidate_id":"cand-7a3f","execution_id":"exec-4f2a9c","model_id":"swarm-model-v1","passed":true,'
            f'"policy_hash":"sha256:{bare}","provider_family":"swarm-runtime","reason_codes":[],"score":1.0}}'
        )
        assert result_hash == "sha256:" + hashlib.sha256(preimage.encode()).hexdigest()


def test_specification_example_with_an_elided_hash_is_refused() -> None:
    """The example's abbreviated hash gets 400, and the message shows the user both accepted hashes."""
    with pytest.raises(policies.PolicyRefused) as caught:
        verified(DOCUMENTS["verify"]["request"])
    seen = answers.error_body(caught.value).decode()[: answers.USEFUL_CHARS]
    assert "policy binding invalid: policy hash mismatch" in seen
    assert "sha256:" + policies.KERNEL_HASHES[policies.SCHEMA_ONLY] in seen
    assert "sha256:" + hashlib.sha256(b"vp.schema_only.v1{}").hexdigest() in seen


def test_failure_keeps_its_codes_in_the_specifications_form() -> None:
    """A clean pass has no codes, a failure keeps them; the policy verdict is the same as for a kernel."""
    body = copy.deepcopy(DOCUMENTS["verify"]["request"])
    body["policy"]["policy_hash"] = "sha256:" + policies.KERNEL_HASHES[policies.SCHEMA_ONLY]
    body["candidate"]["output"] = {"answer": "no confidence"}
    answer = verified(body)
    assert (answer["passed"], answer["score"], answer["reason_codes"]) == (False, 0.0, [101])
    assert answer["verification_status"] == "failed"


def test_inconclusive_verdict_is_reported() -> None:
    """With unreadable evidence the verdict is neither pass nor fail, in both dialects."""
    for prefix in ("", "sha256:"):
        body = copy.deepcopy(VERIFY[0]["request"])
        body["policy"]["policy_hash"] = prefix + body["policy"]["policy_hash"]
        request = wire.parse_verify(body)
        verdict = policies.evaluate(request.policy, request.candidate.output, request.output_schema)
        answer = json.loads(answers.verify_answer(policies.with_evidence(verdict, [201]), request, US))
        assert answer["verification_status"] == "inconclusive"
        assert (answer["passed"], answer["reason_codes"]) == (False, [100, 201])


def test_specification_execution_example() -> None:
    """Replaying the specification's example gives its answer, with a real digest in the reference."""
    example = DOCUMENTS["execute"]
    request = wire.parse_execute(example["request"])
    expected = copy.deepcopy(example["response"])
    payload = b"a file"
    ref = answers.reference(
        "https://runtime.local/task-abc-001/exec-4f2a9c",
        sha256=hashlib.sha256(payload).hexdigest(),
        size=len(payload),
        mime="application/json",
        created_at_ms=1718000000000,
        identity=RuntimeIdentity("my-agent", "gpt-4o"),
    )
    output = expected["candidate_output"]
    result = AgentResult(
        {}, output["answer"], {"confidence": 0.91, "check_summary": "stage=explore attempt=attempt-001"}
    )
    answer = answers.execute_answer(
        ProposedWork(result, [InlineEvidence("text/plain", "trace:attempt-001")], [ref]), request
    )
    body = json.loads(answer.body)
    expected["evidence_refs"][0]["digest"] = f"sha256:{hashlib.sha256(payload).hexdigest()}"
    expected["evidence_refs"][0]["size_bytes"] = 6
    assert body == expected
    assert answer.notes == ()


def test_all_required_keys_are_present() -> None:
    """A kernel requires the evidence keys even without evidence."""
    answer = answers.execute_answer(ProposedWork(AgentResult(text="hi")), execute_request())
    assert answer.body == b'{"candidate_output":{"answer":"hi"},"evidence_inline":[],"evidence_refs":[]}'


def test_changed_evidence_is_noted() -> None:
    """Changed or dropped evidence is noted in our own log."""
    pieces = [InlineEvidence("image/png", "x"), InlineEvidence("text/html", "<p>")]
    answer = answers.execute_answer(ProposedWork(AgentResult(text="hi"), pieces), execute_request())
    assert len(answer.notes) == 2
    assert json.loads(answer.body)["evidence_inline"] == [{"mime": "text/plain", "content": "<p>"}]


def test_answer_without_a_required_key_is_refused_by_dialect() -> None:
    """502 to a kernel, so that it retries; 400 in the specification's dialect."""
    for stage, status in (("EXPLORE", 502), ("explore", 400)):
        with pytest.raises(AnswerRefused) as caught:
            answers.execute_answer(ProposedWork(AgentResult({"x": 1})), execute_request(stage=stage))
        assert caught.value.status == status
        assert "'answer'" in answers.error_body(caught.value).decode()[:512]


def test_error_text_begins_with_the_cause() -> None:
    """Message, code, field and expectation fit 512 characters however long everything is."""
    problem = Problem(
        "m" * 5000,
        code="C" * 500,
        field="f" * 5000,
        expected=["e" * 3000, "\x01" * 3000],
        received="r" * 5000,
        advice="a" * 5000,
        more={"deep": ["x" * 9000]},
    )
    text = answers.error_body(problem).decode()
    body = json.loads(text)
    assert list(body)[:6] == ["error", "code", "field", "expected", "received", "advice"]
    assert text.index('"received"') <= answers.USEFUL_CHARS
    assert len(text) < 2000


def test_a_short_error_is_complete() -> None:
    """A short error is not truncated, values keep their types, and missing details stay missing."""
    problem = BadRequest(
        "profile x is not offered", field="profile", expected=["default", "fast"], received="x"
    )
    assert json.loads(answers.error_body(problem)) == {
        "error": "profile x is not offered",
        "code": "INVALID_REQUEST",
        "field": "profile",
        "expected": ["default", "fast"],
        "received": "x",
        "advice": "Correct the request.",
    }
    assert "field" not in json.loads(answers.error_body(Unavailable()))


def test_error_text_never_stops_the_kernels_retries() -> None:
    """The phrases that make a kernel stop retrying are broken up, wherever an agent puts them."""
    problem = Problem(
        "Forced Offline By Policy", received="forced offline by policy", why="forced offline by POLICY"
    )
    assert b"forced offline by policy" not in answers.error_body(problem).lower()
    json.loads(answers.error_body(problem))


@pytest.mark.parametrize("odd", [float("nan"), b"x", "\ud800", object()])
def test_unserialisable_details_do_not_break_the_error(odd: Any) -> None:
    """A detail that is not JSON is replaced by its type name; the error is still sent."""
    body = json.loads(answers.error_body(Problem("bad", received=odd, other=odd)))
    assert body["error"] == "bad"
    assert isinstance(body["received"], str)


@pytest.mark.parametrize(
    ("advice", "shown"),
    [
        ("Correct the request. You were not charged.", "Correct the request."),
        ("Fix the request and retry. You were not charged.", "Fix the request and retry."),
        ("Nothing was charged.", None),
        ("Create another task; this one was not run.", "Create another task; this one was not run."),
    ],
)
def test_errors_do_not_mention_charges(advice: str, shown: str | None) -> None:
    """Swarm work is free, so errors at this door do not mention charges as the shared ones do."""
    body = json.loads(answers.error_body(BadRequest(advice=advice)))
    assert body.get("advice") == shown
