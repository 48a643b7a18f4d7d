"""Compares the ledger with the chain: after the store came back from a crash, and every ten minutes.

A restarted store, or a promoted replica, may have lost its last writes, including payments. A
lost settle call may still move the money until its authorization has ended. So no seeker may be asked
to pay for an older contract until the chain has been compared beyond that time, unless every process that
was running finds all the writes it remembers (safe_writes). Every money script compares the server's run and
replication ids with those it saw last, so the first of them notices a new life of the store; a claim checks
again in its own script.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from worker.payments.answers import COMPARE_BEGIN, CompareBeginAnswer
from worker.payments.chain import ChainEvidence, ChainUnavailable, Head, Transfer
from worker.payments.found import FoundMoney
from worker.payments.ledger import Ledger
from worker.payments.money_store import MoneyStore
from worker.payments.payment import PaymentState
from worker.payments.retry_delays import SECOND_US
from worker.payments.settler import Settler

log = structlog.get_logger()

EVERY_US = 600 * SECOND_US
# While contracts are held: calls that were open when the old life ended may still land.
SOON_EVERY_US = 15 * SECOND_US
# While a contract waits for nothing but this comparison.
WANTED_EVERY_US = 2 * SECOND_US
LEASE_US = 60 * SECOND_US
# Used without an earlier comparison: an unpaid contract exists for at most a day.
LOOK_BACK_US = 24 * 3600 * SECOND_US
SPAN = 10_000


@dataclass(frozen=True, slots=True)
class ComparisonStanding:
    """How far chain and ledger were compared last: up to which block, and when."""

    block: int
    at: int


class ComparisonMark(MoneyStore):
    """Comparison state that every process can read."""

    def standing(self) -> ComparisonStanding:
        """For the operator; zeros before the first comparison."""
        found: Any = self.client.hmget(self.keys.life, ["block", "at"])
        return ComparisonStanding(*(int(value or 0) for value in found))

    def comparison_pending(self, signed_us: int, longest_us: int = 0, registered_us: int = 0) -> int:
        """How long (us) a contract signed at that time must not get a 402, 0 when it may; one command.

        `longest_us`: how long after a claim its authorization may land.
        """
        return int(
            self._scripts.value(
                "compare_pending", signed=signed_us, registered=registered_us, longest=longest_us
            )
        )

    def begin(self) -> tuple[str, int | None, int] | None:
        """(life of the store, last block compared, start of that life) when a comparison is due."""
        reply = self._scripts.run(
            COMPARE_BEGIN,
            interval=EVERY_US,
            holding=SOON_EVERY_US,
            waiting=WANTED_EVERY_US,
            lease=LEASE_US,
        )
        if reply.answer is CompareBeginAnswer.WAIT:
            return None
        block = reply.text(1)
        return reply.text(), int(block) if block else None, int(reply.text(2))

    def reached(
        self,
        block: int | None,
        life: str = "",
        *,
        lease_us: int = LEASE_US,
        to_us: int | None = None,
        longest_us: int = 0,
    ) -> None:
        """Records how far the comparison came; with `life` it is done, up to `to_us` on the chain's clock.

        Completed without a chain, it no longer holds any contract back: there is nothing to wait for.
        """
        self._scripts.value(
            "compare_reached",
            block="" if block is None else block,
            done=life,
            lease=lease_us,
            seen="" if to_us is None else to_us,
            longest=longest_us,
        )


class Comparison:
    """Checks every transfer to our wallet once. Runs in the clock, which has the chain."""

    def __init__(
        self,
        mark: ComparisonMark,
        ledger: Ledger,
        settler: Settler,
        found: FoundMoney,
        *,
        pay_to: str,
        chain: ChainEvidence | None,
        longest_us: int = 0,
        span: int = SPAN,
    ) -> None:
        self._mark = mark
        self._ledger = ledger
        self._settler = settler
        self._found = found
        self._pay_to = pay_to
        self._chain = chain
        self._longest_us = longest_us
        self._span = span

    def run(self) -> bool:
        """Runs the comparison if due; returns whether it was completed."""
        lease = self._mark.begin()
        if lease is None:
            return False
        life, block, began_us = lease
        if self._chain is None:
            # Nothing to compare with; production requires an RPC.
            self._mark.reached(None, life, lease_us=0)
            return True
        try:
            head = self._chain.head()
            self._look(self._chain, block, head)
            # Claimed since it was found, by a seeker whose claim was forgotten; a verification may have
            # refused that payment as used. Or its contract was forgotten, and has come back.
            unclaimed = self._found.unclaimed(self._pay_to)
            self._compare(unclaimed)
            self._found.take_off(each for each in unclaimed if self._has_settled(each))
        except ChainUnavailable:
            log.warning("comparison.chain_away")
            self._mark.reached(None, lease_us=5 * SECOND_US)
            return False
        if head.time_us < began_us:
            # Payments sent before the crash may be in a block that is not trusted yet: look at the next tick.
            self._mark.reached(None, lease_us=SECOND_US // 5)
            return False
        newest = max(head.block, block or 0)
        self._mark.reached(newest, life, lease_us=0, to_us=head.time_us, longest_us=self._longest_us)
        return True

    def _look(self, chain: ChainEvidence, block: int | None, head: Head) -> None:
        first = chain.block_at(head.time_us - LOOK_BACK_US) if block is None else block + 1
        while first <= head.block:
            last = min(first + self._span - 1, head.block)
            self._compare(chain.transfers_to(self._pay_to, first, last))
            self._mark.reached(last)
            first = last + 1

    def _compare(self, transfers: list[Transfer]) -> None:
        unknown = [transfer for transfer in transfers if not self._known(transfer)]
        for id, number, transaction in self._found.bind(unknown):
            status = self._settler.record_settled(id, number, transaction, "chain")
            log.warning("comparison.bound", execution_id=id, transaction=transaction, status=status)

    def _known(self, transfer: Transfer) -> bool:
        """Whether the ledger has a payment for it; records that payment as settled if it is not yet."""
        if transfer.nonce is None:
            return False
        bound = self._ledger.bound(self._found.key(transfer.payer, transfer.nonce))
        if bound is None:
            return False
        id, number = bound
        money = self._ledger.money(id)
        payment = money.payment(number) if money else None
        if money is None and self._bought_what_is_gone(transfer):
            return True
        if payment is None or payment.amount != transfer.amount:
            # The execution was removed before its money came, or the amount differs from the claim.
            self._found.list_only(transfer)
        elif payment.state is PaymentState.SETTLED:
            pass
        elif self._settler.verifier.predates(id, transfer.time_us):
            # An old payment claimed for a new contract: it bought something that the store has forgotten.
            self._found.list_only(transfer)
        else:
            status = self._settler.record_settled(id, number, transfer.tx_hash, "chain")
            log.warning("comparison.settled", execution_id=id, transaction=transfer.tx_hash, status=status)
        return True

    def _has_settled(self, transfer: Transfer) -> bool:
        """Whether this transfer settled a payment that its seeker has claimed."""
        if transfer.nonce is None:
            return False
        bound = self._ledger.bound(self._found.key(transfer.payer, transfer.nonce))
        money = self._ledger.money(bound[0]) if bound is not None else None
        if bound is None or money is None:
            return self._bought_what_is_gone(transfer)
        payment = money.payment(bound[1])
        return payment is not None and payment.transaction == transfer.tx_hash

    def _bought_what_is_gone(self, transfer: Transfer) -> bool:
        """Whether this transfer settled a payment whose execution is past its retention."""
        bought = self._ledger.bought(self._found.key(transfer.payer, transfer.nonce or ""))
        if bought is None or bought.state is not PaymentState.SETTLED:
            return False
        return bought.transaction in ("", transfer.tx_hash)
