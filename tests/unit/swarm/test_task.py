"""The record of a swarm task, and how its end is reported to a kernel."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.fakes.kernel_request import CONTRACT, DOCUMENTS, execute_body
from worker.capabilities.declare import Capability
from worker.core.errors import TooLarge
from worker.core.json import encode
from worker.engine.record import Execution, from_mapping
from worker.swarm import task, wire
from worker.swarm.answers import RuntimeIdentity
from worker.swarm.dialects import Dialect

US = RuntimeIdentity("swarm-runtime", "swarm-model-v1")


def kept(request: wire.ExecuteRequest, **fields: Any) -> Execution:
    """Return a record as the store returns it."""
    context = encode(task.context(request, US, "d" * 64))
    plain = {"lane": "express", "state": "completed", "phase": "done", **fields}
    raw = {name: value if isinstance(value, bytes) else str(value).encode() for name, value in plain.items()}
    return from_mapping({"context": context, **raw})


@pytest.mark.parametrize(
    "sent", [execute_body(), execute_body(stage="explore"), DOCUMENTS["execute"]["request"]]
)
def test_answer_is_rebuilt_from_the_record(sent: dict[str, Any]) -> None:
    """The request restored from the record has everything that determines an answer."""
    request = wire.parse_execute(sent)
    again = task.request_of(kept(request))
    for name in ("task_id", "execution_id", "attempt_id", "task_type", "profile", "stage", "reading"):
        assert getattr(again, name) == getattr(request, name)
    for name in ("output_schema", "time_ms", "expiry_ms", "max_refs", "max_inline_bytes", "mimes"):
        assert getattr(again.contract, name) == getattr(request.contract, name)
    assert task.identity_of(kept(request)) == US
    assert task.body_digest_of(kept(request)) == "d" * 64


def test_agent_function_gets_contract_stage_profile_and_seed() -> None:
    """They have the names that a job reads; inputs that only repeat the task's are not stored twice."""
    seed = {"seed_type": "SIMILAR_HITS_V1", "hits": [], "constraints": {"must_consider_claims": ["x"]}}
    context = task.context(wire.parse_execute(execute_body(seed_bundle=seed, stage="DECIDE")), US, "")
    assert (context["profile"], context["stage"], context["seed"]) == ("default", "DECIDE", seed)
    assert context["swarm"]["budget"] == CONTRACT["budget"]
    assert context["output_schema"] == CONTRACT["output_schema"]
    assert "inputs" not in context["swarm"]
    other = {**copy.deepcopy(CONTRACT), "inputs": {"prompt": "something else"}}
    assert task.context(wire.parse_execute(execute_body(task_contract=other)), US, "")["swarm"]["inputs"]


def test_oversized_contract_is_refused() -> None:
    """A contract larger than any stock kernel can send is not stored."""
    large = {**copy.deepcopy(CONTRACT), "note": "x" * task.MAX_CONTEXT}
    with pytest.raises(TooLarge):
        task.context(wire.parse_execute(execute_body(task_contract=large)), US, "")


@pytest.mark.parametrize(
    ("code", "kernels", "documents"),
    [
        ("INVALID_INPUT", 422, 422),
        ("UNSATISFIABLE_SCHEMA", 400, 400),
        ("SCHEMA_REFUSED", 422, 422),
        ("TOOL_DENIED", 403, 403),
        ("OUTPUT_SCHEMA_INVALID", 502, 400),
        ("OUTPUT_INVALID", 502, 400),
        ("INTERNAL_ERROR", 500, 500),
        ("TOOL_FAILED", 502, 502),
        ("SOMETHING_OF_AN_AUTHOR", 502, 502),
        ("WORKER_CRASHED", 503, 503),
        ("EXECUTION_TIMEOUT", 504, 504),
    ],
)
def test_failures_are_mapped_to_statuses(code: str, kernels: int, documents: int) -> None:
    """4xx only if a retry would fail again; an invalid answer is 502 to a kernel, else 400."""
    error = encode({"code": code, "error": "why", "details": {"status": 1, "field": "x"}, "retryable": False})
    for stage, status in (("EXPLORE", kernels), ("explore", documents)):
        request = wire.parse_execute(execute_body(stage=stage))
        problem = task.refusal(kept(request, state="failed", error=error), request)
        assert (problem.code, problem.status, problem.message) == (code, status, "why")
        assert problem.details == {"status": 1, "field": "x"}


def test_expired_running_task_says_so() -> None:
    """Expiry is final and has its own code; a run that exceeded its time before is still a time-out."""
    error = encode({"code": "EXECUTION_TIMEOUT", "error": "why", "details": {}, "retryable": True})
    expiry = CONTRACT["expiry_ms"] * 1000
    for stage, ended, code, status in (
        ("EXPLORE", expiry, "TASK_EXPIRED", 422),
        ("EXPLORE", expiry - 1, "EXECUTION_TIMEOUT", 504),
        ("explore", expiry, "EXECUTION_TIMEOUT", 504),
    ):
        request = wire.parse_execute(execute_body(stage=stage))
        problem = task.refusal(kept(request, state="failed", error=error, ended=ended), request)
        assert (problem.code, problem.status) == (code, status)
    expired = task.refusal(kept(request, state="failed", error=error, ended=expiry), request)
    assert "not run" not in expired.advice


@pytest.mark.parametrize(
    ("schema", "seen"),
    [
        ({"type": "object"}, {"text"}),
        ({"properties": {"prompt": {}}, "additionalProperties": False}, {"text", "prompt"}),
        ({"required": ["agent_id"]}, {"text", "agent_id"}),
        ({"properties": 5}, {"text"}),
    ],
)
def test_kernel_keys_are_not_checked_by_the_authors_schema(schema: Any, seen: set[str]) -> None:
    """Kernel keys are checked only if the author's schema names them."""
    inputs = {"text": 1, "prompt": 2, "agent_id": 3, "_aggregation_signal": 4, "swarm_scope": 5}
    assert set(task.authors_part(inputs, schema)) == seen
    assert task.authors_part([1], schema) == [1]


def test_transient_failure_is_503() -> None:
    """A failure that the author marks retryable is 503, whatever its code."""
    error = encode({"code": "MODEL_AWAY", "error": "why", "details": {}, "retryable": True})
    request = wire.parse_execute(execute_body())
    assert task.refusal(kept(request, state="failed", error=error), request).status == 503


def test_cancelled_task_is_not_retried() -> None:
    """An operator's cancel is final: 409, which a kernel does not retry."""
    request = wire.parse_execute(execute_body())
    assert task.refusal(kept(request, state="cancelled"), request).status == 409


def test_expiry_applies_to_kernel_tasks_only() -> None:
    """The specification's own example expired long ago and is still answered."""
    assert task.expires_us(wire.parse_execute(execute_body())) == CONTRACT["expiry_ms"] * 1000
    assert task.expires_us(wire.parse_execute(execute_body(stage="explore"))) == 0
    assert wire.parse_execute(DOCUMENTS["execute"]["request"]).reading is Dialect.DOCUMENTS
    assert task.expires_us(wire.parse_execute(DOCUMENTS["execute"]["request"])) == 0
    assert task.expires_us(wire.parse_execute(execute_body(task_contract={**CONTRACT, "expiry_ms": 0}))) == 1
    assert (
        task.expires_us(wire.parse_execute(execute_body(task_contract={**CONTRACT, "expiry_ms": None}))) == 0
    )


def test_task_type_selects_the_agent() -> None:
    """The agent that names the type, else the one that serves `*`; closed agents never."""
    agents = {
        each.name: each
        for each in (
            Capability("closed", task_types=("secret", "*")),
            Capability("rest", swarm=True, task_types=("swarm", "*")),
            Capability("aaa", swarm=True, task_types=("a2a_invoke",)),
            Capability("plain", swarm=True),
        )
    }
    wanted = {"swarm": "rest", "secret": "rest", "a2a_invoke": "aaa", "plain": "plain", "": "rest"}
    for task_type, name in wanted.items():
        found = task.chosen(agents, task_type)
        assert found is not None and found.name == name
    del agents["rest"]
    assert task.chosen(agents, "swarm") is None
