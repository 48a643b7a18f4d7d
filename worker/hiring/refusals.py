"""Refusals of contract requests, and whether the seeker was charged."""

from __future__ import annotations

from typing import Any

from worker.core.errors import Conflict, NotFound, Problem
from worker.core.states import State
from worker.engine.events import iso
from worker.hiring.task import PaymentRequired, Task
from worker.payments.payment import Bought, PaymentState


def tell_of_money(refused: Problem, task: Task) -> None:
    """Copies `charged` from the task's record to the refusal of a request for its contract."""
    if not isinstance(refused, PaymentRequired):
        refused.charged = None if task.charged is False and task.under_way else task.charged


def payment_used() -> Conflict:
    return Conflict(
        "this payment belongs to another contract",
        code="PAYMENT_USED",
        advice="Sign a new payment for this contract; this one is not charged again.",
        charge_known=False,
    )


def other_input() -> Conflict:
    return Conflict(
        "this contract was already used with another input",
        code="IDEMPOTENCY_CONFLICT",
        advice="Send the first input again to get its result; another input needs another contract.",
        charge_known=False,
    )


def no_contract() -> NotFound:
    """Unknown, past its retention or lost by the store, so `charged` stays unknown."""
    return NotFound(
        "no such contract",
        code="CONTRACT_NOT_FOUND",
        advice="PUT the signed contract to /contracts; for a new one POST a draft there first.",
        charge_known=False,
    )


def no_task() -> NotFound:
    return NotFound(
        "no such task",
        code="TASK_NOT_FOUND",
        advice="Check the id of the task and the contract; to ask again send the request to /execute.",
        charge_known=False,
    )


def result_expired(bought: Bought) -> Problem:
    """For the payment of a contract past its retention: says when it was settled and delivered."""
    taken = bought.state is PaymentState.SETTLED
    word = "delivered_at" if bought.outcome is State.COMPLETED else "ended_at"
    details: dict[str, Any] = {"outcome": bought.outcome, word: iso(bought.ended)}
    if taken:
        details |= {"settled_at": iso(bought.settled), "transaction": bought.transaction}
        details["refunded"] = bought.refunded
    refusal = Problem(
        "this contract has ended and its result is no longer stored",
        code="RESULT_EXPIRED",
        status=410,
        advice="Keep the receipt; new work needs a new contract.",
        **details,
    )
    # A delivered result was paid for: if not by this payment, by another of the same contract.
    refusal.charged = True if taken else None if bought.outcome is State.COMPLETED else False
    return refusal
