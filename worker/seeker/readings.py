"""What a worker's answer means. Pure functions over answers; what to do next is for `exchange`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.errors import BadRequest
from worker.payments.headers import PAYMENT_RESPONSE, X_PAYMENT_RESPONSE, decode
from worker.payments.outcomes import REFUSED_CODES
from worker.seeker.demand import Asking, read_asking
from worker.seeker.http import Answer
from worker.seeker.problems import OfferRefused, plain

# Our worker says this when the chain shows that an authorization was cancelled or has run out.
CANNOT_LAND = "authorization_cannot_land"
# The input is at fault: the worker's own word for it, before the work and in it.
INVALID_INPUT = "INVALID_INPUT"
LONGEST_PAUSE = 60.0
# Statuses after which the request may or may not have been acted on.
_UNSURE = frozenset({408, 425, 429})


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
    """The task has failed; `retryable` if the same request starts a free next attempt.

    `correctable`: a request with another input does, and the same one would fail again.
    """

    code: str
    message: str
    details: Mapping[str, Any]
    retryable: bool
    task_id: str
    retry_after: float | None = None
    correctable: bool = False


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
            retryable=details.get("retryable") is True and code != INVALID_INPUT,
            task_id=document["task_id"],
            retry_after=answer.retry_after,
            correctable=details.get("retryable") is True and code == INVALID_INPUT,
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
