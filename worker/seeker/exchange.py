"""What an answer means and what to do next: the part of hiring that must never be wrong. Pure functions.

A payment is signed when a 402 asks for one and none is out. From then on the identical payment is sent
until somebody says what became of it; another is signed only after an answer that says, in a way that
can be believed, that nothing moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.errors import BadRequest, Problem
from worker.payments.headers import PAYMENT_RESPONSE, X_PAYMENT_RESPONSE, decode
from worker.payments.outcomes import REFUSED_CODES
from worker.seeker.demand import Asking, read_asking
from worker.seeker.drawer import Fate, Purchase
from worker.seeker.http import Answer
from worker.seeker.problems import (
    OfferRefused,
    PaymentRefused,
    PaymentUnknown,
    TaskFailed,
    WorkerRefused,
    WorkerUnreachable,
    plain,
)

# Our worker says this when the chain shows that an authorization was cancelled or has run out.
CANNOT_LAND = "authorization_cannot_land"
# Refusals that a fresh signature mends by itself: the window was too short, or is over.
STALE = frozenset(
    {
        CANNOT_LAND,
        "invalid_exact_evm_payload_authorization_valid_before",
        "invalid_exact_evm_payload_authorization_valid_after",
    }
)
# Statuses after which the request may or may not have been acted on.
_UNSURE = frozenset({408, 425, 429})
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LONGEST_PAUSE = 60.0
# How often a refusal that cannot be believed is heard before a person is asked.
MOST_DOUBTS = 3
# How often nobody answers before it is given up, while no payment is out.
MOST_SILENT = 4
# More free attempts than any contract grants.
MOST_TRIES = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """402. `refused` is the code if the answer surely says that our payment moved nothing.

    Some servers refuse a payment without asking anew: then there is no `asking`, and `fault` says why.
    """

    asking: Asking | None
    refused: str | None = None
    word: str = ""
    retry_after: float | None = None
    fault: OfferRefused | None = None


@dataclass(frozen=True, slots=True)
class Working:
    """Under way. `wants_request`: it waits for a request of ours, a poll will not move it."""

    task_id: str
    after: float
    body: Mapping[str, Any]
    wants_request: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    body: Mapping[str, Any]
    payment: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The task has failed; `retryable` if the same request starts a free next attempt."""

    code: str
    message: str
    details: Mapping[str, Any]
    retryable: bool
    task_id: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal that concerns the request itself."""

    status: int
    code: str
    message: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unsure:
    """No answer, or none that says anything."""

    why: str
    retry_after: float | None = None


Reading = Asked | Working | Done | Failed | Refused | Unsure


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
    """Nothing more can be done here. `final`: nor later."""

    problem: Problem
    final: bool


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


def read(answer: Answer) -> Reading:
    """The meaning of an answer to `POST /execute` or `GET /tasks/...`."""
    document = answer.document() or {}
    if answer.status == 402:
        return _asked(answer)
    state = document.get("status")
    if state == "completed" and answer.status == 200:
        return Done(document, payment_response(answer))
    if state in ("pending", "partial") and answer.status in (200, 202):
        return _working(answer, document)
    error = document.get("error")
    error = error if isinstance(error, dict) else {}
    code, message = plain(error.get("code") or f"HTTP_{answer.status}", 80), plain(error.get("message") or "")
    details = error.get("details")
    details = details if isinstance(details, dict) else {}
    if state == "failed" and isinstance(document.get("task_id"), str):
        return Failed(
            code,
            message,
            details,
            retryable=details.get("retryable") is True and code != "INVALID_INPUT",
            task_id=document["task_id"],
            retry_after=answer.retry_after,
        )
    if answer.status >= 500 or answer.status in _UNSURE:
        return Unsure(code if error else f"status {answer.status}", answer.retry_after)
    if answer.status < 400:
        return Unsure("an answer that says nothing", answer.retry_after)
    return Refused(answer.status, code, message, details)


def payment_response(answer: Answer) -> dict[str, Any] | None:
    """What the answer says of the payment, in either dialect."""
    for name in (PAYMENT_RESPONSE, X_PAYMENT_RESPONSE):
        header = answer.headers.get(name.lower())
        if header is not None:
            try:
                return decode(header, name)
            except BadRequest:
                return None
    return None


def settled(response: Mapping[str, Any] | None) -> str:
    """The transaction of a payment that was taken, or nothing."""
    if response is None or response.get("success") is not True:
        return ""
    transaction = response.get("transaction")
    return transaction if isinstance(transaction, str) else ""


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
    details = {str(key): value for key, value in reading.details.items() if key not in _OURS}
    problem = TaskFailed(reading.message or None, code=reading.code, **details)
    return Stop(problem, final=not reading.retryable)


def _on_refused(reading: Refused, now: Situation) -> Step:
    if reading.code == "CONTRACT_NOT_FOUND" and now.purchase.payment and not now.registered_again:
        return Register()
    if reading.code == "TASK_NOT_FOUND":
        return Send(pause(now.tries)) if now.tries < MOST_DOUBTS else _refusal(reading, now)
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


def _asked(answer: Answer) -> Asked:
    asking, fault = None, None
    try:
        asking = read_asking(answer.headers, answer.body)
    except OfferRefused as refusal:
        fault = refusal
    response = payment_response(answer)
    word, sure = asking.error if asking else "", False
    if response is not None and response.get("success") is False:
        reason = response.get("errorReason")
        word = reason if isinstance(reason, str) else ""
        sure = not response.get("transaction") and (word in REFUSED_CODES or word == CANNOT_LAND)
    return Asked(asking, word if sure else None, word, answer.retry_after, fault)


def _working(answer: Answer, document: Mapping[str, Any]) -> Working:
    task_id = document.get("task_id")
    own = document.get("poll_after_ms")
    after = answer.retry_after
    if after is None:
        after = own / 1000 if isinstance(own, int | float) and not isinstance(own, bool) else 1.0
    return Working(
        task_id=task_id if isinstance(task_id, str) else "",
        after=min(max(after, 0.1), LONGEST_PAUSE),
        body=document,
        wants_request=document.get("phase") in ("offered", "payment_due"),
    )


# Names that `Problem` takes itself, which a stranger's details must not set.
_OURS = frozenset({"message", "code", "status", "advice", "retry_after", "self"})
