"""Classifies a worker's responses. Pure functions; `next_step` decides what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.core.errors import BadRequest
from worker.seeker.demand import PaymentDemands, read_asking
from worker.seeker.http import HttpAnswer
from worker.seeker.problems import OfferRefused, plain
from worker.x402.facilitator_answers import REFUSED_CODES
from worker.x402.headers import PAYMENT_RESPONSE, X_PAYMENT_RESPONSE, decode

# Sent by our worker when the chain shows that an authorization was cancelled or has expired.
CANNOT_LAND = "authorization_cannot_land"
# The input is invalid: the worker's own codes, before and during the work.
INVALID_INPUT = "INVALID_INPUT"
# The payment bought a result that is no longer stored: asking again changes nothing.
RESULT_EXPIRED = "RESULT_EXPIRED"
LONGEST_PAUSE = 60.0
# Statuses after which it is unknown whether the request was processed.
_UNSURE = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class PaymentAsked:
    """A 402. `refused` is the code if the response proves that our payment moved nothing.

    Some servers refuse a payment without a new offer: then `asking` is absent and `fault` says why.
    """

    asking: PaymentDemands | None
    refused: str | None = None
    word: str = ""
    retry_after: float | None = None
    fault: OfferRefused | None = None


@dataclass(frozen=True, slots=True)
class InProgress:
    """In progress. `wants_request`: it waits for a request of ours, a poll will not advance it."""

    task_id: str
    after: float
    body: Mapping[str, Any]
    wants_request: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    body: Mapping[str, Any]
    payment: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class FailedTask:
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
class RequestRefused:
    """A refusal of the request itself."""

    status: int
    code: str
    message: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NoClearAnswer:
    """No response, or an uninterpretable one. `message` is the worker's own if it gave a reason."""

    why: str
    retry_after: float | None = None
    message: str = ""


Reading = PaymentAsked | InProgress | Completed | FailedTask | RequestRefused | NoClearAnswer


def read(answer: HttpAnswer) -> Reading:
    """Classify a response to `POST /execute` or `GET /tasks/...`."""
    document = answer.document() or {}
    if answer.status == 402:
        return _asked(answer)
    state = document.get("status")
    if state == "completed" and answer.status == 200:
        return Completed(document, payment_response(answer))
    if state in ("pending", "partial") and answer.status in (200, 202):
        return _working(answer, document)
    error = document.get("error")
    error = error if isinstance(error, dict) else {}
    code, message = plain(error.get("code") or f"HTTP_{answer.status}", 80), plain(error.get("message") or "")
    details = error.get("details")
    details = details if isinstance(details, dict) else {}
    if state == "failed" and isinstance(document.get("task_id"), str):
        return FailedTask(
            code,
            message,
            details,
            retryable=details.get("retryable") is True and code != INVALID_INPUT,
            task_id=document["task_id"],
            retry_after=answer.retry_after,
            correctable=details.get("retryable") is True and code == INVALID_INPUT,
        )
    if answer.status >= 500 or answer.status in _UNSURE:
        return NoClearAnswer(code if error else f"status {answer.status}", answer.retry_after, message)
    if answer.status < 400:
        return NoClearAnswer("an empty answer", answer.retry_after)
    return RequestRefused(answer.status, code, message, details)


def payment_response(answer: HttpAnswer) -> dict[str, Any] | None:
    """The payment result in the response, in either dialect."""
    for name in (PAYMENT_RESPONSE, X_PAYMENT_RESPONSE):
        header = answer.headers.get(name.lower())
        if header is not None:
            try:
                return decode(header, name)
            except BadRequest:
                return None
    return None


def settled(response: Mapping[str, Any] | None) -> str:
    """The transaction of a payment that was settled, if any."""
    if response is None or response.get("success") is not True:
        return ""
    transaction = response.get("transaction")
    return transaction if isinstance(transaction, str) else ""


def _asked(answer: HttpAnswer) -> PaymentAsked:
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
    return PaymentAsked(asking, word if sure else None, word, answer.retry_after, fault)


def _working(answer: HttpAnswer, document: Mapping[str, Any]) -> InProgress:
    task_id = document.get("task_id")
    own = document.get("poll_after_ms")
    after = answer.retry_after
    if after is None:
        after = own / 1000 if isinstance(own, int | float) and not isinstance(own, bool) else 1.0
    return InProgress(
        task_id=task_id if isinstance(task_id, str) else "",
        after=min(max(after, 0.1), LONGEST_PAUSE),
        body=document,
        wants_request=document.get("phase") in ("offered", "payment_due"),
    )
