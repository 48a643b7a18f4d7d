"""Records that payments have settled, and makes the answer that their payers get about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from worker.payments.answers import SettledAnswer
from worker.payments.checkpoints import Checkpoint
from worker.payments.known_payers import KnownPayers
from worker.payments.ledger import Ledger, SettledReply
from worker.payments.ledger_reader import Reading
from worker.payments.packed_payment import SentPayment
from worker.store.outage import insist, note
from worker.x402.receipts import Settlement, Sign, settled_text
from worker.x402.wire import PaymentPayload, payment_key, restore

log = structlog.get_logger()


@dataclass
class SettledPayments:
    """Must succeed once the money has moved: waits while the store is unavailable."""

    ledger: Ledger
    sign: Sign
    push: Callable[[str], None]
    resource_url: str
    known_payers: KnownPayers
    checkpoint: Checkpoint

    def record(
        self,
        id: str,
        number: int,
        transaction: str,
        how: str,
        payload: str,
        *,
        packed: SentPayment | None = None,
        contract_ref: str = "",
        by_claimant: bool = False,
        settle_ms: int | None = None,
        completed: Callable[[Reading], None] | None = None,
    ) -> SettledReply:
        """`packed`: what `pack` made; `completed` is called as soon as the work is recorded as completed."""
        payment = restore(payload)
        response = self._response(payment, transaction)
        self.checkpoint("before_settled")
        reply = insist(
            lambda: self.ledger.settled(
                id,
                number,
                transaction,
                response,
                how,
                packed=packed,
                contract_ref=contract_ref,
                by_claimant=by_claimant,
            ),
            "payment",
        )
        if reply.answer is SettledAnswer.COMPLETED:
            self.known_payers.paid(payment.authorization.payer)
            if completed is not None and reply.reading is not None:
                completed(reply.reading)
        log.info(
            "payment.settled",
            execution_id=id,
            how=how,
            transaction=transaction,
            status=reply.answer,
            settle_ms=settle_ms,
        )
        self.push_queued(id, reply.answer, reply.lane)
        return reply

    def pack(self, payload: str, requirements: str) -> SentPayment | None:
        """The short form in which a settled payment is kept; None if it is kept as it is."""
        try:
            if self.ledger.packs:
                return SentPayment(payload, requirements, payment_key(restore(payload))).packed()
        except Exception as error:  # the settlement call is under way, and its answer must be heard
            note(error, "payment.pack")
        return None

    def push_queued(self, id: str, status: str, lane: str) -> None:
        """Queues long work that begins with this step."""
        if status == "working" and lane == "queue":
            self.push(id)

    def response(self, payload: str, transaction: str) -> str:
        """The PAYMENT-RESPONSE of a payment that landed in this transaction."""
        return self._response(restore(payload), transaction)

    def _response(self, payment: PaymentPayload, transaction: str) -> str:
        settlement = Settlement(
            network=payment.accepted.network,
            resource_url=str((payment.resource or {}).get("url") or self.resource_url),
            payer=payment.authorization.payer,
            transaction=transaction,
            issued_at_s=int(time.time()),
        )
        return settled_text(settlement, self.sign)
