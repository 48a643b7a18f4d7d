"""A bought execution: its record, its payments, and the 402 when a payment fails."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from worker.capabilities.declare import Capability
from worker.contracts.book import Contract
from worker.core.canonical import canonical, parse
from worker.core.errors import Conflict, Problem
from worker.core.states import Phase
from worker.engine.record import Execution
from worker.hiring.finished_tasks import is_final
from worker.hiring.own_calls import OwnCalls
from worker.payments.ledger_reader import Reading
from worker.payments.payment import MOST_PAYMENTS, MOST_PAYMENTS_SEALED, ExecutionMoney, PaymentState
from worker.x402.offer import Offer, OfferMismatch
from worker.x402.receipts import failed_response
from worker.x402.wire import PaymentPayload

# Phases that wait for a payment while none can be in progress.
AWAITING = frozenset({Phase.OFFERED, Phase.PAYMENT_DUE})


class PaymentRequired(Problem):
    """402: the offer, and why the payment sent did not match it."""

    code, status = "PAYMENT_REQUIRED", 402
    message = "payment is required"
    advice = "Sign a payment for the offer in PAYMENT-REQUIRED and send the same request again."

    def __init__(self, offer: Offer, error: str = "payment required", **details: Any) -> None:
        response: Mapping[str, Any] | None = details.pop("response", None)
        super().__init__(error, **details)
        self.offer = offer
        self.response = response

    @classmethod
    def mismatched(cls, offer: Offer, refusal: OfferMismatch, payment: PaymentPayload) -> PaymentRequired:
        """For a payment that does not match the offer; the facilitator was not called."""
        return cls(
            offer,
            refusal.reason,
            code=refusal.code,
            field=refusal.field,
            expected=refusal.expected,
            received=refusal.received,
            reason=refusal.reason,
            advice="Sign a new payment for the offer in PAYMENT-REQUIRED. You were not charged.",
            response=failed_response(refusal.reason, offer.network.caip2, payment.authorization.payer),
        )


def too_many_payments(**details: Any) -> Conflict:
    return Conflict(
        "too many payments of this contract failed",
        code="TOO_MANY_PAYMENTS",
        advice="Draft a new contract. You were not charged.",
        **details,
    )


class TaskRecord:
    """What the store has about a task, read when it is first needed."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    @classmethod
    def known(cls, reading: Reading) -> TaskRecord:
        return cls(lambda: reading)

    @cached_property
    def reading(self) -> Reading:
        return self._read()


@dataclass(frozen=True)
class Task:
    """An execution with its contract and its payments, as the hire door shows it.

    `replayed`: the answer is the recorded end. `paid_already`: the request carried a payment that is not
    needed. `first`: this request claimed the payment; `calls` are those that it has started.
    """

    id: str
    record: TaskRecord
    contract: Contract
    capability: Capability
    replayed: bool = False
    paid_already: bool = False
    first: bool = False
    calls: OwnCalls | None = None

    @property
    def execution(self) -> Execution:
        return self.record.reading.execution

    @property
    def money(self) -> ExecutionMoney:
        return self.record.reading.money

    @property
    def sequence(self) -> int:
        """Of the newest event."""
        return self.record.reading.sequence

    @property
    def final(self) -> bool:
        """Whether nothing that an answer shows can change any more."""
        return is_final(self.record.reading)

    @property
    def sealed(self) -> bool:
        return bool(self.execution.sealed_by)

    @property
    def parked(self) -> bool:
        """Whether an attempt failed and the seeker may request the next one."""
        return bool(self.execution.parked)

    @property
    def charged(self) -> bool | None:
        """Whether a payment was settled; None while the outcome of one is open."""
        states = {payment.state for payment in self.money.payments}
        if PaymentState.SETTLED in states:
            return True
        return None if states & {PaymentState.SETTLING, PaymentState.UNKNOWN} else False

    @property
    def under_way(self) -> bool:
        """Whether the task continues without the seeker and may still be charged."""
        return not (self.execution.state.terminal or self.parked or self.unpaid)

    @property
    def unpaid(self) -> bool:
        return self.execution.phase in AWAITING and not self.execution.state.terminal

    @property
    def pays_no_more(self) -> bool:
        """Whether so many of its payments have failed that no other one is accepted."""
        most = MOST_PAYMENTS_SEALED if self.sealed else MOST_PAYMENTS
        return len(self.money.payments) >= most

    def refusal(self, offer: Offer) -> Problem:
        """The answer of a task whose last payment failed: a 402 while another one would be accepted."""
        payment = self.money.payment()
        if payment is None:
            return PaymentRequired(offer)
        if self.pays_no_more:
            return too_many_payments(reason=payment.code)
        return PaymentRequired(
            offer,
            payment.code or "payment required",
            code="PAYMENT_SETTLEMENT_FAILED" if payment.calls else "PAYMENT_INVALID",
            reason=payment.code,
            response=failed_response(payment.code, offer.network.caip2, payment.payer),
        )


class TaskInput:
    """The task input as received: its bytes, and its value and digest on demand.

    Parsing costs much more than all checks before it, so it is deferred until needed.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.unreadable = False

    @classmethod
    def of(cls, value: Any) -> TaskInput:
        body = cls(canonical(value))
        body.value = value
        return body

    @cached_property
    def value(self) -> Any:
        try:
            return parse(self.raw)
        except Problem:
            self.unreadable = True
            raise

    @cached_property
    def digest(self) -> str:
        """Independent of the order of keys."""
        return hashlib.sha256(canonical(self.value)).hexdigest()

    @property
    def mark(self) -> bytes:
        """Stored in the record to recognize identical bytes; valid for this digest only."""
        return self._mark(self.digest)

    def same_as(self, execution: Execution) -> bool:
        """Whether this is the execution's input; the digest decides, equal bytes are a shortcut."""
        return execution.body == self._mark(execution.digest) or self.digest == execution.digest

    def _mark(self, digest: str) -> bytes:
        raw = hashlib.sha256(self.raw).hexdigest()
        return hashlib.sha256(f"{raw} {digest}".encode()).hexdigest()[:40].encode()
