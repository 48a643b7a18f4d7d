"""Buys from any x402 seller without a contract, and polls work that takes longer than one request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.core.canonical import canonical
from worker.seeker.answers import LONGEST_PAUSE, settled
from worker.seeker.client import Seeker
from worker.seeker.http import ConnectionDropped, HttpAnswer
from worker.seeker.problems import WorkerUnreachable
from worker.seeker.resource import PaidAnswer, ended, pay, task_address

_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class PlainResult:
    """The last answer, its payment result, and the purchase's name on disk."""

    answer: HttpAnswer
    payment: Mapping[str, Any] | None
    amount: int
    ref: str
    url: str

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object in the answer; empty if there is none."""
        return self.answer.document() or {}

    @property
    def transaction(self) -> str:
        return settled(self.payment)

    @property
    def deliverables(self) -> list[Mapping[str, Any]]:
        found = self.body.get("deliverables")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def fetch(seeker: Seeker, url: str, *, key: str = "") -> PlainResult:
    """GET the resource and pay if asked."""
    paid = pay(seeker, url, key=key)
    return PlainResult(paid.answer, paid.payment, paid.amount, paid.ref, url)


def buy(seeker: Seeker, url: str, task_input: Any, *, key: str = "") -> PlainResult:
    """POST the input, pay if asked, and poll unfinished work. Repeating the call with its key is safe."""
    body = canonical(task_input).decode()
    paid = pay(seeker, url, method="POST", body=body, headers=_JSON, key=key)
    address = task_address(url, paid.answer)
    if address is None:
        return PlainResult(paid.answer, paid.payment, paid.amount, paid.ref, url)
    return _follow(seeker, paid, url, address)


def _follow(seeker: Seeker, paid: PaidAnswer, url: str, address: str) -> PlainResult:
    """Poll for free until the work has ended; send the task's token only to the seller's own address."""
    token = (paid.answer.document() or {}).get("task_token")
    headers = {"Authorization": f"Bearer {token}"} if isinstance(token, str) and token.isprintable() else {}
    until = time.monotonic() + seeker.limits.patience_s
    answer = paid.answer
    while True:
        if time.monotonic() > until:
            raise WorkerUnreachable(
                "the work goes on for longer than the patience of this call",
                advice="It may be paid. Make the same call again: it goes on with this purchase.",
            )
        seeker.sleep(min(answer.retry_after or 1.0, LONGEST_PAUSE))
        try:
            answer = seeker.http.send("GET", address, headers=headers)
        except ConnectionDropped:
            continue
        body = answer.document() or {}
        seeker.tell("working", {"phase": body.get("phase"), "body": body})
        if answer.status < 500 and answer.status != 429 and body.get("status") not in ("pending", "partial"):
            return _ended(seeker, paid, url, answer)


def _ended(seeker: Seeker, paid: PaidAnswer, url: str, answer: HttpAnswer) -> PlainResult:
    last = PaidAnswer.of(answer, paid.amount, paid.ref)
    with seeker.purchases.hold(paid.ref):
        purchase = seeker.purchases.find(paid.ref)
        if purchase is not None:
            seeker.purchases.save(ended(purchase, answer))
    return PlainResult(answer, last.payment, paid.amount, paid.ref, url)
