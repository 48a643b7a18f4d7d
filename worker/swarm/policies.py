"""The three verification policies built into every kernel, evaluated exactly as a kernel evaluates them.

A kernel re-evaluates every "passed" and rejects a verdict laxer than its own; it accepts a stricter one. The
order of reason codes matters: the result hash covers it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from worker.core.errors import BadRequest
from worker.swarm import dialects, minimal_schema, serde

Status = Literal["passed", "failed", "inconclusive"]

SCHEMA_ONLY = "vp.schema_only.v1"
SCHEMA_THRESHOLDS = "vp.schema_thresholds.v1"
CROSSCHECK = "vp.crosscheck.v1"
VERSION = "1"
# sha256 of each policy's own specification; parameters are not part of it.
KERNEL_HASHES = {
    SCHEMA_ONLY: "a52d250d216f425973eb5a13c392d4dbc172357181b683e86caa4a5c64db94a7",
    SCHEMA_THRESHOLDS: "052312b5f56ed81a7c6f693d5d24fde5dc42825ecc61c6f77bccf07c444c4edf",
    CROSSCHECK: "236ef6d386d272715034acda035ae212c85a87dd6a09958e781c5d0b6880846d",
}

# What Rust's str::trim removes; Python's strip would also remove U+001C to U+001F.
_RUST_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


class VerdictReason(IntEnum):
    """The protocol's reason codes for verdicts."""

    SCHEMA_OK = 100
    SCHEMA_INVALID = 101
    CONFIDENCE_TOO_LOW = 102
    OUTPUT_TOO_LARGE = 103
    CHECK_SUMMARY_MISSING = 104
    SCORE_TOO_LOW = 105
    EVIDENCE_UNREACHABLE = 200
    EVIDENCE_TIMEOUT = 201
    EVIDENCE_AUTH_DENIED = 202
    EVIDENCE_DIGEST_MISMATCH = 203


class PolicyRefused(BadRequest):
    """This runtime does not evaluate the bound policy."""

    code = "POLICY_BINDING_INVALID"
    message = "policy binding invalid"
    advice = "Send a policy binding that is accepted; see expected."


@dataclass(frozen=True, slots=True)
class PolicyBinding:
    """The policy a verification is bound to."""

    policy_id: str
    policy_version: str
    policy_hash: str
    policy_params: Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification."""

    passed: bool
    score: float
    reason_codes: tuple[int, ...]
    status: Status


def require_binding(binding: PolicyBinding, accepted: Mapping[str, Collection[str]] | None = None) -> None:
    """Refuse a binding whose id, version or hash is not accepted.

    `accepted` holds the operator's additional hashes by policy id.
    """
    policy_id = binding.policy_id
    if policy_id not in KERNEL_HASHES:
        raise PolicyRefused(
            f"policy binding invalid: policy {policy_id[:80]} missing in registry",
            field="policy.policy_id",
            expected=list(KERNEL_HASHES),
            received=policy_id[:80],
        )
    if binding.policy_version != VERSION:
        raise PolicyRefused(
            "policy binding invalid: policy version mismatch",
            field="policy.policy_version",
            expected=VERSION,
            received=binding.policy_version[:80],
        )
    known = [KERNEL_HASHES[policy_id], *(accepted or {}).get(policy_id, ())]
    hashes = dialects.accepted_hashes(
        dialects.of_verify(binding.policy_hash), known, policy_id, binding.policy_params
    )
    if binding.policy_hash not in hashes:
        raise PolicyRefused(
            "policy binding invalid: policy hash mismatch",
            field="policy.policy_hash",
            expected=list(hashes),
            received=binding.policy_hash[:80],
        )


def evaluate(binding: PolicyBinding, output: Any, schema: Any, *, full_schema_ok: bool = True) -> Verdict:
    """Judge an output by the bound policy. `full_schema_ok=False` adds a failed stricter schema check."""
    fits = full_schema_ok and not minimal_schema.check(output, schema)
    codes = [VerdictReason.SCHEMA_OK if fits else VerdictReason.SCHEMA_INVALID]
    if binding.policy_id == SCHEMA_ONLY:
        return _verdict(fits, 1.0 if fits else 0.0, codes)
    if binding.policy_id == SCHEMA_THRESHOLDS:
        return _thresholds(output, _object(binding.policy_params), codes)
    if binding.policy_id == CROSSCHECK:
        return _crosscheck(output, _object(binding.policy_params), codes)
    raise PolicyRefused(
        field="policy.policy_id", expected=list(KERNEL_HASHES), received=binding.policy_id[:80]
    )


def with_evidence(verdict: Verdict, codes: Iterable[int]) -> Verdict:
    """Add what reading the evidence found: a wrong digest fails, an unreadable source is inconclusive."""
    found = tuple(sorted({int(code) for code in codes}))
    if not found:
        return verdict
    status: Status = "inconclusive"
    if not verdict.passed or VerdictReason.EVIDENCE_DIGEST_MISMATCH in found:
        status = "failed"
    score = 0.0 if verdict.passed else verdict.score
    return Verdict(False, score, (*verdict.reason_codes, *found), status)


def verifier_result_hash(
    *,
    candidate_id: str,
    execution_id: str,
    passed: bool,
    score: float,
    reason_codes: Iterable[int],
    provider_family: str,
    model_id: str,
    policy_hash: str,
) -> str:
    """Bare hex over the verdict as sent; the status is not part of it."""
    return serde.digest(
        {
            "candidate_id": candidate_id,
            "execution_id": execution_id,
            "passed": passed,
            "score": float(score),
            "reason_codes": [int(code) for code in reason_codes],
            "provider_family": provider_family,
            "model_id": model_id,
            "policy_hash": policy_hash,
        }
    )


def _thresholds(output: Any, params: dict[str, Any], codes: list[VerdictReason]) -> Verdict:
    least = params.get("min_confidence")
    if serde.is_number(least):
        confidence = _object(output).get("confidence")
        if (float(confidence) if serde.is_number(confidence) else 0.0) < float(least):
            codes.append(VerdictReason.CONFIDENCE_TOO_LOW)
    longest = params.get("max_len")
    if serde.is_integer(longest) and longest >= 0 and len(serde.compact(output)) > longest:
        codes.append(VerdictReason.OUTPUT_TOO_LARGE)
    passed = codes == [VerdictReason.SCHEMA_OK]
    return _verdict(passed, 1.0 if passed else 0.2, codes)


def _crosscheck(output: Any, params: dict[str, Any], codes: list[VerdictReason]) -> Verdict:
    summary = _object(output).get("check_summary")
    if not isinstance(summary, str) or not summary.strip(_RUST_SPACE):
        codes.append(VerdictReason.CHECK_SUMMARY_MISSING)
    # The score is set before it is compared with its own threshold.
    score = 0.9 if codes == [VerdictReason.SCHEMA_OK] else 0.3
    least = params.get("min_score")
    if serde.is_number(least) and score < float(least):
        codes.append(VerdictReason.SCORE_TOO_LOW)
    return _verdict(codes == [VerdictReason.SCHEMA_OK], score, codes)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _verdict(passed: bool, score: float, codes: Iterable[VerdictReason]) -> Verdict:
    return Verdict(passed, score, tuple(int(code) for code in codes), "passed" if passed else "failed")
