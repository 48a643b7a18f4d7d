"""What can stand in a seeker's way, and what each of them means for the money.

OfferRefused        nothing was signed: the 402 does not ask for what was agreed
ContractRefused     nothing was signed: the worker's document is not the one we drafted
SpendCapReached     nothing was signed: it would go beyond the cap
WorkerRefused       the worker said no before it took anything
PaymentRefused      the worker said, in a way that can be believed, that no money moved
PaymentUnknown      a payment is out and its outcome is not known: it is kept, and only ever sent again
TaskFailed          the work failed; `charged` in its details says whether it cost money
WorkerUnreachable   nobody answered, and no payment is out
AnswerUnreadable    an answer that is not what the protocol says
ChecksumMismatch    a deliverable is not what the worker said it is
ReceiptInvalid      the receipt does not prove the payment
PurchaseBusy        another process is at the same purchase
"""

from __future__ import annotations

from typing import Any

from worker.errors import Problem


def plain(text: Any, most: int = 300) -> str:
    """A stranger's text without what could move a terminal's cursor or hide something."""
    shown = "".join(ch if ch.isprintable() else " " for ch in str(text)[: most + 1])
    return shown if len(shown) <= most else shown[:most] + "..."


def particulars(problem: Problem) -> list[str]:
    """What a person needs of a problem's details, a line each."""
    words = ("field", "expected", "received", "reason", "why", "charged", "retryable", "ref")
    return [f"  {word}: {_said(problem.details[word])}" for word in words if word in problem.details]


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return plain(", ".join(str(each) for each in value))
    return plain(value)


class OfferRefused(Problem):
    code, status = "OFFER_REFUSED", 402
    message = "the worker asks for something else than what was agreed"
    advice = "No payment was signed. Ask the worker why, or hire another."


class ContractRefused(Problem):
    code, status = "CONTRACT_REFUSED", 422
    message = "the worker did not sign what was drafted"
    advice = "Nothing was signed on our side, and nothing can be charged."


class SpendCapReached(Problem):
    code, status = "SPEND_CAP_REACHED", 402
    message = "the payment would go beyond the cap"
    advice = "No payment was signed. Raise the cap, or wait until earlier payments cannot be taken any more."


class WorkerRefused(Problem):
    code, status = "WORKER_REFUSED", 422
    message = "the worker refused"
    advice = "Change what it names."


class PaymentRefused(Problem):
    code, status = "PAYMENT_REFUSED", 402
    message = "the payment was refused and no money moved"
    advice = "Mend the reason (often the balance), then hire again."


class PaymentUnknown(Problem):
    code, status = "PAYMENT_UNKNOWN", 503
    message = "a payment is out and nobody has said what became of it"
    advice = "Run the same again: it sends the identical payment, which can be taken only once."


class TaskFailed(Problem):
    code, status = "TASK_FAILED", 500
    message = "the work failed"
    advice = "Read the details; `charged` says whether it cost money."


class WorkerUnreachable(Problem):
    code, status = "WORKER_UNREACHABLE", 503
    message = "the worker does not answer"
    advice = "No payment is out. Try again later."


class AnswerUnreadable(Problem):
    code, status = "ANSWER_UNREADABLE", 502
    message = "the worker's answer is not what the protocol says"
    advice = "Check the address; tell the worker's operator."


class ChecksumMismatch(Problem):
    code, status = "CHECKSUM_MISMATCH", 502
    message = "a deliverable is not what the worker said it is"
    advice = "Fetch it again; if it stays wrong, keep the receipt and tell the worker's operator."


class ReceiptInvalid(Problem):
    code, status = "RECEIPT_INVALID", 502
    message = "the receipt does not prove the payment"
    advice = "The work was delivered. Keep the answer and ask the worker for a proper receipt."


class PurchaseBusy(Problem):
    code, status = "PURCHASE_BUSY", 409
    message = "another process is at this purchase"
    advice = "Wait until it has ended."
