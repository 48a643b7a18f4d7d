"""The operator's two decisions about a payment of unknown outcome, each with its proof."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from worker.core.errors import Conflict, NotFound, Unavailable
from worker.core.evm import is_bytes32
from worker.payments.chain import ChainEvidence, ChainUnavailable
from worker.payments.evidence import look
from worker.payments.ledger import Ledger
from worker.payments.leg_ledger import CONFIRM_US
from worker.payments.payment import Payment, PaymentState
from worker.payments.retry_delays import SECOND_US
from worker.payments.settler import Settler
from worker.payments.unresolved import OPEN
from worker.x402.receipts import failed_response
from worker.x402.wire import restore


@dataclass(frozen=True)
class Resolutions:
    """Needs the chain, so it runs in the clock and on the command line."""

    ledger: Ledger
    settler: Settler
    chain: ChainEvidence | None
    now: Callable[[], int]

    def settled(self, id: str, number: int, transaction: str) -> str:
        """Records a payment as settled by a transaction that the chain confirms."""
        payment = self._payment(id, number)
        if payment.state is PaymentState.SETTLED:
            raise Conflict(
                f"the payment is settled already, in {payment.transaction or 'a transaction not known'}"
            )
        if not is_bytes32(transaction):
            raise Conflict("a transaction hash is 0x and 64 hex digits")
        if self.chain is None:
            raise Unavailable("without RPC_URL no transaction can be confirmed", advice="Set RPC_URL.")
        sent = restore(self.ledger.payload(id, number)[0])
        who = (sent.authorization.payer, sent.authorization.nonce)
        terms = (sent.accepted.pay_to, sent.authorization.value, sent.accepted.asset)
        if self.chain.confirm(transaction, who, *terms) is None:
            raise Conflict("the chain does not show this payment in that transaction")
        return self.settler.record_settled(id, number, transaction.lower(), "operator")

    def refused(self, id: str, number: int) -> str:
        """Ends a payment that can never land: by the chain, or long after its end by the store's time."""
        payment = self._payment(id, number)
        if payment.state not in OPEN:
            raise Conflict(f"the payment is {payment.state}; only an open settlement can be refused")
        landed, impossible = self._by_chain(id, number)
        if landed:
            raise Conflict(f"the chain shows that it landed: resolve it as settled in {landed}")
        left_us = payment.valid_before_s * SECOND_US + CONFIRM_US - self.now()
        if not impossible and left_us >= 0:
            raise Conflict(
                "it may still land",
                advice=f"Ask again in {left_us // SECOND_US + 1} s, or once the chain shows it cancelled.",
            )
        code = "authorization_cannot_land"
        network = json.loads(self.ledger.payload(id, number)[1])["network"]
        response = json.dumps(failed_response(code, network, payment.payer), separators=(",", ":"))
        return self.ledger.settle_refused(id, number, code, response, by_chain=True)

    def _payment(self, id: str, number: int) -> Payment:
        money = self.ledger.money(id)
        payment = money.payment(number) if money else None
        if payment is None:
            raise NotFound(f"execution {id[:64]} has no payment {number}")
        return payment

    def _by_chain(self, id: str, number: int) -> tuple[str, bool]:
        """Where it landed, and whether it never can; neither if the chain is unreachable."""
        if self.chain is None:
            return "", False
        try:
            verdict = look(self.chain, restore(self.ledger.payload(id, number)[0]))
        except ChainUnavailable:
            return "", False
        return verdict.transaction, verdict.impossible
