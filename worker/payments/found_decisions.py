"""The operator's decisions about found money: bind it to work, refund it, or dismiss it."""

from __future__ import annotations

from dataclasses import dataclass

from worker.contracts.book import Contract
from worker.core.amounts import to_text
from worker.core.errors import Conflict, NotFound
from worker.core.ids import new_id
from worker.payments.answers import (
    FOUND_DISMISS,
    FOUND_REFUND,
    FoundDismissAnswer,
    FoundForContractAnswer,
    FoundForExecutionAnswer,
    FoundRefundAnswer,
)
from worker.payments.chain import Transfer
from worker.payments.found import AwaitsMoney, FoundMoney, FoundTransfer, listing_of
from worker.payments.settler import Settler


@dataclass(frozen=True)
class FoundDecisions:
    """Each decision is one script that checks that no other was made; the steps after it are repeatable."""

    found: FoundMoney
    settler: Settler
    pay_to: str

    def find(self, transaction: str, log_index: int | None = None) -> FoundTransfer:
        """The transfer named by the operator."""
        listed = [each for each in self.found.listed() if each.transaction == transaction.lower()]
        matching = [each for each in listed if log_index in (None, each.log_index)]
        if not matching:
            raise NotFound("no found money has this transaction")
        if len(matching) > 1:
            indexes = ", ".join(str(each.log_index) for each in matching)
            raise Conflict(f"the transaction has several transfers: name one with --log-index ({indexes})")
        return matching[0]

    def bind_to_execution(self, listed: FoundTransfer, id: str) -> str:
        """Binds the money to an execution that waits for a payment of exactly this amount."""
        money = self.found.ledger.money(id)
        payment = money.payment() if money is not None else None
        if money is None or payment is None:
            raise NotFound(f"execution {id[:64]} has no money")
        self._require_amount(listed, payment.amount)
        transfer = self._transfer(listed)
        reply = self.found.for_execution(transfer, AwaitsMoney(id, money.contract_ref, 0, True))
        if reply.answer is FoundForExecutionAnswer.TAKEN:
            raise Conflict("this execution does not wait for a payment")
        if reply.answer is FoundForExecutionAnswer.KNOWN:
            # Made before, perhaps by a command that was interrupted: what follows is made sure of.
            bound = self.found.ledger.bound(self.found.payment_of(transfer).key)
            if listed.outcome != f"execution {id}" or bound is None or bound[0] != id:
                raise self._decided(listed)
            return self.settler.record_settled(id, bound[1], listed.transaction, "operator")
        return self.settler.record_settled(id, int(reply.text()), listed.transaction, "operator")

    def bind_to_contract(self, listed: FoundTransfer, contract: Contract) -> None:
        """Binds the money to a contract whose seeker has not sent the input yet."""
        self._require_amount(listed, contract.terms.price)
        waiting = AwaitsMoney(contract.ref, contract.ref, contract.terms.created_at, False)
        answer = self.found.for_contract(self._transfer(listed), waiting)
        if answer is FoundForContractAnswer.TAKEN:
            raise Conflict("this contract does not wait for a payment")
        if answer is FoundForContractAnswer.KNOWN:
            raise self._decided(listed)

    def refund(self, listed: FoundTransfer) -> str:
        """Refunds the payer: the money becomes a payment that bought nothing and owes a refund leg."""
        transfer = self._transfer(listed)
        bound = self._require_no_payment(transfer) if listed.outcome == "listed" else ""
        payment, id = self.found.payment_of(transfer), new_id()
        answer = self.found.run(
            FOUND_REFUND,
            id=id,
            payer=transfer.payer,
            amount=transfer.amount,
            key=payment.key,
            payload=payment.payload,
            requirements=payment.requirements,
            valid_before=payment.valid_before,
            tx=transfer.tx_hash,
            bound=bound,
            **listing_of(transfer),
        ).answer
        if answer is FoundRefundAnswer.KNOWN:
            # Made before, perhaps by a command that was interrupted: what follows is made sure of.
            outcome, _, id = listed.outcome.partition(" ")
            if outcome != "refund":
                raise self._decided(listed)
        return self.settler.record_settled(id, 1, listed.transaction, "operator", payment.payload)

    def dismiss(self, listed: FoundTransfer) -> None:
        """Dismisses money that is not a seeker's: the operator's own, or a gift."""
        answer = self.found.run(FOUND_DISMISS, **listing_of(self._transfer(listed))).answer
        if answer is FoundDismissAnswer.KNOWN:
            raise self._decided(listed)

    def _transfer(self, listed: FoundTransfer) -> Transfer:
        return Transfer(
            *(listed.transaction, listed.log_index, listed.block, listed.time_us, listed.payer),
            pay_to=self.pay_to,
            amount=listed.amount,
            nonce=listed.nonce or None,
        )

    def _require_amount(self, listed: FoundTransfer, price: int) -> None:
        if listed.amount != price:
            raise Conflict(
                f"the transfer is of {to_text(listed.amount)} USDC, the price is {to_text(price)}",
                advice="Refund it, and let the seeker pay the price.",
            )

    def _require_no_payment(self, transfer: Transfer) -> str:
        """Refuses money that is or may become a payment: refund it as that payment instead.

        Returns the ledger's entry under its authorization, which the decision's script compares.
        """
        key = self.found.payment_of(transfer).key
        known = self.found.ledger.binding(key)
        money = self.found.ledger.money(known.partition(" ")[0]) if known else None
        if money is None:
            return known
        id, number = known.split(" ")[:2]
        payment = money.payment(int(number))
        if payment is None or payment.amount != transfer.amount:
            return known
        if payment.transaction == transfer.tx_hash:
            raise Conflict(
                f"this transfer is payment {number} of execution {id}",
                advice=f"Use `worker money refund {id}`.",
            )
        if not payment.state.ended:
            raise Conflict(
                f"payment {number} of execution {id} has this authorization, and its outcome is open",
                advice="Repeat the command when that payment has ended.",
            )
        return known

    def _decided(self, listed: FoundTransfer) -> Conflict:
        outcome = self.find(listed.transaction, listed.log_index).outcome
        return Conflict(
            f"this money is already decided about: {outcome}"
            if outcome != "listed"
            else "the ledger has another payment under this authorization: refund or dismiss it"
        )
