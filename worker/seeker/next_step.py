"""Decides what to do after a response: the part of hiring that must never be wrong. Pure functions.

A payment is signed when a 402 asks for one and none is outstanding. From then on the identical payment is
re-sent until a response states its outcome. Another is signed only after a response that proves that no money
moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worker.core.errors import Problem
from worker.seeker.answers import (
    CANNOT_LAND,
    INVALID_INPUT,
    LONGEST_PAUSE,
    RESULT_EXPIRED,
    Completed,
    FailedTask,
    InProgress,
    NoClearAnswer,
    PaymentAsked,
    Reading,
    RequestRefused,
)
from worker.seeker.demand import PaymentDemands
from worker.seeker.problems import (
    OfferRefused,
    PaymentRefused,
    PaymentUnknown,
    TaskFailed,
    WorkerRefused,
    WorkerUnreachable,
    plain,
)
from worker.seeker.purchases import PaymentFate, Purchase

# Refusals that a new signature fixes: the window was too short or has passed.
STALE = frozenset(
    {
        CANNOT_LAND,
        "invalid_exact_evm_payload_authorization_valid_before",
        "invalid_exact_evm_payload_authorization_valid_after",
    }
)
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# How many refusals without proof are accepted before a person is asked.
MOST_DOUBTS = 3
# How many missing responses are tolerated while no payment is outstanding.
MOST_SILENT = 4
# More free attempts than any contract grants.
MOST_TRIES = 10


@dataclass(frozen=True, slots=True)
class Sign:
    """Sign a payment for one of these, store it, and send the request with it."""

    asking: PaymentDemands


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request, with the outstanding payment if there is one."""

    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Poll:
    after: float


@dataclass(frozen=True, slots=True)
class Register:
    """The worker does not know the contract: register it again, then send."""


@dataclass(frozen=True, slots=True)
class Finish:
    done: Completed


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop here. `final`: later as well. `other_input`: the purchase can resume with a corrected input."""

    problem: Problem
    final: bool
    other_input: bool = False


Step = Sign | Send | Poll | Register | Finish | Stop


@dataclass(frozen=True, slots=True)
class PurchaseSituation:
    """What the decision depends on besides the response. Counts are of consecutive responses."""

    purchase: Purchase
    unsure: int = 0
    doubts: int = 0
    tries: int = 0
    patience_over: bool = False
    signed_again: bool = False
    asked_again: bool = False
    registered_again: bool = False


def decide(reading: Reading, now: PurchaseSituation) -> Step:
    """The next step. Anything not understood is treated as if the payment were outstanding."""
    match reading:
        case Completed():
            return Finish(reading)
        case InProgress():
            return Send(reading.after) if reading.wants_request else Poll(reading.after)
        case PaymentAsked():
            return _on_asked(reading, now)
        case FailedTask():
            return _on_failed(reading, now)
        case RequestRefused():
            return _on_refused(reading, now)
        case NoClearAnswer():
            return _on_unsure(reading, now)


def _on_asked(reading: PaymentAsked, now: PurchaseSituation) -> Step:
    payment = now.purchase.payment
    if payment is None:
        return _sign(reading)
    if now.purchase.unsettled is not None and reading.refused is None:
        if now.doubts >= MOST_DOUBTS or now.patience_over:
            return Stop(unknown(now.purchase, reading.word or "it asks for payment again"), final=False)
        return Send(reading.retry_after if reading.retry_after is not None else pause(now.doubts))
    if payment.fate is PaymentFate.SETTLED:
        return Stop(unknown(now.purchase, "the worker was paid and asks for payment again"), final=False)
    # From here on the last payment counts as one that will not be taken.
    code = reading.refused or payment.reason
    if not now.signed_again and (code in STALE or now.asked_again):
        return _sign(reading)
    refusal = PaymentRefused(
        f"the payment was refused ({plain(code, 80)}) and no money moved",
        reason=plain(code, 80),
        ref=now.purchase.ref,
        charged=False,
    )
    return Stop(refusal, final=False)


def _sign(reading: PaymentAsked) -> Step:
    if reading.asking is None:
        return Stop(reading.fault or OfferRefused(), final=False)
    return Sign(reading.asking)


def _on_failed(reading: FailedTask, now: PurchaseSituation) -> Step:
    if reading.retryable and now.tries < MOST_TRIES:
        return Send(reading.retry_after if reading.retry_after is not None else 1.0)
    if reading.correctable:
        return _wants_another_input(reading, now)
    details = {str(key): value for key, value in reading.details.items() if key not in _OURS}
    problem = TaskFailed(reading.message or None, code=reading.code, **details)
    # Null: the worker does not know yet whether it was charged, so the payment is still outstanding.
    charge_known = reading.details.get("charged", False) is not None
    return Stop(problem, final=charge_known and not reading.retryable)


def _wants_another_input(reading: FailedTask | RequestRefused, now: PurchaseSituation) -> Stop:
    """The contract and the outstanding payment stay valid for a corrected input."""
    details = {str(key): value for key, value in reading.details.items() if key not in _OURS}
    details["ref"] = now.purchase.ref
    advice = "Correct the input and run it again: the same contract and payment are used."
    problem = TaskFailed(reading.message or None, code=reading.code, advice=advice, **details)
    return Stop(problem, final=False, other_input=True)


def _on_refused(reading: RequestRefused, now: PurchaseSituation) -> Step:
    if reading.code == "CONTRACT_NOT_FOUND" and now.purchase.payment and not now.registered_again:
        return Register()
    if reading.code == "TASK_NOT_FOUND":
        return Send(pause(now.tries)) if now.tries < MOST_DOUBTS else _refusal(reading, now)
    if reading.code == RESULT_EXPIRED:
        details = {str(key): value for key, value in reading.details.items() if key not in _OURS}
        return Stop(TaskFailed(reading.message or None, code=reading.code, **details), final=True)
    if reading.code == INVALID_INPUT and now.purchase.unsettled is not None:
        return _wants_another_input(reading, now)
    return _refusal(reading, now)


def _refusal(reading: RequestRefused, now: PurchaseSituation) -> Step:
    if now.purchase.unsettled is not None:
        return Stop(unknown(now.purchase, f"{reading.code}: {reading.message}"), final=False)
    details = {str(key): value for key, value in reading.details.items() if key not in _OURS}
    advice = reading.details.get("advice")
    problem = WorkerRefused(
        reading.message or None,
        code=reading.code,
        advice=plain(advice) if isinstance(advice, str) else None,
        **details,
    )
    return Stop(problem, final=True)


def _on_unsure(reading: NoClearAnswer, now: PurchaseSituation) -> Step:
    silent = reading.retry_after is None and now.purchase.payment is None and now.unsure >= MOST_SILENT
    if not now.patience_over and not silent:
        return Send(
            pause(now.unsure) if reading.retry_after is None else min(reading.retry_after, LONGEST_PAUSE)
        )
    if now.purchase.unsettled is not None:
        return Stop(unknown(now.purchase, reading.why), final=False)
    if reading.message:
        busy = f"the worker is still busy: {reading.message} ({plain(reading.why, 80)})"
        return Stop(WorkerUnreachable(busy), final=False)
    return Stop(WorkerUnreachable(f"the worker does not answer ({plain(reading.why, 80)})"), final=False)


def unknown(purchase: Purchase, why: str) -> PaymentUnknown:
    payment = purchase.payment
    details: dict[str, Any] = {"ref": purchase.ref, "why": plain(why, 200)}
    if payment is not None:
        details |= {"amount": payment.signed.amount, "valid_before": payment.signed.valid_before_s}
    return PaymentUnknown(**details)


def pause(times: int) -> float:
    return _PAUSES[min(times, len(_PAUSES) - 1)]


# Parameters of `Problem` itself, which untrusted details must not set.
_OURS = frozenset({"message", "code", "status", "advice", "retry_after", "self"})
