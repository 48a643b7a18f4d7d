"""What a record keeps of a swarm task, and how an end is told to a kernel."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.fakes.kernel_request import CONTRACT, DOCUMENTS, execute_body
from worker.agents.declare import Capability
from worker.agents.output import encode
from worker.errors import TooLarge
from worker.executions.record import Execution, from_mapping
from worker.swarm import task, wire
from worker.swarm.answers import Identity
from worker.swarm.readings import Reading

US = Identity("swarm-runtime", "swarm-model-v1")


def kept(request: wire.ExecuteRequest, **fields: Any) -> Execution:
    """A record as the store gives it back."""
    context = encode(task.context(request, US, "d" * 64))
    plain = {"lane": "express", "state": "completed", "phase": "done", **fields}
    raw = {name: value if isinstance(value, bytes) else str(value).encode() for name, value in plain.items()}
    return from_mapping({"context": context, **raw})


@pytest.mark.parametrize(
    "sent", [execute_body(), execute_body(stage="explore"), DOCUMENTS["execute"]["request"]]
)
def test_an_answer_can_be_made_of_the_record_alone(sent: dict[str, Any]) -> None:
    """The request that comes back from the record has everything that decides an answer."""
    request = wire.parse_execute(sent)
    again = task.request_of(kept(request))
    for name in ("task_id", "execution_id", "attempt_id", "task_type", "profile", "stage", "reading"):
        assert getattr(again, name) == getattr(request, name)
    for name in ("output_schema", "time_ms", "expiry_ms", "max_refs", "max_inline_bytes", "mimes"):
        assert getattr(again.contract, name) == getattr(request.contract, name)
    assert task.identity_of(kept(request)) == US
    assert task.body_digest_of(kept(request)) == "d" * 64


def test_the_authors_function_gets_contract_stage_profile_and_seed() -> None:
    """They stand under the names that a job reads; inputs that only repeat the task's are not kept twice."""
    seed = {"seed_type": "SIMILAR_HITS_V1", "hits": [], "constraints": {"must_consider_claims": ["x"]}}
    context = task.context(wire.parse_execute(execute_body(seed_bundle=seed, stage="DECIDE")), US, "")
    assert (context["profile"], context["stage"], context["seed"]) == ("default", "DECIDE", seed)
    assert context["swarm"]["budget"] == CONTRACT["budget"]
    assert context["output_schema"] == CONTRACT["output_schema"]
    assert "inputs" not in context["swarm"]
    other = {**copy.deepcopy(CONTRACT), "inputs": {"prompt": "something else"}}
    assert task.context(wire.parse_execute(execute_body(task_contract=other)), US, "")["swarm"]["inputs"]


def test_a_contract_beyond_all_measure_is_refused() -> None:
    """What no stock kernel can send does not get into the store."""
    large = {**copy.deepcopy(CONTRACT), "note": "x" * task.MAX_CONTEXT}
    with pytest.raises(TooLarge):
        task.context(wire.parse_execute(execute_body(task_contract=large)), US, "")


@pytest.mark.parametrize(
    ("code", "kernels", "documents"),
    [
        ("INVALID_INPUT", 422, 422),
        ("UNSATISFIABLE_SCHEMA", 422, 422),
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
def test_how_a_failure_is_told(code: str, kernels: int, documents: int) -> None:
    """4xx only for what would fail again; an unfit answer is 502 to a kernel, 400 in the documents."""
    error = encode({"code": code, "error": "why", "details": {"status": 1, "field": "x"}, "retryable": False})
    for stage, status in (("EXPLORE", kernels), ("explore", documents)):
        request = wire.parse_execute(execute_body(stage=stage))
        problem = task.refusal(kept(request, state="failed", error=error), request)
        assert (problem.code, problem.status, problem.message) == (code, status, "why")
        assert problem.details == {"status": 1, "field": "x"}


def test_a_failure_that_may_pass_is_503() -> None:
    """Whatever its code, what an author calls retryable is told as such."""
    error = encode({"code": "MODEL_AWAY", "error": "why", "details": {}, "retryable": True})
    request = wire.parse_execute(execute_body())
    assert task.refusal(kept(request, state="failed", error=error), request).status == 503


def test_a_cancelled_task_does_not_come_back() -> None:
    """The operator's word is final: 409, which a kernel does not repeat."""
    request = wire.parse_execute(execute_body())
    assert task.refusal(kept(request, state="cancelled"), request).status == 409


def test_only_a_kernel_means_its_expiry() -> None:
    """The documents' own example is long expired and is answered all the same."""
    assert task.expires_us(wire.parse_execute(execute_body())) == CONTRACT["expiry_ms"] * 1000
    assert task.expires_us(wire.parse_execute(execute_body(stage="explore"))) == 0
    assert wire.parse_execute(DOCUMENTS["execute"]["request"]).reading is Reading.DOCUMENTS
    assert task.expires_us(wire.parse_execute(DOCUMENTS["execute"]["request"])) == 0
    assert task.expires_us(wire.parse_execute(execute_body(task_contract={**CONTRACT, "expiry_ms": 0}))) == 1
    assert (
        task.expires_us(wire.parse_execute(execute_body(task_contract={**CONTRACT, "expiry_ms": None}))) == 0
    )


def test_which_agent_serves_a_type() -> None:
    """The one that names the type, else the one that serves the rest; closed agents never."""
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
