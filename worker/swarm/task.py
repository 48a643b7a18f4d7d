"""A swarm task between its request and its answer: what the record keeps of it, and how an end is told.

An answer is made of the record alone, so that a request which comes again, to whichever process and however
late, gets the same bytes.
"""

from __future__ import annotations

import time
from typing import Any

from worker.agents.declare import Capability
from worker.agents.output import encode
from worker.errors import Conflict, Problem, TooLarge
from worker.executions.record import Execution
from worker.executions.service import Executions
from worker.executions.states import State
from worker.swarm import readings, wire
from worker.swarm.answers import Identity
from worker.swarm.wire import ExecuteRequest

# A contract (without its inputs) and a seed; a stock kernel sends a third of this at most.
MAX_CONTEXT = 256 * 1024

_ADVICE_FINAL = "The same task will end the same way: change it before it is sent again."
_ADVICE_AGAIN = "Run the task again."
# 4xx is final to a kernel, 5xx makes it run the task again as a new one.
_STATUS = {
    "INVALID_INPUT": 422,
    "UNSATISFIABLE_SCHEMA": 422,
    "SCHEMA_REFUSED": 422,
    "TOOL_DENIED": 403,
    "INTERNAL_ERROR": 500,
    "TRANSIENT_FAILURE": 503,
    "WORKER_CRASHED": 503,
    "CAPABILITY_UNAVAILABLE": 503,
    "EXECUTION_TIMEOUT": 504,
    "STEP_TIMEOUT": 504,
}
_BAD_ANSWER = frozenset({"OUTPUT_SCHEMA_INVALID", "OUTPUT_INVALID"})
_GAVE_UP = 502


def context(request: ExecuteRequest, identity: Identity, digest: str) -> dict[str, Any]:
    """What the execution keeps beside its input: for the author's function, and to answer from.

    The contract comes without its inputs where they only repeat the task's.
    """
    contract = dict(request.contract.raw)
    if contract.get("inputs") == request.inputs:
        contract.pop("inputs", None)
    kept = {
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
    size = len(encode(kept))
    if size > MAX_CONTEXT:
        raise TooLarge(
            "the contract and the seed are too large",
            field="task_contract",
            expected=f"at most {MAX_CONTEXT} bytes together",
            received=size,
        )
    return kept


def expires_us(request: ExecuteRequest) -> int:
    """When the task is over, in microseconds; 0 for never."""
    if request.contract.expiry_ms is None or not readings.keeps_expiry(request.reading):
        return 0
    # An expiry of 0 lies in the past too.
    return max(1, request.contract.expiry_ms * 1000)


def request_of(execution: Execution) -> ExecuteRequest:
    """The request that an execution was made for, with everything that decides its answer."""
    kept = execution.context
    ids = kept["swarm_request"]
    return wire.parse_execute(
        {
            "task_id": ids["task_id"],
            "execution_id": ids["execution_id"],
            "attempt_id": ids["attempt_id"],
            "task_type": ids["task_type"],
            "profile": kept["profile"],
            "stage": kept["stage"],
            "inputs": None,
            "task_contract": kept["swarm"],
            "seed_bundle": None,
        }
    )


def identity_of(execution: Execution) -> Identity:
    """Who we were when the execution began."""
    kept = execution.context["swarm_request"]
    return Identity(kept["provider_family"], kept["model_id"])


def body_digest_of(execution: Execution) -> str:
    digest: str = execution.context["swarm_request"]["body"]
    return digest


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
    status = _STATUS.get(code, _GAVE_UP)
    if code in _BAD_ANSWER:
        status = readings.bad_answer_status(request.reading)
    elif status == _GAVE_UP and error.get("retryable"):
        status = 503
    advice = _ADVICE_AGAIN if status >= 500 or code in _BAD_ANSWER else _ADVICE_FINAL
    problem = Problem(str(error["error"]), code=code, status=status, advice=advice)
    problem.details.update(error["details"])
    return problem


def ended(executions: Executions, id: str, until: float) -> Execution | None:
    """The execution when it has ended; None when it has not at `until` (monotonic)."""
    while True:
        executions.wait(id, until - time.monotonic())
        # The record decides: a wait may end early.
        execution = executions.get(id)
        if execution.state.terminal:
            return execution
        if time.monotonic() >= until:
            return None


def chosen(capabilities: dict[str, Capability], task_type: str) -> Capability | None:
    """The agent that serves this type: by name of the type, else whoever serves the rest."""
    open_to_swarm = opened(capabilities)
    for wanted in (task_type, "*"):
        for each in open_to_swarm:
            if wanted in types(each):
                return each
    return None


def opened(capabilities: dict[str, Capability]) -> list[Capability]:
    """The agents that the operator opened to the swarm, by name."""
    return [capabilities[name] for name in sorted(capabilities) if capabilities[name].swarm]


def types(capability: Capability) -> tuple[str, ...]:
    """The task types an agent serves; one that names none serves its own name."""
    return capability.task_types or (capability.name,)
