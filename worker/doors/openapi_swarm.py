"""The swarm door in the description of the HTTP interface: what a kernel asks of a runtime."""

from __future__ import annotations

from worker.doors.openapi_nodes import (
    ANYTHING,
    FLAG,
    OBJECT,
    TEXT,
    WHOLE,
    Node,
    json,
    list_of,
    open_to,
    operation,
    record,
    ref,
    sent,
)
from worker.swarm.policies import KERNEL_HASHES, VERSION

AT_THE_ROOT = (
    "A kernel may post here too: without `X-Contract-ID`, a body that is a kernel's is answered as at "
    "`/swarm/execute`."
)
SCHEMES: Node = {
    "kernelPassword": {"type": "http", "scheme": "basic", "description": "A pair of SWARM_KEYS."},
    "kernelKey": {"type": "http", "scheme": "bearer", "description": "The password of such a pair."},
}
_ALWAYS = {
    401: "The kernel's key is missing or wrong.",
    431: "The headers have more than 16 kB.",
    500: "Something broke here.",
    503: "Not possible right now: run the task again.",
}


def paths() -> Node:
    health = operation(
        "swarmHealth", "Is it alive", {200: json("Status", "It is.")}, _ANYBODY, "SwarmProblem"
    )
    made: Node = {
        "/swarm/health": {"get": health},
        "/swarm/execute": {
            "post": _kernels(
                "propose",
                "Propose a candidate; the same request again joins the run or gets its result",
                {200: json("Proposal", "The candidate.")} | _refused(400, 403, 409, 413, 415, 422, 502, 504),
                body=sent("Proposing"),
            )
        },
    }
    for prefix, suffix in (("/swarm", ""), ("", "AtRoot")):
        made[f"{prefix}/capabilities"] = {
            "get": _kernels(
                f"capabilities{suffix}",
                "What is served here, in which profiles",
                {200: json("Capabilities", "All that is open to kernels.")},
            )
        }
        made[f"{prefix}/verify"] = {
            "post": _kernels(
                f"verify{suffix}",
                "Judge a candidate by the policy that its task is bound to",
                {200: json("Verdict", "The verdict.")} | _refused(400, 413, 415, 422),
                body=sent("Verifying"),
            )
        }
    return made


_ANYBODY = {status: why for status, why in _ALWAYS.items() if status in (431, 500)}


def _refused(*statuses: int) -> dict[int, Node]:
    return {status: json("SwarmProblem", "Refused, or failed; the code says why.") for status in statuses}


def _kernels(name: str, summary: str, answers: dict[int, Node], *, body: Node | None = None) -> Node:
    made = operation(name, summary, answers, _ALWAYS, "SwarmProblem", body=body)
    return open_to(made, "kernelPassword", "kernelKey")


def _maybe(shape: Node) -> Node:
    return {"anyOf": [shape, {"type": "null"}]}


_ARTIFACT = record(
    "uri digest size_bytes mime created_at producer",
    uri=TEXT,
    digest=TEXT,
    size_bytes=WHOLE,
    mime=TEXT,
    created_at=WHOLE,
    producer=TEXT,
)
_PIECE = record("mime content", mime=TEXT, content=TEXT)
# Of a contract only what is acted on; a kernel's has more.
_CONTRACT = record(
    "output_schema",
    output_schema=ANYTHING,
    expiry_ms=_maybe(WHOLE),
    budget=_maybe(record("", time_ms=_maybe(WHOLE), verify_cost_units=_maybe(WHOLE))),
    evidence_policy=_maybe(
        record("", max_inline_evidence_bytes=_maybe(WHOLE), inline_mime_allowlist=_maybe(list_of(TEXT)))
    ),
    acceptance=_maybe(record("", verifier_policy=_maybe(record("", policy_hash=_maybe(TEXT))))),
)
_POLICY = record(
    "policy_id policy_version policy_hash policy_params",
    policy_id={"enum": [*KERNEL_HASHES]},
    policy_version={"const": VERSION},
    policy_hash=TEXT,
    policy_params=ANYTHING,
)

SCHEMAS: Node = {
    "SwarmProblem": record(
        "error code", error=TEXT, code=TEXT, field=TEXT, expected=ANYTHING, received=ANYTHING, advice=TEXT
    ),
    "Capabilities": record(
        "task_types profiles provider_family model_id",
        task_types=list_of(TEXT),
        profiles=list_of(TEXT),
        provider_family=TEXT,
        model_id=TEXT,
    ),
    "Proposing": record(
        "task_id execution_id attempt_id task_type profile stage inputs task_contract",
        task_id=TEXT,
        execution_id=TEXT,
        attempt_id=TEXT,
        task_type=TEXT,
        profile=TEXT,
        stage=TEXT,
        inputs=ANYTHING,
        task_contract=_CONTRACT,
        seed_bundle=_maybe(OBJECT),
    ),
    "Artifact": _ARTIFACT,
    "Proposal": record(
        "candidate_output evidence_inline evidence_refs",
        candidate_output=ANYTHING,
        evidence_inline=list_of(_PIECE),
        evidence_refs=list_of(ref("Artifact")),
    ),
    "Verifying": record(
        "candidate output_schema policy",
        candidate=record(
            "candidate_id execution_id output_ref evidence_inline evidence_refs",
            candidate_id=TEXT,
            execution_id=TEXT,
            output_ref=ref("Artifact"),
            output=ANYTHING,
            evidence_inline=list_of(_PIECE),
            evidence_refs=list_of(ref("Artifact")),
        ),
        output_schema=ANYTHING,
        policy=_POLICY,
    ),
    "Verdict": record(
        "verification_status passed score reason_codes verifier_result_hash provider_family model_id",
        verification_status={"enum": ["passed", "failed", "inconclusive"]},
        passed=FLAG,
        score={"type": "number", "minimum": 0, "maximum": 1},
        reason_codes=list_of({"type": "integer", "minimum": 0, "maximum": 65_535}),
        verifier_result_hash={"type": "string", "pattern": "^(sha256:)?[0-9a-f]{64}$"},
        provider_family=TEXT,
        model_id=TEXT,
    ),
}
