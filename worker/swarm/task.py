"""A swarm task between request and response: what the record keeps, and how its end is reported.

A response is built from the record alone, so a repeated request gets the same bytes from any process, however
late it comes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from worker.capabilities.declare import Capability
from worker.core.errors import Conflict, Problem, TooLarge
from worker.core.json import encode
from worker.core.states import State
from worker.engine.record import Execution
from worker.engine.service import Executions
from worker.swarm import dialects, wire
from worker.swarm.admission import TaskExpired
from worker.swarm.answers import RuntimeIdentity
from worker.swarm.wire import ExecuteRequest

# A contract (without its inputs) and a seed; a stock kernel sends a third of this at most.
MAX_CONTEXT = 256 * 1024

_ADVICE_FINAL = "The same task will end the same way: change it before it is sent again."
_ADVICE_AGAIN = "Run the task again."
# A kernel treats 4xx as final; on 5xx it runs the task again as a new one.
_STATUS = {
    "INVALID_INPUT": 422,
    # The documents' status for an output the runtime cannot produce; final to a kernel, as it should be.
    "UNSATISFIABLE_SCHEMA": 400,
    "SCHEMA_REFUSED": 422,
    "TOOL_DENIED": 403,
    "INTERNAL_ERROR": 500,
    "TRANSIENT_FAILURE": 503,
    "WORKER_CRASHED": 503,
    "CAPABILITY_UNAVAILABLE": 503,
    "EXECUTION_TIMEOUT": 504,
    "STEP_TIMEOUT": 504,
}
# Keys that kernels add to inputs: a run and its rounds, a call between agents, a topic's message.
_KERNELS_OWN_TEXT = """
prompt agent_id swarm_scope swarm_route shared_inputs _aggregation_signal
request_id target_agent_id capability payload auth_proof payment_proof settlement signature protocol
feed_key scope_hint source_message candidate_proposals thread_context prior_deliberations
"""
_KERNELS_OWN = frozenset(_KERNELS_OWN_TEXT.split())
_BAD_ANSWER = frozenset({"OUTPUT_SCHEMA_INVALID", "OUTPUT_INVALID"})
_GAVE_UP = 502


def context(request: ExecuteRequest, identity: RuntimeIdentity, digest: str) -> dict[str, Any]:
    """What the execution stores beside its input: for the author's function and for building responses.

    The contract is stored without its inputs where they only repeat the task's.
    """
    contract = dict(request.contract.raw)
    if contract.get("inputs") == request.inputs:
        contract.pop("inputs", None)
    stored = {
        "profile": request.profile,
        "stage": request.stage,
        "seed": None if request.seed is None else request.seed.raw,
        "swarm": contract,
        "output_schema": request.contract.output_schema,
        "swarm_request": {
            "task_id": request.task_id,
            "execution_id": request.execution_id,
            "attempt_id": request.attempt_id,
            "task_type": request.task_type,
            "provider_family": identity.provider_family,
            "model_id": identity.model_id,
            "body": digest,
        },
    }
    size = len(encode(stored))
    if size > MAX_CONTEXT:
        raise TooLarge(
            "the contract and the seed are too large",
            field="task_contract",
            expected=f"at most {MAX_CONTEXT} bytes together",
            received=size,
        )
    return stored


def expires_us(request: ExecuteRequest) -> int:
    """When the task expires, in microseconds; 0 for never."""
    if request.contract.expiry_ms is None or not dialects.keeps_expiry(request.reading):
        return 0
    # An expiry of 0 is in the past too.
    return max(1, request.contract.expiry_ms * 1000)


def request_of(execution: Execution) -> ExecuteRequest:
    """Restore the request behind an execution, with everything that decides its response."""
    stored = execution.context
    ids = stored["swarm_request"]
    return wire.parse_execute(
        {
            "task_id": ids["task_id"],
            "execution_id": ids["execution_id"],
            "attempt_id": ids["attempt_id"],
            "task_type": ids["task_type"],
            "profile": stored["profile"],
            "stage": stored["stage"],
            "inputs": None,
            "task_contract": stored["swarm"],
            "seed_bundle": None,
        }
    )


def identity_of(execution: Execution) -> RuntimeIdentity:
    """The runtime's identity when the execution began."""
    stored = execution.context["swarm_request"]
    return RuntimeIdentity(stored["provider_family"], stored["model_id"])


def body_digest_of(execution: Execution) -> str:
    digest: str = execution.context["swarm_request"]["body"]
    return digest


def is_same(execution: Execution, request: ExecuteRequest) -> bool:
    """Whether the execution was created for these ids; if not, the task was re-sent under new ones."""
    ids = execution.context["swarm_request"]
    return all(ids[name] == getattr(request, name) for name in ("task_id", "execution_id", "attempt_id"))


def authors_part(inputs: Any, schema: Mapping[str, Any]) -> Any:
    """The inputs that an author's schema judges: without the kernel's keys, unless the schema names them."""
    if not isinstance(inputs, dict):
        return inputs
    properties = schema.get("properties")
    named = {*(properties if isinstance(properties, dict) else ()), *(schema.get("required") or ())}
    return {name: value for name, value in inputs.items() if name not in _KERNELS_OWN or name in named}


def refusal(execution: Execution, request: ExecuteRequest) -> Problem:
    """Why an execution that did not complete has no candidate."""
    if execution.state is State.CANCELLED:
        return Conflict(
            "the operator cancelled the task",
            code="CANCELLED",
            advice="Create a new task if it is still wanted.",
        )
    error = {"code": "INTERNAL_ERROR", "error": "the work failed", "details": {}, **execution.error}
    code = str(error["code"])
    if code == "EXECUTION_TIMEOUT" and 0 < expires_us(request) <= execution.ended:
        return TaskExpired(
            "the task expired while it ran", advice="Create a new task with a later expiry_ms."
        )
    status = _STATUS.get(code, _GAVE_UP)
    if code in _BAD_ANSWER:
        status = dialects.bad_answer_status(request.reading)
    elif status == _GAVE_UP and error.get("retryable"):
        status = 503
    advice = _ADVICE_AGAIN if status >= 500 or code in _BAD_ANSWER else _ADVICE_FINAL
    problem = Problem(str(error["error"]), code=code, status=status, advice=advice)
    problem.details.update(error["details"])
    return problem


def ended(executions: Executions, id: str, until: float) -> Execution | None:
    """The execution once it has ended; None if it has not by `until` (monotonic)."""
    while True:
        executions.wait(id, until - time.monotonic())
        # The record decides: a wait may return early.
        execution = executions.get(id)
        if execution.state.terminal:
            return execution
        if time.monotonic() >= until:
            return None


def chosen(capabilities: dict[str, Capability], task_type: str) -> Capability | None:
    """The agent for this type: the one that names it, else the one that serves all other types."""
    open_to_swarm = opened(capabilities)
    for wanted in (task_type, "*"):
        for each in open_to_swarm:
            if wanted in types(each):
                return each
    return None


def opened(capabilities: dict[str, Capability]) -> list[Capability]:
    """The agents the operator opened to the swarm, by name."""
    return [capabilities[name] for name in sorted(capabilities) if capabilities[name].swarm]


def types(capability: Capability) -> tuple[str, ...]:
    """The task types an agent serves; an agent that names none serves its own name."""
    return capability.task_types or (capability.name,)
