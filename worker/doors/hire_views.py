"""Bodies, statuses and payment headers of the HIRE door's task answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from worker.core.errors import NotFound, Problem
from worker.core.states import MOST_INPUTS, Phase, State
from worker.delivery.deliverables import Deliverables, metadata
from worker.delivery.failure import failure_of
from worker.doors.answers import PlainAnswer, json_text, problem_answer
from worker.doors.payment_required import both_versions, payment_required_answer
from worker.engine.events import iso
from worker.engine.load import Load
from worker.engine.record import Execution
from worker.hiring.task import PaymentRequired, Task
from worker.payments.payment import PaymentState
from worker.x402.headers import stored_response_headers
from worker.x402.networks import Network
from worker.x402.receipts import outcome_of, pending_response

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


# Estimates in a pending answer.
_MOVING = frozenset({"estimated_completion", "queue_position"})
_NO_CHARGE = " You were not charged."
# Transient refusals: the identical request may succeed later.
_PASSING = frozenset({404, 408, 425, 429})
_PENDING_SECONDS = 5
_ONLY_PAYMENT_OPEN = "The work is done; only its payment is open. Poll, and do not sign another payment."
_SEND_AGAIN = "send the identical request again, with the same payment; do not sign another one."


def claim_only_what_is_known(problem: Problem, *, looked_up: bool) -> None:
    """Corrects `charged` in the refusal of a request with a payment: it may have been taken, now or earlier.

    `looked_up`: the record was read, so a refusal that is not transient is accurate.
    """
    if isinstance(problem, PaymentRequired):
        return
    if problem.status in _PASSING or problem.status >= 500:
        problem.pending, problem.charged = True, None
        problem.retry_after = problem.retry_after or _PENDING_SECONDS
        lost = problem.status == 404 and problem.code != NotFound.code
        first = "PUT the signed contract to /contracts again, then" if lost else "After Retry-After"
        problem.advice = f"{first} {_SEND_AGAIN}"
    elif not looked_up:
        problem.charged = None


def refusal(problem: Problem, contract_id: str | None) -> PlainAnswer:
    """A refusal in the HIRE error format."""
    advice = problem.advice if problem.charged is False else problem.advice.replace(_NO_CHARGE, "")
    details = {**problem.details, "charged": problem.charged, "advice": advice}
    if isinstance(problem, PaymentRequired):
        return payment_required_answer(problem, contract_id, details)
    body = {
        "status": "pending" if problem.pending else "failed",
        "contract_id": contract_id,
        "error": {"code": problem.code, "message": problem.message, "details": details},
    }
    return problem_answer(problem, body)


def task_status(task: Task) -> int:
    execution = task.execution
    if execution.state is State.COMPLETED:
        return 200
    if execution.state in (State.FAILED, State.CANCELLED) or task.parked:
        return _FAILED_STATUS.get(failure_of(execution)["code"], 500)
    return 202


def task_body(task: Task, deliverables: Deliverables, load: Callable[[Task], Load]) -> dict[str, Any]:
    execution = task.execution
    credential = "task_token" if task.contract.is_purchase else "contract_id"
    common: dict[str, Any] = {
        credential: task.contract.terms.contract_id,
        "task_id": execution.id,
        # Every view of the log uses the same sequence.
        "sequence": task.sequence,
    }
    if execution.state is State.COMPLETED:
        shown = deliverables.shown(execution)
        return {
            "status": "completed",
            **common,
            "deliverables": shown.deliverables,
            "output": shown.output,
            "metadata": _metadata(task),
            "phase": execution.phase,
            "receipt": receipt_of(task),
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
    task: Task, common: dict[str, Any], deliverables: Deliverables, load: Callable[[Task], Load]
) -> dict[str, Any]:
    execution = task.execution
    now = load(task)
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
    if task.contract.is_purchase:
        body |= {"stream_url": body["links"]["stream"], "retry_after_ms": 1000}
    if ready:
        body["deliverables"] = ready
    if execution.phase is Phase.SETTLING:
        body["message"] = _ONLY_PAYMENT_OPEN
    if execution.progress is not None:
        body["progress"] = {"fraction": execution.progress, "message": execution.message}
    if execution.state is State.PENDING and execution.phase is Phase.WORKING:
        body["queue_position"] = now.waiting
    if task.capability.stream:
        body["output"] = deliverables.stream_output(execution)
    if task.paid_already:
        body["payment"] = unused_payment(task)
    return body


def _failure(task: Task) -> dict[str, Any]:
    failure = failure_of(task.execution)
    details = failure["details"] | {"charged": task.charged}
    if task.parked:
        details["retries_left"] = _attempts_left(task.execution)
        details["advice"] = "Send the same request again: the next attempt is free."
        if task.execution.parked == "input":
            details["advice"] = "Send a corrected input under the same contract. It costs nothing more."
    refund = next((each for each in task.money.payments if each.refund), None)
    if refund is not None:
        details["refund"] = {"state": refund.refund, "amount": refund.refund_amount}
    elif task.execution.state is State.CANCELLED and details["charged"]:
        details["forfeited"] = True
        details["advice"] = "The work had begun and the payment is kept, as forfeit=true asked."
    return {**failure, "details": details}


def _attempts_left(execution: Execution) -> int:
    """Attempts the seeker may still request; the pending one was counted when the execution was parked."""
    if execution.parked == "input":
        return MOST_INPUTS - execution.inputs_used + 1
    return execution.retries - execution.retries_used + 1


def _metadata(task: Task) -> dict[str, Any]:
    return metadata(task.execution, task.capability)


def receipt_of(task: Task) -> dict[str, Any] | None:
    """The signed receipt of the payment that settled, if any."""
    paid = task.money.payment(task.money.paid)
    if paid is None or not paid.response:
        return None
    extensions = outcome_of(paid.response).get("extensions", {})
    receipt: dict[str, Any] | None = extensions.get("offer-receipt", {}).get("info", {}).get("receipt")
    return receipt


def payment_headers(task: Task, network: Network) -> dict[str, str]:
    """Headers about a payment that settled or may have settled."""
    paid = task.money.payment(task.money.paid)
    if paid is not None and paid.response:
        return stored_response_headers(paid.response, str(outcome_of(paid.response).get("network", "")))
    current = task.money.payment()
    if current is not None and current.state in (PaymentState.UNKNOWN, PaymentState.SETTLING):
        pending = pending_response(network.caip2, current.payer, current.pending or None)
        return both_versions(pending)
    return {}


def unused_payment(task: Task) -> str:
    """Why the request's payment was not used."""
    if task.money.paid:
        return "already_paid"
    payment = task.money.payment()
    return "not_needed" if payment is None or payment.state.ended else "being_paid"


def purchase_line(execution: Execution, deliverables: Deliverables) -> dict[str, Any]:
    """One purchase in its payer's list."""
    return {
        "task_id": execution.id,
        "capability": execution.agent,
        "state": execution.state,
        "phase": execution.phase,
        "created_at": iso(execution.created),
        "links": deliverables.links(execution.id),
    }


def entity_tag(body: dict[str, Any], text: bytes) -> str:
    """An ETag that ignores estimates, so that it changes only with the task. `text` is the whole body."""
    if not _MOVING.isdisjoint(body):
        text = json_text({name: value for name, value in body.items() if name not in _MOVING})
    return hashlib.sha256(text).hexdigest()[:32]
