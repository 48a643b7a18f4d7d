"""The result of a hire: the completed task, what was paid, and whether the receipt proves it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from worker.seeker.answers import Completed, settled
from worker.seeker.checks import check_receipt
from worker.seeker.problems import ReceiptInvalid
from worker.seeker.purchases import Purchase
from worker.x402.networks import resolve_network
from worker.x402.receipts import OFFER_RECEIPT


@dataclass(frozen=True)
class Result:
    """A completed task. `doubt` says what is wrong with its receipt, if anything."""

    purchase: Purchase
    body: Mapping[str, Any]
    payment: Mapping[str, Any] | None
    receipt: Mapping[str, Any] | None
    doubt: ReceiptInvalid | None

    @property
    def deliverables(self) -> list[Mapping[str, Any]]:
        found = self.body.get("deliverables")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    @property
    def transaction(self) -> str:
        return settled(self.payment)


def result_of(
    purchase: Purchase, done: Completed, named_keys: Callable[[], Collection[str]] = tuple
) -> Result:
    """The result of a completed purchase; checks its receipt against the payment we signed."""
    receipt = _receipt(done)
    return Result(purchase, done.body, done.payment, receipt, _doubt(receipt, purchase, done, named_keys))


def _doubt(
    receipt: Any, purchase: Purchase, done: Completed, named_keys: Callable[[], Collection[str]]
) -> ReceiptInvalid | None:
    if purchase.payment is None or purchase.contract is None:
        return None
    signed, parties = purchase.payment.signed, purchase.contract["parties"]
    try:
        check_receipt(
            receipt,
            signer=parties["worker"]["wallet"],
            payer=parties["seeker"]["wallet"],
            network=resolve_network(signed.network),
            resource_url=signed.resource_url,
            transaction=settled(done.payment),
            named_keys=named_keys,
        )
    except ReceiptInvalid as fault:
        return fault
    return None


def _receipt(done: Completed) -> Mapping[str, Any] | None:
    found = done.body.get("receipt")
    if not isinstance(found, dict) and done.payment is not None:
        entry: Any = done.payment.get("extensions")
        for key in (OFFER_RECEIPT, "info", "receipt"):
            entry = entry.get(key) if isinstance(entry, dict) else None
        found = entry
    return found if isinstance(found, dict) else None
