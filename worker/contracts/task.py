"""An execution as its contract bought it: its record, its money, and how its payment is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.agents.declare import Capability
from worker.contracts.book import Contract
from worker.contracts.canonical import canonical
from worker.errors import Problem
from worker.executions.record import Execution
from worker.executions.states import Phase
from worker.payments.ledger import Money
from worker.payments.offer import Offer, Refusal
from worker.payments.receipts import failed_response
from worker.payments.wire import Payment

# Phases in which a payment is waited for and none can be under way.
AWAITING = frozenset({Phase.OFFERED, Phase.PAYMENT_DUE})


class PaymentRequired(Problem):
    """402: what is asked for, and why a payment that came was not it."""

    code, status = "PAYMENT_REQUIRED", 402
    message = "payment is required"
    advice = "Sign a payment for the offer in PAYMENT-REQUIRED and send the same request again."

    def __init__(self, offer: Offer, error: str = "payment required", **details: Any) -> None:
        response: Mapping[str, Any] | None = details.pop("response", None)
        super().__init__(error, **details)
        self.offer = offer
        self.response = response

    @classmethod
    def mismatched(cls, offer: Offer, refusal: Refusal, payment: Payment) -> PaymentRequired:
        """For a payment that is not what was asked for; nobody was asked about it."""
        return cls(
            offer,
            refusal.reason,
            code=refusal.code,
            field=refusal.field,
            expected=refusal.expected,
            received=refusal.received,
            reason=refusal.reason,
            advice="Sign a new payment for the offer in PAYMENT-REQUIRED; nothing was charged.",
            response=failed_response(refusal.reason, offer.network.caip2, payment.authorization.payer),
        )


@dataclass(frozen=True)
class Task:
    """An execution with its contract and its money, as the door shows it.

    `replayed`: the record answered with its end. `paid_already`: a payment came that is not needed.
    `first`: this very request claimed its payment.
    """

    execution: Execution
    money: Money
    contract: Contract
    capability: Capability
    replayed: bool = False
    paid_already: bool = False
    first: bool = False

    @property
    def sealed(self) -> bool:
        return bool(self.execution.raw.get("sealed_by"))

    @property
    def parked(self) -> bool:
        """Failed for now; the seeker may ask for the next attempt."""
        return bool(self.execution.raw.get("parked"))

    @property
    def unpaid(self) -> bool:
        return self.execution.phase in AWAITING and not self.execution.state.terminal

    def refusal(self, offer: Offer) -> PaymentRequired:
        """The 402 of a task whose last payment came to nothing."""
        payment = self.money.payment()
        if payment is None:
            return PaymentRequired(offer)
        return PaymentRequired(
            offer,
            payment.code or "payment required",
            code="PAYMENT_SETTLEMENT_FAILED" if payment.calls else "PAYMENT_INVALID",
            reason=payment.code,
            response=failed_response(payment.code, offer.network.caip2, payment.payer),
        )


@dataclass(frozen=True)
class Body:
    """The task input as it came: the value, and a digest that key order does not change."""

    value: Any
    digest: str

    @classmethod
    def of(cls, value: Any) -> Body:
        return cls(value, hashlib.sha256(canonical(value)).hexdigest())
