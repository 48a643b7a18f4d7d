"""How a task looks to its seeker: the bodies, statuses and payment headers of the HIRE door."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from worker.contracts.task import PaymentRequired, Task
from worker.delivery.deliverables import Deliverables, metadata
from worker.delivery.failure import failure_of
from worker.errors import Problem
from worker.executions.events import iso
from worker.executions.load import LoadMeter
from worker.executions.record import Execution
from worker.executions.states import MOST_INPUTS, Phase, State
from worker.payments.headers import response_headers
from worker.payments.ledger import PaymentState
from worker.payments.networks import Network
from worker.payments.receipts import pending_response

_FAILED_STATUS = {
    "INVALID_INPUT": 422,
    "DEADLINE_MISSED": 410,
    "OUTPUT_SCHEMA_INVALID": 500,
    "OUTPUT_INVALID": 500,
    "SLA_TIMEOUT": 504,
    "EXECUTION_TIMEOUT": 504,
    "STEP_TIMEOUT": 504,
    "TRANSIENT_FAILURE": 503,
    "WORKER_CRASHED": 503,
    "CAPABILITY_UNAVAILABLE": 503,
    "CANCELLED": 409,
}


def problem_body(problem: Problem, contract_id: str | None) -> dict[str, Any]:
    """A refusal in HIRE's form. A 402 also speaks V1, for clients of that age."""
    details = {**problem.details, "charged": problem.charged, "advice": problem.advice}
    body: dict[str, Any] = {
        "status": "failed",
        "contract_id": contract_id,
        "error": {"code": problem.code, "message": problem.message, "details": details},
    }
    if isinstance(problem, PaymentRequired):
        return {
            **problem.offer.v1_body(problem.message),
            "status": "failed",
            "contract_id": contract_id,
            "details": details,
            "code": problem.code,
        }
    return body


def task_status(task: Task) -> int:
    execution = task.execution
    if execution.state is State.COMPLETED:
        return 200
    if execution.state in (State.FAILED, State.CANCELLED) or task.parked:
        return _FAILED_STATUS.get(failure_of(execution)["code"], 500)
    return 202


def task_body(task: Task, deliverables: Deliverables, load: LoadMeter) -> dict[str, Any]:
    execution = task.execution
    contract_id = task.contract.terms.contract_id
    # Of the newest event: the same number in every view of the log.
    sequence = deliverables.executions.last_sequence(execution.id)
    common: dict[str, Any] = {"contract_id": contract_id, "task_id": execution.id, "sequence": sequence}
    if execution.state is State.COMPLETED:
        shown = deliverables.shown(execution)
        return {
            "status": "completed",
            **common,
            "deliverables": shown.deliverables,
            "output": shown.output,
            "metadata": _metadata(task),
            "phase": execution.phase,
            "receipt": _receipt(task),
            "links": deliverables.links(execution.id),
            "expires_at": deliverables.expires_at(execution),
        }
    if execution.state in (State.FAILED, State.CANCELLED) or task.parked:
        failed = {
            "status": "failed",
            **common,
            "error": _failure(task),
            "metadata": _metadata(task),
            "phase": execution.phase,
            "links": deliverables.links(execution.id),
        }
        if execution.ended:
            failed["expires_at"] = deliverables.expires_at(execution)
        return failed
    return _pending(task, common, deliverables, load)


def _pending(
    task: Task, common: dict[str, Any], deliverables: Deliverables, load: LoadMeter
) -> dict[str, Any]:
    execution = task.execution
    now = load.read(execution.agent, execution.lane)
    ready = deliverables.ready(execution)
    body: dict[str, Any] = {
        "status": "partial" if ready else "pending",
        **common,
        "poll_url": deliverables.task_url(execution.id),
        "estimated_completion": iso(
            now.estimate(execution.started if execution.state is not State.PENDING else 0)
        ),
        "poll_after_ms": 1000,
        "phase": execution.phase,
        "state": execution.state,
        "links": deliverables.links(execution.id),
    }
    if ready:
        body["deliverables"] = ready
    if execution.progress is not None:
        body["progress"] = {"fraction": execution.progress, "message": execution.message}
    if execution.state is State.PENDING and execution.phase is Phase.WORKING:
        body["queue_position"] = now.waiting
    if task.capability.stream:
        body["output"] = deliverables.stream_output(execution)
    if task.paid_already:
        body["payment"] = _already(task)
    return body


def _failure(task: Task) -> dict[str, Any]:
    failure = failure_of(task.execution)
    details = failure["details"] | {"charged": charged(task)}
    if task.parked:
        details["retries_left"] = _attempts_left(task.execution)
        details["advice"] = "Send the same request again: the next attempt is free."
        if task.execution.raw.get("parked") == b"input":
            details["advice"] = "Send a corrected input under the same contract: it costs nothing more."
    refund = next((each for each in task.money.payments if each.refund), None)
    if refund is not None:
        details["refund"] = {"state": refund.refund, "amount": refund.refund_amount}
    return {**failure, "details": details}


def _attempts_left(execution: Execution) -> int:
    """How often the seeker may still ask; the one that it waits for now was counted when it was parked."""

    def number(name: str) -> int:
        return int(execution.raw.get(name, b"0"))

    if execution.raw.get("parked") == b"input":
        return MOST_INPUTS - number("inputs_used") + 1
    return number("retries") - number("retries_used") + 1


def charged(task: Task) -> bool:
    """Whether a payment for this task was taken."""
    return any(payment.state is PaymentState.SETTLED for payment in task.money.payments)


def _metadata(task: Task) -> dict[str, Any]:
    return metadata(task.execution, task.capability)


def _receipt(task: Task) -> dict[str, Any] | None:
    paid = task.money.payment(task.money.paid)
    if paid is None or not paid.response:
        return None
    extensions = json.loads(paid.response).get("extensions", {})
    receipt: dict[str, Any] | None = extensions.get("offer-receipt", {}).get("info", {}).get("receipt")
    return receipt


def payment_headers(task: Task, network: Network) -> dict[str, str]:
    """What the answer says of the money that moved, or may have moved, and of a payment not needed."""
    status = {"X-Payment-Status": _already(task)} if task.paid_already else {}
    paid = task.money.payment(task.money.paid)
    if paid is not None and paid.response:
        return {**_both(json.loads(paid.response)), **status}
    current = task.money.payment()
    if current is not None and current.state in (PaymentState.UNKNOWN, PaymentState.SETTLING):
        pending = pending_response(network.caip2, current.payer, current.pending or None)
        return {**_both(pending), **status}
    return status


def _already(task: Task) -> str:
    """Why the payment in the request was left alone."""
    if task.money.paid:
        return "already_paid"
    payment = task.money.payment()
    return "not_needed" if payment is None or payment.state.ended else "being_paid"


def entity_tag(body: dict[str, Any]) -> str:
    """The same as long as nothing happens: estimates may move without it."""
    moving = ("estimated_completion", "queue_position")
    steady = {name: value for name, value in body.items() if name not in moving}
    return hashlib.sha256(json.dumps(steady, sort_keys=True).encode()).hexdigest()[:32]


def required_headers(problem: PaymentRequired) -> dict[str, str]:
    headers = dict(problem.offer.headers(problem.message))
    if problem.response is not None:
        headers |= _both(dict(problem.response))
    headers["Cache-Control"] = "no-store"
    return headers


def _both(document: dict[str, Any]) -> dict[str, str]:
    return {**response_headers(document), **response_headers(document, version=1)}
