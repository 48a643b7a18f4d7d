"""Paying for any x402 resource, without a contract.

Such a server keeps no record that could answer for a payment. So once a request with a payment has had
no answer, no refusal of it is believed any more, and another payment is a person's decision.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from worker.payments.outcomes import REFUSED_CODES
from worker.seeker.checks import Agreed, choose
from worker.seeker.client import Seeker
from worker.seeker.demand import Asking, read_asking
from worker.seeker.drawer import Ending, Fate, Purchase
from worker.seeker.exchange import MOST_DOUBTS, pause, unknown
from worker.seeker.http import Answer, Dropped, checked_url, host_of
from worker.seeker.problems import PaymentRefused, WorkerUnreachable, plain
from worker.seeker.readings import LONGEST_PAUSE, Asked, payment_response, read, settled

_UNSURE = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Paid:
    """An answer, and what it says of the payment that bought it; None where nothing was asked for."""

    answer: Answer
    payment: Mapping[str, Any] | None
    amount: int = 0

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
) -> Paid:
    """The answer of a resource, paid for if it asks; the same call again sends a payment that is out."""
    address = checked_url(url, plain_http=seeker.limits.plain_http)
    # A resource is exactly what its address says, the slash at its end included.
    address = url if url.rstrip("/") == address else address
    ref = _ref(method, address, body, seeker.wallet.address)
    with seeker.drawer.hold(ref):
        known = seeker.drawer.find(ref)
        if known is None or known.ending is Ending.DONE:
            known = Purchase(ref=ref, url=address, method=method, body=body)
        return _Payer(seeker, replace(known, ending=Ending.OPEN), dict(headers or {})).run()


class _Payer:
    """One run at one resource."""

    def __init__(self, seeker: Seeker, purchase: Purchase, headers: dict[str, str]) -> None:
        self._seeker = seeker
        self._purchase = purchase
        self._headers = headers
        # Whoever kept this payment and did not note an answer may have sent it.
        self._in_doubt = purchase.unsettled is not None
        self._unsure = self._refusals = 0
        self._patience_ends = time.monotonic() + seeker.limits.patience_s

    def run(self) -> Paid:
        while True:
            paying = self._purchase.unsettled
            answer = self._send()
            if paying is None:
                if answer is None:
                    raise WorkerUnreachable("the resource does not answer")
                if answer.status != 402:
                    return Paid(answer, payment_response(answer))
                self._sign(read_asking(answer.headers, answer.body))
                continue
            if answer is not None and (settled(payment_response(answer)) or _final(answer)):
                return self._finish(answer, paying.signed.amount)
            if answer is not None and answer.status == 402:
                self._on_refusal(answer)
            else:
                self._on_silence(answer)

    def _send(self) -> Answer | None:
        payment = self._purchase.unsettled
        headers = dict(self._headers)
        if payment is not None:
            headers[payment.signed.header] = payment.signed.value
        body = None if self._purchase.body is None else self._purchase.body.encode()
        try:
            return self._seeker.http.send(
                self._purchase.method, self._purchase.url, body=body, headers=headers
            )
        except Dropped:
            return None

    def _sign(self, asking: Asking) -> None:
        seeker, purchase = self._seeker, self._purchase
        now_s = int(seeker.now())
        limits = seeker.limits
        agreed = Agreed(
            host=host_of(purchase.url),
            most=limits.most - purchase.exposed(now_s),
            longest_s=limits.longest_window_s,
            network=limits.network,
        )
        chosen = choose(asking.demands, agreed)
        seeker.tell("asked", {"amount": chosen.demand.amount, "pay_to": chosen.demand.pay_to})
        self._keep(purchase.with_payment(seeker.wallet.sign_payment(chosen.demand, chosen.network, now_s)))

    def _on_silence(self, answer: Answer | None) -> None:
        """No answer, or a server's trouble: the payment may have been taken."""
        self._in_doubt = True
        self._unsure += 1
        why = "no answer" if answer is None else f"status {answer.status}"
        self._seeker.tell("unsure", {"why": why, "paying": True})
        if time.monotonic() > self._patience_ends:
            raise unknown(self._purchase, why)
        wait = pause(self._unsure) if answer is None or answer.retry_after is None else answer.retry_after
        self._seeker.sleep(min(wait, LONGEST_PAUSE))

    def _on_refusal(self, answer: Answer) -> None:
        code, sure = _refusal(answer)
        if sure and not self._in_doubt:
            self._keep(replace(self._purchase.with_fate(Fate.REFUSED, code), ending=Ending.FAILED))
            raise PaymentRefused(
                f"the payment was refused ({plain(code, 80)}) and no money moved", reason=plain(code, 80)
            )
        self._in_doubt = True
        self._refusals += 1
        if self._refusals > MOST_DOUBTS or time.monotonic() > self._patience_ends:
            raise unknown(self._purchase, code or "it asks for money again")
        self._seeker.sleep(pause(self._refusals))

    def _finish(self, answer: Answer, amount: int) -> Paid:
        response = payment_response(answer)
        purchase = self._purchase.with_fate(Fate.SETTLED) if settled(response) else self._purchase
        self._keep(replace(purchase, ending=Ending.DONE))
        return Paid(answer, response, amount)

    def _keep(self, purchase: Purchase) -> None:
        self._purchase = purchase
        self._seeker.drawer.save(purchase)


def _final(answer: Answer) -> bool:
    """Whether a request with a payment has been answered as far as such a server ever will."""
    return answer.status < 500 and answer.status != 402 and answer.status not in _UNSURE


def _refusal(answer: Answer) -> tuple[str, bool]:
    """The code of a refusal, and whether it surely means that nothing moved."""
    asked = read(answer)
    assert isinstance(asked, Asked)
    if asked.refused is not None:
        return asked.refused, True
    # Servers refuse at verification with nothing but the error in a fresh demand.
    return asked.word, payment_response(answer) is None and asked.word in REFUSED_CODES


def _ref(method: str, url: str, body: str | None, payer: str) -> str:
    parts = "\n".join([method.upper(), url, payer.lower(), body or ""])
    return hashlib.sha256(f"resource:{parts}".encode()).hexdigest()[:16]
