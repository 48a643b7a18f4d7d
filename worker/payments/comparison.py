"""The ledger held against the chain: after the store came back from a crash, and every ten minutes.

A store that was started again may have forgotten its last second, and with it who paid. Until every
transfer to our wallet has been looked at, nobody may be asked to pay for an older contract again.
Whether that is so is one script: it compares the server's own run id with the one that was compared
last, so there is no moment between a restart and its being noticed.
"""

from __future__ import annotations

import structlog

from worker.payments.chain import ChainEvidence, ChainUnavailable, Head, Transfer
from worker.payments.found import FoundMoney
from worker.payments.ledger import SECOND_US, Ledger, PaymentState
from worker.payments.settler import Settler
from worker.payments.stored import Stored

log = structlog.get_logger()

EVERY_US = 600 * SECOND_US
# Settle calls that were open when the store died may land for a while after it is back.
SOON_EVERY_US = 15 * SECOND_US
SOON_US = 180 * SECOND_US
LEASE_US = 60 * SECOND_US
# A contract's time comes from its seeker, whose clock may go ahead of the store's.
CLOCKS_DIFFER_US = 60 * SECOND_US
# Without an earlier comparison: an unpaid contract lives a day at most.
LOOK_BACK_US = 24 * 3600 * SECOND_US
SPAN = 10_000


class ComparisonMark(Stored):
    """What every process may know of the comparison."""

    @property
    def _key(self) -> list[str]:
        return [f"{self.keys.prefix}:compared"]

    def comparison_pending(self, contract_created_us: int) -> bool:
        """Whether a contract made then may have been paid for without our knowing; one command."""
        return bool(self._scripts("compare_pending", self._key, [contract_created_us, CLOCKS_DIFFER_US]))

    def begin(self) -> tuple[str, int | None, int] | None:
        """(run id, block compared last, start of the server) when it is time to compare."""
        reply = self._scripts("compare_begin", self._key, [EVERY_US, SOON_EVERY_US, SOON_US, LEASE_US])
        if reply[0] != b"go":
            return None
        return reply[1].decode(), int(reply[2]) if reply[2] else None, int(reply[3])

    def reached(self, block: int | None, run_id: str = "", *, lease_us: int = LEASE_US) -> None:
        """Notes how far the comparison came; with the run id it is done."""
        self._scripts("compare_reached", self._key, ["" if block is None else block, run_id, lease_us])


class Comparison:
    """Looks at every transfer to our wallet once. Belongs to the clock, which has the chain."""

    def __init__(
        self,
        mark: ComparisonMark,
        ledger: Ledger,
        settler: Settler,
        found: FoundMoney,
        *,
        pay_to: str,
        chain: ChainEvidence | None,
        span: int = SPAN,
    ) -> None:
        self._mark = mark
        self._ledger = ledger
        self._settler = settler
        self._found = found
        self._pay_to = pay_to
        self._chain = chain
        self._span = span

    def run(self) -> bool:
        """Compares if it is time to; tells whether a comparison was brought to its end."""
        leave = self._mark.begin()
        if leave is None:
            return False
        run_id, block, started_us = leave
        if self._chain is None:
            # There is nothing to compare with; in production an RPC is required.
            self._mark.reached(None, run_id, lease_us=0)
            return True
        try:
            head = self._chain.head()
            self._look(self._chain, block, head)
            for transfer in self._found.unclaimed():
                # Claimed since it was found, by a seeker whose claim was forgotten; a verification may have
                # called that payment used and refused it.
                self._known(transfer)
        except ChainUnavailable:
            log.warning("comparison.chain_away")
            self._mark.reached(None, lease_us=5 * SECOND_US)
            return False
        if head.time_us < started_us:
            # What was sent before the crash may stand in a block that is not believed yet.
            self._mark.reached(None, lease_us=SECOND_US)
            return False
        self._mark.reached(max(head.block, block or 0), run_id, lease_us=0)
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
            what = self._settler.record_settled(id, number, transaction, "chain")
            log.warning("comparison.bound", execution_id=id, transaction=transaction, what=what)

    def _known(self, transfer: Transfer) -> bool:
        """Whether the ledger has a payment for it; one that it does not have settled is settled now."""
        if transfer.nonce is None:
            return False
        bound = self._ledger.bound(self._found.key(transfer.payer, transfer.nonce))
        if bound is None:
            return False
        id, number = bound
        money = self._ledger.money(id)
        payment = money.payment(number) if money else None
        if payment is None or payment.amount != transfer.amount:
            # The execution was removed before its money came, or another amount was moved than was claimed.
            self._found.list_only(transfer)
        elif payment.state is PaymentState.SETTLED:
            pass
        elif self._settler.predates(id, transfer.time_us):
            # An old payment that was claimed for a new contract: it bought something that we have forgotten.
            self._found.list_only(transfer)
        else:
            what = self._settler.record_settled(id, number, transfer.tx_hash, "chain")
            log.warning("comparison.settled", execution_id=id, transaction=transfer.tx_hash, what=what)
        return True
