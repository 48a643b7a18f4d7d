"""What to do next after an answer: the part of hiring that must never be wrong. Pure functions.

A payment is signed when a 402 asks for one and none is out. From then on the identical payment is sent
until somebody says what became of it; another is signed only after an answer that says, in a way that
can be believed, that nothing moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worker.errors import Problem
from worker.seeker.demand import Asking
from worker.seeker.drawer import Fate, Purchase
from worker.seeker.problems import (
    OfferRefused,
    PaymentRefused,
    PaymentUnknown,
    TaskFailed,
    WorkerRefused,
    WorkerUnreachable,
    plain,
)
from worker.seeker.readings import (
    CANNOT_LAND,
    INVALID_INPUT,
    LONGEST_PAUSE,
    Asked,
    Done,
    Failed,
    Reading,
    Refused,
    Unsure,
    Working,
)

# Refusals that a fresh signature mends by itself: the window was too short, or is over.
STALE = frozenset(
    {
        CANNOT_LAND,
        "invalid_exact_evm_payload_authorization_valid_before",
        "invalid_exact_evm_payload_authorization_valid_after",
    }
)
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# How often a refusal that cannot be believed is heard before a person is asked.
MOST_DOUBTS = 3
# How often nobody answers before it is given up, while no payment is out.
MOST_SILENT = 4
# More free attempts than any contract grants.
MOST_TRIES = 10


@dataclass(frozen=True, slots=True)
class Sign:
    """Sign a payment for one of these, keep it, and send the request with it."""

    asking: Asking


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request, with the payment that is out if there is one."""

    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Poll:
    after: float


@dataclass(frozen=True, slots=True)
class Register:
    """The worker does not know the contract: hand it in once more, then send."""


@dataclass(frozen=True, slots=True)
class Finish:
    done: Done


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more can be done here. `final`: nor later. `other_input`: it goes on with a corrected input."""

    problem: Problem
    final: bool
    other_input: bool = False


Step = Sign | Send | Poll | Register | Finish | Stop


@dataclass(frozen=True, slots=True)
class Situation:
    """What the decision hangs on beside the answer. Counts are of answers in a row."""

    purchase: Purchase
    unsure: int = 0
    doubts: int = 0
    tries: int = 0
    patience_over: bool = False
    signed_again: bool = False
    asked_again: bool = False
    registered_again: bool = False


def decide(reading: Reading, now: Situation) -> Step:
    """The next step. Whatever is not understood is treated as if the payment were out."""
    match reading:
        case Done():
            return Finish(reading)
        case Working():
            return Send(reading.after) if reading.wants_request else Poll(reading.after)
        case Asked():
            return _on_asked(reading, now)
        case Failed():
            return _on_failed(reading, now)
        case Refused():
            return _on_refused(reading, now)
        case Unsure():
            return _on_unsure(reading, now)


def _on_asked(reading: Asked, now: Situation) -> Step:
    payment = now.purchase.payment
    if payment is None:
        return _sign(reading)
    if now.purchase.unsettled is not None and reading.refused is None:
        if now.doubts >= MOST_DOUBTS or now.patience_over:
            return Stop(unknown(now.purchase, reading.word or "it asks for money again"), final=False)
        return Send(reading.retry_after if reading.retry_after is not None else pause(now.doubts))
    if payment.fate is Fate.SETTLED:
        return Stop(unknown(now.purchase, "it was paid and asks for money again"), final=False)
    # From here on the last payment is one of which nothing will come.
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


def _sign(reading: Asked) -> Step:
    if reading.asking is None:
        return Stop(reading.fault or OfferRefused(), final=False)
    return Sign(reading.asking)


def _on_failed(reading: Failed, now: Situation) -> Step:
    if reading.retryable and now.tries < MOST_TRIES:
        return Send(reading.retry_after if reading.retry_after is not None else 1.0)
    if reading.correctable:
        return _wants_another_input(reading, now)
    details = {str(key): value for key, value in reading.details.items() if key not in _OURS}
    problem = TaskFailed(reading.message or None, code=reading.code, **details)
    return Stop(problem, final=not reading.retryable)


def _wants_another_input(reading: Failed | Refused, now: Situation) -> Stop:
    """The contract and the payment that is out stay good for a corrected input."""
    details = {str(key): value for key, value in reading.details.items() if key not in _OURS}
    details["ref"] = now.purchase.ref
    advice = "Run it again with the input corrected: the same contract and payment go on."
    problem = TaskFailed(reading.message or None, code=reading.code, advice=advice, **details)
    return Stop(problem, final=False, other_input=True)


def _on_refused(reading: Refused, now: Situation) -> Step:
    if reading.code == "CONTRACT_NOT_FOUND" and now.purchase.payment and not now.registered_again:
        return Register()
    if reading.code == "TASK_NOT_FOUND":
        return Send(pause(now.tries)) if now.tries < MOST_DOUBTS else _refusal(reading, now)
    if reading.code == INVALID_INPUT and now.purchase.unsettled is not None:
        return _wants_another_input(reading, now)
    return _refusal(reading, now)


def _refusal(reading: Refused, now: Situation) -> Step:
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


def _on_unsure(reading: Unsure, now: Situation) -> Step:
    silent = reading.retry_after is None and now.purchase.payment is None and now.unsure >= MOST_SILENT
    if not now.patience_over and not silent:
        return Send(
            pause(now.unsure) if reading.retry_after is None else min(reading.retry_after, LONGEST_PAUSE)
        )
    if now.purchase.unsettled is not None:
        return Stop(unknown(now.purchase, reading.why), final=False)
    return Stop(WorkerUnreachable(f"the worker does not answer ({plain(reading.why, 80)})"), final=False)


def unknown(purchase: Purchase, why: str) -> PaymentUnknown:
    payment = purchase.payment
    details: dict[str, Any] = {"ref": purchase.ref, "why": plain(why, 200)}
    if payment is not None:
        details |= {"amount": payment.signed.amount, "valid_before": payment.signed.valid_before_s}
    return PaymentUnknown(**details)


def pause(times: int) -> float:
    return _PAUSES[min(times, len(_PAUSES) - 1)]


# Names that `Problem` takes itself, which a stranger's details must not set.
_OURS = frozenset({"message", "code", "status", "advice", "retry_after", "self"})
