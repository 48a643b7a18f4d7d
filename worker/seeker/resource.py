"""Pays for any x402 resource, without a contract.

Such a server keeps no record to ask about a payment. So once a request with a payment got no response, later
refusals of it are not believed, and a person must decide on another payment.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urljoin

from worker.core.errors import BadRequest
from worker.seeker.answers import (
    LONGEST_PAUSE,
    FailedTask,
    PaymentAsked,
    payment_response,
    read,
    settled,
)
from worker.seeker.checks import SigningLimits, choose
from worker.seeker.client import Seeker
from worker.seeker.demand import PaymentDemands, read_asking
from worker.seeker.http import ConnectionDropped, HttpAnswer, checked_url, host_of, origin_of
from worker.seeker.next_step import MOST_DOUBTS, pause, unknown
from worker.seeker.problems import AlreadyBought, PaymentRefused, WorkerUnreachable, plain
from worker.seeker.purchases import PaymentFate, Purchase, PurchaseEnding
from worker.x402.facilitator_answers import REFUSED_CODES

_UNSURE = frozenset({408, 425, 429})
# A browser would turn a moved POST into a GET; only these keep it as it is.
_SAME_METHOD = frozenset({307, 308})
_MOVED = frozenset({301, 302, 303}) | _SAME_METHOD
MOST_MOVES = 5


@dataclass(frozen=True, slots=True)
class PaidAnswer:
    """A response, and what it says of the payment that bought it; None if none was asked for."""

    answer: HttpAnswer
    payment: Mapping[str, Any] | None
    amount: int = 0
    ref: str = ""

    @classmethod
    def of(cls, answer: HttpAnswer, amount: int, ref: str) -> PaidAnswer:
        return cls(answer, payment_response(answer), amount, ref)

    @property
    def transaction(self) -> str:
        return settled(self.payment)


def pay(
    seeker: Seeker,
    url: str,
    *,
    method: str = "GET",
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
    key: str = "",
) -> PaidAnswer:
    """Fetch a resource and pay if asked; repeating the call re-sends an outstanding payment.

    With a `key` the purchase stays the same even after it succeeded: it is never paid for again.
    """
    address = checked_url(url, plain_http=seeker.limits.plain_http)
    # A resource is exactly its address, including a trailing slash.
    address = url if url.rstrip("/") == address else address
    ref = _ref(method, address, body, seeker.wallet.address, key)
    with seeker.purchases.hold(ref):
        known = seeker.purchases.find(ref)
        if known is not None and known.body != body:
            raise BadRequest(
                "this key was already used for another input",
                code="IDEMPOTENCY_CONFLICT",
                field="key",
                advice="Send the first input again, or give the new purchase a key of its own.",
            )
        if known is not None and known.ending is PurchaseEnding.DONE and key:
            return _recall(seeker, known, dict(headers or {}))
        if known is None or known.ending is PurchaseEnding.DONE:
            known = Purchase(ref=ref, url=address, method=method, body=body)
        return _Payer(seeker, replace(known, ending=PurchaseEnding.OPEN), dict(headers or {})).run()


def _recall(seeker: Seeker, purchase: Purchase, headers: dict[str, str]) -> PaidAnswer:
    """Repeats the identical request of a completed purchase for its answer, without another payment."""
    payment = purchase.payment
    if payment is not None:
        headers[payment.signed.header] = payment.signed.value
    body = None if purchase.body is None else purchase.body.encode()
    try:
        answer = seeker.http.send(purchase.method, purchase.url, body=body, headers=headers)
    except ConnectionDropped as dropped:
        raise WorkerUnreachable("the resource does not answer") from dropped
    if answer.status in (401, 402):
        raise AlreadyBought(ref=purchase.ref)
    return PaidAnswer.of(answer, 0, purchase.ref)


class _Payer:
    """One run against one resource."""

    def __init__(self, seeker: Seeker, purchase: Purchase, headers: dict[str, str]) -> None:
        self._seeker = seeker
        self._purchase = purchase
        self._headers = headers
        # A process that stored this payment without a response may have sent it.
        self._in_doubt = purchase.unsettled is not None
        self._unsure = self._refusals = self._moves = 0
        self._patience_ends = time.monotonic() + seeker.limits.patience_s

    def run(self) -> PaidAnswer:
        while True:
            paying = self._purchase.unsettled
            answer = self._send()
            if paying is None:
                if answer is None:
                    raise WorkerUnreachable("the resource does not answer")
                if (moved := self._moved(answer)) is not None:
                    self._purchase = replace(self._purchase, url=moved)
                    continue
                if answer.status != 402:
                    return PaidAnswer.of(answer, 0, self._purchase.ref)
                self._sign(read_asking(answer.headers, answer.body))
                continue
            if answer is not None and (settled(payment_response(answer)) or _final(answer)):
                return self._finish(answer, paying.signed.amount)
            if answer is not None and answer.status == 402:
                self._on_refusal(answer)
            else:
                self._on_silence(answer)

    def _send(self) -> HttpAnswer | None:
        payment = self._purchase.unsettled
        headers = dict(self._headers)
        if payment is not None:
            headers[payment.signed.header] = payment.signed.value
        body = None if self._purchase.body is None else self._purchase.body.encode()
        try:
            return self._seeker.http.send(
                self._purchase.method, self._purchase.url, body=body, headers=headers
            )
        except ConnectionDropped:
            return None

    def _moved(self, answer: HttpAnswer) -> str | None:
        """Where an unpaid request was redirected to, if that is still the seller's own address."""
        location = answer.headers.get("location")
        if not location or answer.status not in (_MOVED if self._purchase.method == "GET" else _SAME_METHOD):
            return None
        target = urljoin(self._purchase.url, location)
        if origin_of(target) != origin_of(self._purchase.url) or self._moves >= MOST_MOVES:
            return None
        checked_url(target, plain_http=self._seeker.limits.plain_http)
        self._moves += 1
        return target

    def _sign(self, asking: PaymentDemands) -> None:
        seeker, purchase = self._seeker, self._purchase
        now_s = int(seeker.now())
        limits = seeker.limits
        agreed = SigningLimits(
            host=host_of(purchase.url),
            most=limits.most - purchase.exposed(now_s),
            longest_s=limits.longest_window_s,
            network=limits.network,
        )
        chosen = choose(asking.demands, agreed)
        seeker.tell("asked", {"amount": chosen.demand.amount, "pay_to": chosen.demand.pay_to})
        seeker.approve(chosen.demand.amount, host_of(purchase.url), purchase.ref)
        self._keep(purchase.with_payment(seeker.wallet.sign_payment(chosen.demand, chosen.network, now_s)))

    def _on_silence(self, answer: HttpAnswer | None) -> None:
        """No response, or a server error: the payment may have been taken."""
        self._in_doubt = True
        self._unsure += 1
        why = "no answer" if answer is None else f"status {answer.status}"
        self._seeker.tell("unsure", {"why": why, "paying": True})
        if time.monotonic() > self._patience_ends:
            raise unknown(self._purchase, why)
        wait = pause(self._unsure) if answer is None or answer.retry_after is None else answer.retry_after
        self._seeker.sleep(min(wait, LONGEST_PAUSE))

    def _on_refusal(self, answer: HttpAnswer) -> None:
        code, sure = _refusal(answer)
        if sure and not self._in_doubt:
            self._keep(
                replace(self._purchase.with_fate(PaymentFate.REFUSED, code), ending=PurchaseEnding.FAILED)
            )
            raise PaymentRefused(
                f"the payment was refused ({plain(code, 80)}) and no money moved", reason=plain(code, 80)
            )
        self._in_doubt = True
        self._refusals += 1
        if self._refusals > MOST_DOUBTS or time.monotonic() > self._patience_ends:
            raise unknown(self._purchase, code or "it asks for payment again")
        self._seeker.sleep(pause(self._refusals))

    def _finish(self, answer: HttpAnswer, amount: int) -> PaidAnswer:
        if task_address(self._purchase.url, answer) is None:
            self._keep(ended(self._purchase, answer))
        # Unfinished work is polled; until it ends, a repeated call re-sends this payment.
        return PaidAnswer.of(answer, amount, self._purchase.ref)

    def _keep(self, purchase: Purchase) -> None:
        self._purchase = purchase
        self._seeker.purchases.save(purchase)


def ended(purchase: Purchase, answer: HttpAnswer) -> Purchase:
    """The purchase after its last answer: done, or open for another payment if it failed uncharged."""
    if settled(payment_response(answer)):
        return replace(purchase.with_fate(PaymentFate.SETTLED), ending=PurchaseEnding.DONE)
    failure = read(answer) if _task_failed(answer) else None
    if isinstance(failure, FailedTask) and failure.details.get("charged") is False:
        refused = purchase.with_fate(PaymentFate.REFUSED, failure.code)
        return replace(refused, ending=PurchaseEnding.FAILED)
    return replace(purchase, ending=PurchaseEnding.DONE)


def task_address(url: str, answer: HttpAnswer) -> str | None:
    """The poll URL of accepted work (202), if it is at the seller's own address."""
    if answer.status != 202:
        return None
    named = (answer.document() or {}).get("poll_url") or answer.headers.get("location")
    return named if isinstance(named, str) and origin_of(named) == origin_of(url) else None


def _final(answer: HttpAnswer) -> bool:
    """Whether this response to a paid request is as final as such a server's responses get."""
    settles = answer.status < 500 and answer.status != 402 and answer.status not in _UNSURE
    return settles or _task_failed(answer)


def _task_failed(answer: HttpAnswer) -> bool:
    """Whether the answer is a worker's record of a task that failed."""
    document = answer.document() or {}
    return document.get("status") == "failed" and isinstance(document.get("task_id"), str)


def _refusal(answer: HttpAnswer) -> tuple[str, bool]:
    """The code of a refusal, and whether it proves that nothing moved."""
    asked = read(answer)
    if not isinstance(asked, PaymentAsked):
        return "", False
    if asked.refused is not None:
        return asked.refused, True
    # Servers refuse at verification with only the error in a new demand.
    return asked.word, payment_response(answer) is None and asked.word in REFUSED_CODES


def _ref(method: str, url: str, body: str | None, payer: str, key: str = "") -> str:
    """The purchase's name on disk: derived from its key, or else from exactly this request."""
    named = f"key:{key}" if key else body or ""
    parts = "\n".join([method.upper(), url, payer.lower(), named])
    return hashlib.sha256(f"resource:{parts}".encode()).hexdigest()[:16]
