"""An order: the work that one payment is to buy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from worker.capabilities.declare import Capability
from worker.contracts.book import Contract
from worker.contracts.terms import BEFORE_WORK
from worker.core.json import ascii_of
from worker.core.states import Lane
from worker.delivery.webhooks import WebhookTarget
from worker.engine.service import lane_of
from worker.hiring.conditions import SHORT_BYTES
from worker.hiring.task import TaskInput
from worker.payments.packed_payment import SentPayment
from worker.x402.offer import Offer
from worker.x402.wire import PaymentPayload, payment_key


@dataclass(frozen=True)
class Order:
    """The terms, who does the work on what, and a payment that fits the offer."""

    contract: Contract
    capability: Capability
    body: TaskInput
    offer: Offer
    payment: PaymentPayload
    hooks: Sequence[WebhookTarget] = ()

    @cached_property
    def sent(self) -> SentPayment:
        """What the facilitator is sent about the payment, and the claim stores of it."""
        return SentPayment(
            self.payment.stored(), ascii_of(self.offer.requirements()), payment_key(self.payment)
        )

    @property
    def payer(self) -> str:
        return self.payment.authorization.payer

    @property
    def proves_payer(self) -> bool:
        """Whether a key signed it: 65 bytes were checked before; a facilitator checks others."""
        return len(self.payment.signature_bytes) == 65

    @property
    def lane(self) -> Lane:
        return lane_of(self.capability)

    @property
    def begins_work(self) -> bool:
        """Whether the work begins once the payment is verified."""
        return self.contract.execution is None and self.contract.terms.settlement != BEFORE_WORK

    @property
    def is_short(self) -> bool:
        """Whether it is short work on a short input, with no promised latency."""
        promised = self.contract.terms.max_latency_ms is not None
        return self.lane is Lane.EXPRESS and len(self.body.raw) <= SHORT_BYTES and not promised
