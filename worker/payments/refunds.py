"""The operator's refunds: owe one, or try a refused one again."""

from __future__ import annotations

from dataclasses import dataclass

from worker.core.amounts import to_text
from worker.core.errors import Conflict, NotFound
from worker.payments.ledger import Ledger
from worker.payments.leg import LegKey, LegKind, LegState
from worker.payments.leg_ledger import LegLedger

REASONS = ("quality_rejected", "customer_request", "overcharge", "duplicate_payment", "other")


@dataclass(frozen=True)
class Refunds:
    """Only queues: the clock signs and sends what is owed."""

    ledger: Ledger
    leg_books: LegLedger

    def owe(self, id: str, number: int | None, amount: int | None, reason: str) -> str:
        """Queues a refund and says so; without an amount, of all that is left, also of a refused refund."""
        money = self.ledger.money(id)
        if money is None:
            raise NotFound(f"execution {id[:64]} has no money")
        number = number or money.paid
        if not number:
            raise Conflict("nothing was paid, so nothing can be refunded")
        status, detail = self.leg_books.owe(id, number, amount, reason)
        if status == "under_way" and amount is None:
            return self.retry(LegKey(LegKind.REFUND, id, number))
        reasons = {
            "none": "there is no such payment",
            "open": "the execution has not ended: cancel it first",
            "unsettled": f"the payment is {detail}, not settled",
            "under_way": f"a refund of this payment is {detail}",
        }
        if status == "above":
            raise Conflict(f"at most {to_text(int(detail))} USDC of this payment can be refunded")
        if status != "due":
            raise Conflict(reasons[status])
        return f"{to_text(int(detail))} USDC refund queued"

    def retry(self, leg: LegKey) -> str:
        """Queues a refused leg again."""
        status = self.leg_books.retry(leg)
        if status != "due":
            found = self.leg_books.get(leg)
            state = found.state if found else LegState.DUE
            raise Conflict(f"this leg is {state}; only a refused or expired leg can be retried")
        return f"{leg.member} will be retried with the same nonce"
