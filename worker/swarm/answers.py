"""Runtime responses: candidates, verdicts, and errors with the useful part where a kernel shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from worker.core.errors import Problem
from worker.swarm import candidate, dialects, evidence, policies, serde
from worker.swarm.wire import ArtifactRef, ExecuteRequest, InlineEvidence, VerifyRequest

# A kernel shows its operator only this much of an error body.
USEFUL_CHARS = 512
_CLAUSE = re.compile(r"[^;.]+[;.]?\s*")
# A kernel that finds these words anywhere in an error body never retries.
_STOP_WORDS = re.compile("forced offline by policy", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RuntimeIdentity:
    """The runtime's identity, as reported by /capabilities."""

    provider_family: str
    model_id: str

    @property
    def producer(self) -> str:
        """The producer name in references to this runtime."""
        return f"{self.provider_family}/{self.model_id}"


@dataclass(frozen=True, slots=True)
class ProposedWork:
    """An agent's result: its output, inline evidence, and references to its files."""

    result: candidate.AgentResult
    pieces: Sequence[InlineEvidence] = ()
    refs: Sequence[ArtifactRef] = ()


@dataclass(frozen=True, slots=True)
class ExecuteAnswer:
    """The response body, and log notes about evidence that was changed or dropped."""

    body: bytes
    notes: tuple[str, ...]


def reference(
    uri: str, *, sha256: str, size: int, mime: str, created_at_ms: int, identity: RuntimeIdentity
) -> ArtifactRef:
    """Build a reference to one of our files."""
    return ArtifactRef(uri, dialects.PREFIX + sha256.lower(), size, mime, created_at_ms, identity.producer)


def execute_answer(work: ProposedWork, request: ExecuteRequest) -> ExecuteAnswer:
    """Turn an agent's result into an ExecuteResponse that a kernel accepts, or say why that is impossible."""
    schema = request.contract.output_schema
    output = candidate.shape(work.result, schema)
    candidate.require_fit(output, schema, request.reading)
    ids = (request.task_id, request.execution_id)
    proof = evidence.prepare(work.pieces, work.refs, request.contract, ids)
    body = {
        "candidate_output": output,
        "evidence_inline": [asdict(piece) for piece in proof.inline],
        "evidence_refs": [asdict(ref) for ref in proof.refs],
    }
    return ExecuteAnswer(serde.response(body), proof.notes)


def verify_answer(verdict: policies.Verdict, request: VerifyRequest, identity: RuntimeIdentity) -> bytes:
    """Build a VerifyResponse in the request's dialect."""
    codes = dialects.spell_codes(request.reading, verdict.passed, verdict.reason_codes)
    result_hash = policies.verifier_result_hash(
        candidate_id=request.candidate.candidate_id,
        execution_id=request.candidate.execution_id,
        passed=verdict.passed,
        score=verdict.score,
        reason_codes=codes,
        provider_family=identity.provider_family,
        model_id=identity.model_id,
        policy_hash=request.policy.policy_hash,
    )
    return serde.response(
        {
            "verification_status": verdict.status,
            "passed": verdict.passed,
            "score": verdict.score,
            "reason_codes": codes,
            "verifier_result_hash": dialects.spell_hash(request.reading, result_hash),
            "provider_family": identity.provider_family,
            "model_id": identity.model_id,
        }
    )


def error_body(problem: Problem) -> bytes:
    """A JSON error with message, code, field and expectation within the first 512 characters."""
    body: dict[str, Any] = {"error": _clip(problem.message, 160), "code": _clip(problem.code, 40)}
    details = problem.details
    for name, share in (("field", 60), ("expected", 180), ("received", 80), ("advice", 200)):
        value = _without_charges(problem.advice) if name == "advice" else details.get(name)
        if value is not None:
            body[name] = _clip(value, share)
    used = {"field", "expected", "received"}
    body.update(
        (name, _clip(value, 200)) for name, value in details.items() if name not in used | body.keys()
    )
    text = serde.response(body).decode()
    return _STOP_WORDS.sub("forced offline", text).encode()


def _without_charges(advice: str) -> str | None:
    """Strip advice about charges: it is written for paying callers, and this door is free."""
    sentences = [part for part in _CLAUSE.findall(advice) if "charge" not in part.lower()]
    text = "".join(sentences).rstrip("; ")
    return (text if text.endswith(".") else text + ".") if text else None


def _clip(value: Any, limit: int) -> Any:
    """The value itself if its JSON is short enough, else the start of its text."""
    try:
        if len(serde.response(value).decode()) <= limit + 2:
            return value
        text = value if isinstance(value, str) else serde.response(value).decode()
    except serde.NotSerdeJson:
        text = str(type(value).__name__)
    while len(serde.response(text).decode()) > limit + 2:
        text = text[: len(text) * 3 // 4].rstrip("…") + "…"
    return text
