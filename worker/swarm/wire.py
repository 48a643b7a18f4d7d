"""Requests from a kernel: ExecuteRequest and VerifyRequest, parsed leniently.

Unknown keys are ignored, and values such as `stage` or `task_type` stay open. Text that is not JSON is 400,
JSON of another shape 422 with the field's name. A kernel treats both as final, so inside the contract only
fields that this runtime cannot do without are required.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.core.errors import BadRequest, TooLarge
from worker.swarm import serde
from worker.swarm.dialects import Dialect, of_execute, of_verify
from worker.swarm.policies import PolicyBinding

MAX_BODY = 2 * 1024 * 1024
MAX_INLINE_BYTES = 65_536
# A kernel only creates tasks whose allowlist contains these.
DEFAULT_MIMES = ("application/json", "text/plain", "text/markdown", "text/csv")
# Verifying, committing and revealing use this much of the verify budget; each evidence reference adds one.
VERIFY_OVERHEAD = 3


class WrongShape(BadRequest):
    """The body is JSON, but not the object this endpoint expects."""

    status = 422
    message = "the body does not have the expected shape"
    advice = "Correct the named field and send the request again."


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """A pointer to bytes stored elsewhere."""

    uri: str
    digest: str
    size_bytes: int
    mime: str
    created_at: int
    producer: str


@dataclass(frozen=True, slots=True)
class InlineEvidence:
    """A piece of evidence inside the message."""

    mime: str
    content: str


@dataclass(frozen=True, slots=True)
class Hit:
    """An earlier decision similar to the present task; `hit_type` is "Exact" or "Similar"."""

    hit_type: str
    reuse_payload: Any
    confidence_hint: float | None


@dataclass(frozen=True, slots=True)
class Seed:
    """Results from the kernel's knowledge store; `raw` is the bundle as received."""

    raw: Mapping[str, Any]
    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class TaskContract:
    """The task's rules; `raw` is the whole contract, the fields are what this runtime uses."""

    raw: Mapping[str, Any]
    output_schema: Any
    time_ms: int | None
    expiry_ms: int | None
    policy_hash: str | None
    max_refs: int | None
    max_inline_bytes: int
    mimes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """A request to propose a candidate."""

    task_id: str
    execution_id: str
    attempt_id: str
    task_type: str
    profile: str
    stage: str
    inputs: Any
    contract: TaskContract
    seed: Seed | None
    reading: Dialect

    @property
    def exact_hit(self) -> Hit | None:
        """The earlier answer that the kernel allows to be reused."""
        if self.stage != "DECIDE" or self.seed is None or not self.seed.hits:
            return None
        first = self.seed.hits[0]
        return first if first.hit_type == "Exact" else None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposer's answer."""

    candidate_id: str
    execution_id: str
    output_ref: ArtifactRef
    output: Any
    evidence_inline: tuple[InlineEvidence, ...]
    evidence_refs: tuple[ArtifactRef, ...]


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """A request to judge a candidate."""

    candidate: Candidate
    output_schema: Any
    policy: PolicyBinding
    reading: Dialect


def read_json(raw: bytes) -> Any:
    """Parse the body as JSON; a refusal says where it breaks."""
    if len(raw) > MAX_BODY:
        raise TooLarge(expected=f"at most {MAX_BODY} bytes", received=len(raw))
    try:
        return serde.loads(raw)
    except serde.NotSerdeJson as exc:
        raise BadRequest(f"the body is not JSON: {exc.reason}", field="body") from exc


def parse_execute(body: Any) -> ExecuteRequest:
    """Read an ExecuteRequest from parsed JSON."""
    fields = _Fields.of(body, "")
    stage = fields.text("stage")
    contract = _contract(fields.inner("task_contract"))
    return ExecuteRequest(
        task_id=fields.text("task_id"),
        execution_id=fields.text("execution_id"),
        attempt_id=fields.text("attempt_id"),
        task_type=fields.text("task_type"),
        profile=fields.text("profile"),
        stage=stage,
        inputs=fields.any("inputs"),
        contract=contract,
        seed=_seed(fields.inner_or_none("seed_bundle")),
        reading=of_execute(stage, contract.policy_hash),
    )


def parse_verify(body: Any) -> VerifyRequest:
    """Read a VerifyRequest from parsed JSON."""
    fields = _Fields.of(body, "")
    policy = fields.inner("policy")
    policy_hash = policy.text("policy_hash")
    return VerifyRequest(
        candidate=_candidate(fields.inner("candidate")),
        output_schema=fields.any("output_schema"),
        policy=PolicyBinding(
            policy.text("policy_id"), policy.text("policy_version"), policy_hash, policy.any("policy_params")
        ),
        reading=of_verify(policy_hash),
    )


def _candidate(fields: _Fields) -> Candidate:
    return Candidate(
        candidate_id=fields.text("candidate_id"),
        execution_id=fields.text("execution_id"),
        output_ref=_ref(fields.inner("output_ref")),
        output=fields.values.get("output"),
        evidence_inline=tuple(
            InlineEvidence(item.text("mime"), item.text("content"))
            for item in fields.items("evidence_inline")
        ),
        evidence_refs=tuple(_ref(item) for item in fields.items("evidence_refs")),
    )


def _ref(fields: _Fields) -> ArtifactRef:
    return ArtifactRef(
        uri=fields.text("uri"),
        digest=fields.text("digest"),
        size_bytes=fields.count("size_bytes"),
        mime=fields.text("mime"),
        created_at=fields.count("created_at"),
        producer=fields.text("producer"),
    )


def _contract(fields: _Fields) -> TaskContract:
    budget = fields.inner_or_none("budget")
    evidence = fields.inner_or_none("evidence_policy")
    acceptance = fields.inner_or_none("acceptance")
    policy = acceptance.inner_or_none("verifier_policy") if acceptance else None
    verify_units = budget.count_or_none("verify_cost_units") if budget else None
    inline_bytes = evidence.count_or_none("max_inline_evidence_bytes") if evidence else None
    mimes = evidence.texts_or_none("inline_mime_allowlist") if evidence else None
    return TaskContract(
        raw=fields.values,
        output_schema=fields.any("output_schema"),
        time_ms=budget.count_or_none("time_ms") if budget else None,
        expiry_ms=fields.count_or_none("expiry_ms"),
        policy_hash=policy.text_or_none("policy_hash") if policy else None,
        max_refs=None if verify_units is None else max(0, verify_units - VERIFY_OVERHEAD),
        max_inline_bytes=MAX_INLINE_BYTES if inline_bytes is None else min(inline_bytes, MAX_INLINE_BYTES),
        mimes=DEFAULT_MIMES if mimes is None else mimes,
    )


def _seed(fields: _Fields | None) -> Seed | None:
    # Only a hint: a bundle of unknown kind still reaches the author and never refuses the task.
    if fields is None:
        return None
    raw_hits = fields.values.get("hits")
    hits = []
    for raw in raw_hits if isinstance(raw_hits, list) else []:
        if isinstance(raw, dict) and isinstance(raw.get("hit_type"), str) and "reuse_payload" in raw:
            hint = raw.get("confidence_hint")
            hits.append(
                Hit(raw["hit_type"], raw["reuse_payload"], float(hint) if serde.is_number(hint) else None)
            )
    return Seed(fields.values, tuple(hits))


@dataclass(frozen=True, slots=True)
class _Fields:
    """An object of the body and its path, for refusals that name the field."""

    values: dict[str, Any]
    path: str

    @classmethod
    def of(cls, value: Any, path: str) -> _Fields:
        if not isinstance(value, dict):
            raise _wrong(path or "body", "an object", value)
        return cls(value, path)

    def any(self, key: str) -> Any:
        if key not in self.values:
            where = self._where(key)
            raise WrongShape(f"{where} is missing", field=where, expected="present", received="nothing")
        return self.values[key]

    def text(self, key: str) -> str:
        value = self.any(key)
        if not isinstance(value, str):
            raise _wrong(self._where(key), "a string", value)
        return value

    def count(self, key: str) -> int:
        value = self.any(key)
        if not serde.is_integer(value) or value < 0:
            raise _wrong(self._where(key), "a whole number, zero or more", value)
        return int(value)

    def inner(self, key: str) -> _Fields:
        return _Fields.of(self.any(key), self._where(key))

    def items(self, key: str) -> list[_Fields]:
        where = self._where(key)
        value = self.any(key)
        if not isinstance(value, list):
            raise _wrong(where, "an array", value)
        return [_Fields.of(item, f"{where}[{i}]") for i, item in enumerate(value)]

    def text_or_none(self, key: str) -> str | None:
        return None if self.values.get(key) is None else self.text(key)

    def count_or_none(self, key: str) -> int | None:
        return None if self.values.get(key) is None else self.count(key)

    def inner_or_none(self, key: str) -> _Fields | None:
        return None if self.values.get(key) is None else self.inner(key)

    def texts_or_none(self, key: str) -> tuple[str, ...] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _wrong(self._where(key), "an array of strings", value)
        return tuple(value)

    def _where(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def _wrong(field: str, expected: str, value: Any) -> WrongShape:
    return WrongShape(f"{field} must be {expected}", field=field, expected=expected, received=_kind(value))


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return f"the number {serde.compact(value).decode()}"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
