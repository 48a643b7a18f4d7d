"""Errors a seeker can encounter, and what each means for the money.

OfferRefused        nothing was signed: the 402 does not ask for what was agreed
ContractRefused     nothing was signed: the worker's document is not the one we drafted
SpendCapReached     nothing was signed: it would exceed the cap
WorkerRefused       the worker refused before it accepted a payment
PaymentRefused      the worker refused with proof that no money moved
PaymentUnknown      a payment is outstanding, outcome unknown: it is kept and only ever re-sent
TaskFailed          the work failed; `charged` in its details says whether it cost money
WorkerUnreachable   no response, and no payment is outstanding
CertificateUntrusted  the server does not prove to be the worker; nothing was sent to it
AnswerUnreadable    the response violates the protocol
ChecksumMismatch    a deliverable does not match the worker's description
ReceiptInvalid      the receipt does not prove the payment
PurchaseBusy        another process is working on the same purchase
HostNotAllowed      nothing was sent: the purse's rules do not name that host
SpendingDeclined    nothing was signed: nobody agreed to a larger payment
AlreadyBought       this key's purchase is paid; nothing more was signed
"""

from __future__ import annotations

from typing import Any

from worker.core.errors import Problem


def plain(text: Any, most: int = 300) -> str:
    """Untrusted text without characters that could move a terminal's cursor or hide something."""
    shown = "".join(ch if ch.isprintable() else " " for ch in str(text)[: most + 1])
    return shown if len(shown) <= most else shown[:most] + "..."


def particulars(problem: Problem) -> list[str]:
    """The details of a problem that a person needs, one per line."""
    words = [
        "field",
        "expected",
        "received",
        "reason",
        "why",
        "charged",
        "retryable",
        "ref",
        "settled_at",
        "delivered_at",
        "transaction",
    ]
    return [f"  {word}: {_said(problem.details[word])}" for word in words if word in problem.details]


def _said(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return plain(", ".join(str(each) for each in value))
    return plain(value)


class OfferRefused(Problem):
    code, status = "OFFER_REFUSED", 402
    message = "the worker's offer differs from the contract"
    advice = "No payment was signed. Ask the worker why, or hire another."


class ContractRefused(Problem):
    code, status = "CONTRACT_REFUSED", 422
    message = "the worker signed a different contract than the draft"
    advice = "You signed nothing and cannot be charged."


class SpendCapReached(Problem):
    code, status = "SPEND_CAP_REACHED", 402
    message = "the payment would exceed the spending cap"
    advice = "No payment was signed. Raise the cap, or wait until earlier payments have expired."


class WorkerRefused(Problem):
    code, status = "WORKER_REFUSED", 422
    message = "the worker refused"
    advice = "Change the named field and retry."


class PaymentRefused(Problem):
    code, status = "PAYMENT_REFUSED", 402
    message = "the payment was refused and no money moved"
    advice = "Fix the cause (often the balance) and retry."


class PaymentUnknown(Problem):
    code, status = "PAYMENT_UNKNOWN", 503
    message = "the outcome of a payment is unknown"
    advice = "Run the same command again: it sends the identical payment, which can be settled only once."


class TaskFailed(Problem):
    code, status = "TASK_FAILED", 500
    message = "the work failed"
    advice = "See the details; `charged` says whether you paid."


class WorkerUnreachable(Problem):
    code, status = "WORKER_UNREACHABLE", 503
    message = "the worker does not answer"
    advice = "No payment was sent. Try again later."


class CertificateUntrusted(WorkerUnreachable):
    code, status = "CERTIFICATE_UNTRUSTED", 502
    message = "the worker's certificate is not trusted"
    advice = (
        "Nothing was sent. Check the address; for an authority of your own set SSL_CERT_FILE to its file."
    )


class AnswerUnreadable(Problem):
    code, status = "ANSWER_UNREADABLE", 502
    message = "the worker's response does not follow the protocol"
    advice = "Check the address; tell the worker's operator."


class NoManifest(AnswerUnreadable):
    message = "no manifest at this address"


class ChecksumMismatch(Problem):
    code, status = "CHECKSUM_MISMATCH", 502
    message = "a deliverable does not match its size or hash"
    advice = "Fetch it again; if it stays wrong, keep the receipt and tell the worker's operator."


class ReceiptInvalid(Problem):
    code, status = "RECEIPT_INVALID", 502
    message = "the receipt does not prove the payment"
    advice = "The work was delivered. Keep the answer and ask the worker for a proper receipt."


class PurchaseBusy(Problem):
    code, status = "PURCHASE_BUSY", 409
    message = "another process is working on this purchase"
    advice = "Wait until it has ended."


class HostNotAllowed(Problem):
    code, status = "HOST_NOT_ALLOWED", 403
    message = "this purse may not pay that host"
    advice = "Nothing was sent. Add the host to the purse's hosts if it is meant."


class SpendingDeclined(Problem):
    code, status = "SPENDING_DECLINED", 403
    message = "nobody agreed to this payment"
    advice = "Nothing was signed. Ask whoever owns the purse before you try again."


class AlreadyBought(Problem):
    code, status = "ALREADY_BOUGHT", 409
    message = "this key's purchase is paid, and the seller does not answer it again"
    advice = "Use the answer that you received. A new key is a new purchase, and is paid for again."
    charged = True
