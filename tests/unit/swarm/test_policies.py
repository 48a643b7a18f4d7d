"""The built-in verification policies, their bindings and the result hash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from worker.swarm import policies, serde
from worker.swarm.policies import PolicyBinding, PolicyRefused, Verdict, evaluate, require_binding

VECTORS = json.loads((Path(__file__).parent / "vectors" / "wattswarm-verify.json").read_text())
SCHEMA = {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "string"}}}
A, B, C = policies.SCHEMA_ONLY, policies.SCHEMA_THRESHOLDS, policies.CROSSCHECK


def bound(
    policy_id: str, params: Any = None, policy_hash: str | None = None, version: str = "1"
) -> PolicyBinding:
    return PolicyBinding(
        policy_id, version, policy_hash or policies.KERNEL_HASHES.get(policy_id, "0" * 64), params
    )


def result_hash(verdict: Verdict, policy_hash: str, **ids: str) -> str:
    return policies.verifier_result_hash(
        candidate_id=ids.get("candidate_id", "c1"),
        execution_id=ids.get("execution_id", "e1"),
        passed=verdict.passed,
        score=verdict.score,
        reason_codes=verdict.reason_codes,
        provider_family="swarm-runtime",
        model_id="swarm-model-v1",
        policy_hash=policy_hash,
    )


@pytest.mark.parametrize("spec", VECTORS["policies"], ids=lambda spec: spec["policy_id"])
def test_policy_hashes_match_their_specifications(spec: dict[str, str]) -> None:
    """Each constant is sha256 of the exact specification bytes."""
    computed = hashlib.sha256(spec["spec_bytes_utf8"].encode()).hexdigest()
    assert policies.KERNEL_HASHES[spec["policy_id"]] == spec["policy_hash"] == computed


OK_HASH = "9a1ece8a3d788ab71dcf562fcd7333e1e6791c584a76d6d977cbaea93120fce4"
LOW_HASH = "7e98a2a457ca8dcdd2db078d61a4601a4515b470baccc70ca6d5d88b85d38f35"
NO_SUMMARY_HASH = "b447fcd8683d0648ce616753bb62c83d7128547c76b9058486a9f282197f9831"


@pytest.mark.parametrize(
    ("policy_id", "output", "params", "passed", "score", "codes", "expected_hash"),
    [
        (A, '{"answer":"ok"}', "{}", True, 1.0, [100],
         "2d47a618f374b2114710afefcc025600fd76a6bced506ad1dc3b89aca7b19f1a"),
        *[(A, output, "{}", False, 0.0, [101],
           "aeddea65e72aaae68c9f8d2bfd1fbcbb7068fdf2f9dcaa8404ae48634d585b86")
          for output in ('{"answer":1}', "{}", "null", "[]")],
        *[(B, '{"answer":"ok"}', params, True, 1.0, [100], OK_HASH)
          for params in ("{}", "null", "[]", '{"min_confidence":0}', '{"min_confidence":"0.9"}',
                         '{"max_len":15}',
                         '{"max_len":-1}', '{"max_len":1.0}', '{"max_len":"5"}', '{"max_len":-0}',
                         '{"max_len":true}', '{"min_confidence":true}', '{"max_len":18446744073709551616}')],
        (B, '{"answer":"é"}', '{"max_len":15}', True, 1.0, [100], OK_HASH),
        (B, '{"answer":"ok","confidence":0.8}', '{"min_confidence":0.8}', True, 1.0, [100], OK_HASH),
        (B, '{"answer":"ok","confidence":0.3}', '{"min_confidence":0.8}', False, 0.2, [100, 102], LOW_HASH),
        (B, '{"answer":"ok","confidence":"0.9"}', '{"min_confidence":0.8}', False, 0.2, [100, 102], LOW_HASH),
        (B, '{"answer":"ok","confidence":true}', '{"min_confidence":0.8}', False, 0.2, [100, 102], LOW_HASH),
        (B, '{"answer":"ok"}', '{"min_confidence":0.1}', False, 0.2, [100, 102], LOW_HASH),
        (B, '{"answer":"ok"}', '{"max_len":14}', False, 0.2, [100, 103],
         "a0ceb2a214efbf797dd930d198148bdcccb7733d87ed11b8189448967841088a"),
        (B, '{"answer":1,"confidence":0.1}', '{"min_confidence":0.5,"max_len":1}', False, 0.2,
         [101, 102, 103], "12b167af9f4041cd11a0c2148ec96144b88368c3a3d595025474342ae53dc995"),
        *[(C, output, "{}", False, 0.3, [100, 104], NO_SUMMARY_HASH)
          for output in ('{"answer":"x"}', '{"answer":"x","check_summary":"  "}',
                         '{"answer":"x","check_summary":1}',
                         '{"answer":"x","check_summary":"\\u3000\\u0085\\u2028"}')],
        *[(C, output, params, True, 0.9, [100],
           "2b39a727b5d9c89791960fef9eb4104740b9d42bf96187e33fb892cd7b2ed2c3")
          for output, params in (('{"answer":"x","check_summary":"ok"}', "{}"),
                                 ('{"answer":"x","check_summary":"ok"}', '{"min_score":0.9}'),
                                 ('{"answer":"x","check_summary":"\\u001c"}', '{"min_score":"1"}'))],
        (C, '{"answer":"x","check_summary":"ok"}', '{"min_score":0.95}', False, 0.9, [100, 105],
         "89fcbc5995bff6fb881ad3a3ea65d755e7c11adacb3fb54a1fdd21e0f8ddfe49"),
        (C, '{"answer":"x"}', '{"min_score":0.5}', False, 0.3, [100, 104, 105],
         "8e4d914e8803496992095321ae7ea505aa852d8c2ae0c53a3a48b5ee58b77ca5"),
        (C, '{"answer":1}', '{"min_score":0.3}', False, 0.3, [101, 104],
         "3ea87690e23eef48dc53adcff0430eb36dcd92cf41c450bf3c9e2f4fb09b1257"),
        (C, '{"answer":1,"check_summary":"ok"}', "{}", False, 0.3, [101],
         "cf8986218f253578612f56397afdc6f0cad9bf02861fb5f1f282227ae7e1ab72"),
    ],
)  # fmt: skip
def test_result_hash_examples(
    policy_id: str,
    output: str,
    params: str,
    passed: bool,
    score: float,
    codes: list[int],
    expected_hash: str,
) -> None:
    """Verdict, score, codes and result hash equal the reference runtime's answer."""
    verdict = evaluate(bound(policy_id, serde.loads(params)), serde.loads(output), SCHEMA)
    assert (verdict.passed, verdict.score, list(verdict.reason_codes)) == (passed, score, codes)
    assert verdict.status == ("passed" if passed else "failed")
    assert result_hash(verdict, policies.KERNEL_HASHES[policy_id]) == expected_hash


def test_specification_example_has_its_result_hash() -> None:
    """The specification's elided hash, computed with the real policy hash."""
    verdict = Verdict(True, 1.0, (100,), "passed")
    computed = result_hash(
        verdict, policies.KERNEL_HASHES[A], candidate_id="cand-7a3f", execution_id="exec-4f2a9c"
    )
    assert computed == "a5bf7937f7457c29e4b5c701b801669f1ec273f3e0e585e69e9a3745d37f40bb"


def test_result_hash_keeps_non_ascii_ids_unescaped() -> None:
    """Ids are hashed as UTF-8, with keys in sorted order and the score as a float."""
    verdict = Verdict(True, 1, (100,), "passed")
    preimage = (
        '{"candidate_id":"ünï\U0001f600","execution_id":"e1","model_id":"swarm-model-v1","passed":true,'
        '"policy_hash":"h","provider_family":"swarm-runtime","reason_codes":[100],"score":1.0}'
    )
    expected = hashlib.sha256(preimage.encode()).hexdigest()
    assert result_hash(verdict, "h", candidate_id="ünï\U0001f600") == expected


def test_a_stricter_schema_check_only_fails_more() -> None:
    """A failed full check replaces 100 by 101 with the policy's failing score, and never adds a pass."""
    good = {"answer": "x", "check_summary": "ok"}
    for policy_id, score in ((A, 0.0), (B, 0.2), (C, 0.3)):
        strict = evaluate(bound(policy_id, {}), good, SCHEMA, full_schema_ok=False)
        assert strict == Verdict(False, score, (101,), "failed")
        assert not evaluate(bound(policy_id, {}), {}, SCHEMA, full_schema_ok=True).passed


@pytest.mark.parametrize(
    ("codes", "status", "shown"),
    [
        ([200], "inconclusive", (100, 200)),
        ([202, 201, 201], "inconclusive", (100, 201, 202)),
        ([203], "failed", (100, 203)),
        ([203, 200], "failed", (100, 200, 203)),
    ],
)
def test_unreadable_or_changed_evidence_prevents_a_pass(
    codes: list[int], status: str, shown: tuple[int, ...]
) -> None:
    """Unreadable evidence is inconclusive with 200 to 202, a wrong digest fails; the score is zero."""
    verdict = policies.with_evidence(evaluate(bound(A, {}), {"answer": "x"}, SCHEMA), codes)
    assert verdict == Verdict(False, 0.0, shown, status)


def test_evidence_never_improves_a_verdict() -> None:
    """Without findings the verdict is unchanged; a failed verdict stays failed and keeps its score."""
    good = evaluate(bound(A, {}), {"answer": "x"}, SCHEMA)
    assert policies.with_evidence(good, []) is good
    bad = evaluate(bound(C, {}), {"answer": "x"}, SCHEMA)
    assert policies.with_evidence(bad, [200]) == Verdict(False, 0.3, (100, 104, 200), "failed")


def test_kernel_policy_bindings_are_accepted() -> None:
    """Each constant is accepted whatever the parameters are; they are not part of the hash."""
    for policy_id in policies.KERNEL_HASHES:
        for params in ({}, None, [], {"max_len": 3}):
            require_binding(bound(policy_id, params))


@pytest.mark.parametrize(
    ("binding", "field", "text", "accepted"),
    [
        (bound("vp.nope.v1"), "policy.policy_id", "policy vp.nope.v1 missing in registry", A),
        (bound(A, version="2"), "policy.policy_version", "policy version mismatch", "1"),
        (bound(A, version="1.0"), "policy.policy_version", "policy version mismatch", "1"),
        (bound(A, policy_hash=policies.KERNEL_HASHES[B]), "policy.policy_hash", "policy hash mismatch",
         policies.KERNEL_HASHES[A]),
        (bound(A, policy_hash=policies.KERNEL_HASHES[A].upper()), "policy.policy_hash",
         "policy hash mismatch", policies.KERNEL_HASHES[A]),
        (bound(A, policy_hash=policies.KERNEL_HASHES[A] + " "), "policy.policy_hash", "policy hash mismatch",
         policies.KERNEL_HASHES[A]),
        (bound(A, {}, "sha256:b9e2c1..."), "policy.policy_hash", "policy hash mismatch",
         "sha256:" + policies.KERNEL_HASHES[A]),
        (bound(A, {}, "sha256:" + policies.KERNEL_HASHES[B]), "policy.policy_hash", "policy hash mismatch",
         "sha256:" + policies.KERNEL_HASHES[A]),
        (bound(A, {}, "SHA256:" + policies.KERNEL_HASHES[A]), "policy.policy_hash", "policy hash mismatch",
         policies.KERNEL_HASHES[A]),
    ],
)  # fmt: skip
def test_refused_binding_names_the_wrong_part(
    binding: PolicyBinding, field: str, text: str, accepted: str
) -> None:
    """The refusal is 400, begins like the reference's, names the field and lists the accepted values."""
    with pytest.raises(PolicyRefused) as caught:
        require_binding(binding)
    problem = caught.value
    assert problem.status == 400
    assert problem.message == f"policy binding invalid: {text}"
    assert problem.details["field"] == field
    assert accepted in problem.details["expected"]


def test_specification_hash_is_accepted_with_its_prefix_only() -> None:
    """In the specification's dialect the hash is the constant, or sha256 of id and compact sorted params."""
    params = {"min_confidence": 1e-7, "max_len": 5, "é": "ü"}
    preimage = B + '{"max_len":5,"min_confidence":1e-7,"é":"ü"}'
    derived = hashlib.sha256(preimage.encode()).hexdigest()
    require_binding(bound(B, params, "sha256:" + derived))
    require_binding(bound(B, params, "sha256:" + policies.KERNEL_HASHES[B]))
    with pytest.raises(PolicyRefused):
        require_binding(bound(B, params, derived))
    with pytest.raises(PolicyRefused):
        require_binding(bound(B, {**params, "max_len": 6}, "sha256:" + derived))
    with pytest.raises(PolicyRefused):
        require_binding(bound(A, params, "sha256:" + derived))


def test_operators_own_hashes_are_accepted_per_policy() -> None:
    """An additional hash applies to its policy only, with and without prefix, however it is configured."""
    own = "ab" * 32
    for written in (own, "sha256:" + own):
        accepted = {A: [written]}
        require_binding(bound(A, {}, own), accepted)
        require_binding(bound(A, {}, "sha256:" + own), accepted)
        with pytest.raises(PolicyRefused):
            require_binding(bound(B, {}, own), accepted)


def test_an_unknown_policy_is_never_evaluated() -> None:
    """Evaluation refuses an unknown policy even if the binding was not checked."""
    with pytest.raises(PolicyRefused):
        evaluate(bound("vp.nope.v1", {}), {}, {})


# The kernel's rules, reimplemented without our modules: what a kernel computes for itself
# when a runtime says "passed".

_KINDS = {"object": dict, "string": str, "boolean": bool, "array": list, "null": type(None)}


def _kernel_type_holds(name: str, value: Any) -> bool:
    if name in _KINDS:
        return type(value) is _KINDS[name]
    if name == "number":
        return type(value) in (int, float)
    return name == "integer" and type(value) is int and -(2**63) <= value < 2**64


def _kernel_schema_holds(schema: Any, value: Any) -> bool:
    if type(schema) is not dict:
        return False
    if type(schema.get("type")) is str and not _kernel_type_holds(schema["type"], value):
        return False
    if type(schema.get("required")) is list:
        if type(value) is not dict:
            return False
        for key in schema["required"]:
            if type(key) is str and key not in value:
                return False
    if type(schema.get("properties")) is dict and type(value) is dict:
        for key in schema["properties"].keys() & value.keys():
            sub = schema["properties"][key]
            wanted = sub.get("type") if type(sub) is dict else None
            if type(wanted) is str and not _kernel_type_holds(wanted, value[key]):
                return False
    return True


def _kernel_length(value: Any) -> int:
    """Bytes of compact JSON; Rust and Python differ in length only for floats with a small exponent."""
    if type(value) is dict:
        pairs = sum(_kernel_length(k) + 1 + _kernel_length(v) for k, v in value.items())
        return 2 + pairs + max(0, len(value) - 1)
    if type(value) is list:
        return 2 + sum(_kernel_length(v) for v in value) + max(0, len(value) - 1)
    text = json.dumps(value, ensure_ascii=False)
    if type(value) is float and "e-0" in text:
        digits = text.strip("-").split("e")[0].replace(".", "")
        if text.endswith("e-05"):
            return (value < 0) + len("0.0000") + len(digits)
        return len(text) - 1
    return len(text.encode())


def _kernel_passes(policy_id: str, output: Any, schema: Any, params: Any) -> bool:
    if not _kernel_schema_holds(schema, output):
        return False
    parameters = params if type(params) is dict else {}
    fields = output if type(output) is dict else {}
    if policy_id == B:
        least = parameters.get("min_confidence")
        if type(least) in (int, float):
            confidence = fields.get("confidence")
            if (float(confidence) if type(confidence) in (int, float) else 0.0) < float(least):
                return False
        most = parameters.get("max_len")
        if type(most) is int and 0 <= most < 2**64 and _kernel_length(output) > most:
            return False
    if policy_id == C:
        summary = fields.get("check_summary")
        if type(summary) is not str or all(ch.isspace() and ch not in "\x1c\x1d\x1e\x1f" for ch in summary):
            return False
        least = parameters.get("min_score")
        if type(least) in (int, float) and float(least) > 0.9:
            return False
    return True


_KEYS = st.sampled_from(["answer", "confidence", "check_summary", "a", "é"])
_TYPES = st.sampled_from(["object", "string", "number", "integer", "boolean", "array", "null", "foo"])
_NUMBERS = (
    st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 1)
)
_SCALARS = (
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=8) | st.text(" \t\x1c\x85\u3000", max_size=3)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=8,
)
_TYPE_ENTRY = _TYPES | st.lists(_TYPES, max_size=2) | st.none() | st.integers()
_SCHEMAS = _VALUES | st.fixed_dictionaries(
    {},
    optional={
        "type": _TYPE_ENTRY,
        "required": st.lists(_KEYS | st.integers(), max_size=3) | _KEYS,
        "properties": st.dictionaries(
            _KEYS, st.fixed_dictionaries({}, optional={"type": _TYPE_ENTRY}) | _SCALARS, max_size=4
        )
        | _SCALARS,
        "additionalProperties": st.booleans(),
    },
)
_OUTPUTS = _VALUES | st.fixed_dictionaries(
    {"answer": _SCALARS},
    optional={"confidence": _NUMBERS | _SCALARS, "check_summary": _SCALARS, "a": _VALUES},
)
_PARAMS = _SCALARS | st.fixed_dictionaries(
    {},
    optional={
        "min_confidence": _NUMBERS | _SCALARS,
        "max_len": st.integers(0, 60) | _NUMBERS | _SCALARS,
        "min_score": st.sampled_from([0, 0.3, 0.9, 0.9000000000000001, 1]) | _SCALARS,
    },
)
_ALLOWED = {A: {100, 101}, B: {100, 101, 102, 103}, C: {100, 101, 104, 105}}


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([A, B, C]), _OUTPUTS, _SCHEMAS, _PARAMS, st.booleans(), st.sets(st.integers(200, 203)))
@example(B, {"confidence": 1e-05}, {}, {"max_len": 22}, True, set())
@example(B, {"confidence": 1e-05}, {}, {"max_len": 21}, True, set())
@example(B, {"confidence": float(2**53)}, {}, {"min_confidence": 2**53 + 1}, True, set())
@example(C, {"check_summary": "\x1c"}, {}, {}, True, set())
def test_pass_verdicts_agree_with_the_kernel(
    policy_id: str, output: Any, schema: Any, params: Any, full_ok: bool, found: set[int]
) -> None:
    """We pass only what the kernel passes, minus our extra checks; the answer follows the kernel's format."""
    sent = serde.loads(serde.response([output, schema, params]))
    plain = evaluate(bound(policy_id, sent[2]), sent[0], sent[1])
    assert plain.passed == _kernel_passes(policy_id, *sent)
    verdict = policies.with_evidence(
        evaluate(bound(policy_id, sent[2]), sent[0], sent[1], full_schema_ok=full_ok), found
    )
    assert plain.passed or not verdict.passed
    assert 0.0 <= verdict.score <= 1.0
    assert verdict.reason_codes
    assert set(verdict.reason_codes) <= _ALLOWED[policy_id] | {200, 201, 202, 203}
    assert (verdict.status == "passed") == verdict.passed
    if verdict.status == "inconclusive":
        assert {200, 201, 202} & set(verdict.reason_codes)
