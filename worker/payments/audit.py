"""Audits settlements against the chain: what a facilitator reported is proven, sent again, or unproven.

A facilitator may be wrong or lie, and a chain may revert a block. The clock looks for the transfer made by
each settled payment's own authorization, and counts it once its block is final. A transfer that has not
landed when the authorization has ended is left to the operator. If the node lags or is down, the audit waits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import structlog

from worker.payments.answers import AUDIT_END
from worker.payments.chain import MICROSECONDS, ChainEvidence, ChainUnavailable, Head
from worker.payments.evidence import wanted
from worker.payments.facilitator import Facilitator
from worker.payments.ledger import Ledger
from worker.payments.money_store import MoneyStore
from worker.payments.payment import Payment
from worker.payments.retry_delays import SECOND_US
from worker.payments.settler import Settler
from worker.payments.standing import Standing
from worker.store.client import as_texts
from worker.x402.facilitator_answers import Settled, classify_settle
from worker.x402.wire import restore

log = structlog.get_logger()

MOST_AT_ONCE = 100
# How long an audit taken by one clock stays hidden from the others; sending a payment again takes less.
TAKEN_US = 150 * SECOND_US
SOON_US = 10 * SECOND_US
LATER_US = 60 * SECOND_US
# A facilitator's node may be ahead of ours: a transfer counts as missing only this long after settlement.
MISSING_US = 60 * SECOND_US


@dataclass(frozen=True, slots=True)
class AuditName:
    """Identifies one payment."""

    id: str
    number: int

    @classmethod
    def parse(cls, member: str) -> AuditName:
        id, number = member.split(" ")
        return cls(id, int(number))


class AuditBook(MoneyStore):
    """Settlements still to be proven, and those that never will be."""

    def take(self, most: int = MOST_AT_ONCE) -> list[AuditName]:
        """Takes the audits due now; hides them from other clocks for a while."""
        found = self._scripts.value("audit_due", most=most, pause=TAKEN_US)
        return [AuditName.parse(member.decode()) for member in found]

    def end(self, name: AuditName, outcome: str, transaction: str, response: str = "") -> str:
        return self._scripts.run(
            AUDIT_END, id=name.id, number=name.number, outcome=outcome, tx=transaction, response=response
        ).answer

    def later(self, name: AuditName, delay_us: int, transaction: str = "") -> bool:
        return bool(
            self._scripts.value(
                "audit_later", id=name.id, number=name.number, delay=delay_us, hash=transaction
            )
        )

    def counts(self) -> tuple[int, int]:
        """Number of settlements awaiting proof, and number that are unproven for good."""
        return int(self.client.zcard(self.keys.audits)), int(self.client.zcard(self.keys.unproven))

    def unproven(self) -> list[AuditName]:
        return [AuditName.parse(member) for member in as_texts(self.client.zrange(self.keys.unproven, 0, -1))]


@dataclass(frozen=True, slots=True)
class _Case:
    """One settlement under audit."""

    name: AuditName
    payment: Payment
    payload: str
    requirements: str

    @property
    def named(self) -> str:
        return self.payment.sent_again or self.payment.transaction


class Audit:
    """The clock's side: one round asks the node about all due audits."""

    def __init__(
        self,
        book: AuditBook,
        ledger: Ledger,
        settler: Settler,
        facilitator: Facilitator,
        chain: ChainEvidence,
    ) -> None:
        self._book = book
        self._ledger = ledger
        self._settler = settler
        self._facilitator = facilitator
        self._chain = chain

    def run(self) -> int:
        """Audits what is due; returns the number of settlements."""
        cases = [case for name in self._book.take() if (case := self._case(name)) is not None]
        if not cases:
            return 0
        try:
            asked = [wanted(restore(case.payload), case.named) for case in cases]
            found = self._chain.standings(asked)
        except ChainUnavailable:
            log.warning("audit.chain_away")
            for case in cases:
                self._book.later(case.name, SOON_US)
            return 0
        missing = [
            case
            for case, standing in zip(cases, found.standings, strict=True)
            if self._judge(case, standing, found.head, found.proven)
        ]
        # Last, because the facilitator may be slow.
        for case in missing:
            self._send_again(case)
        return len(cases)

    def _case(self, name: AuditName) -> _Case | None:
        money = self._ledger.money(name.id)
        payment = money.payment(name.number) if money else None
        if payment is None:
            self._book.end(name, "unproven", "")  # nothing is left to look for
            return None
        return _Case(name, payment, *self._ledger.payload(name.id, name.number))

    def _judge(self, case: _Case, standing: Standing, head: Head, proven: Head) -> bool:
        """Records what is certain; returns whether the payment is missing on the chain."""
        landed, payment = standing.landed, case.payment
        ends_us = payment.valid_before_s * MICROSECONDS
        if landed is not None and landed.block <= proven.block:
            self._proven(case, landed.tx_hash)
            return False
        cancelled = standing.cancelled is not None and standing.cancelled.block <= proven.block
        if cancelled or (landed is None and proven.time_us > ends_us):
            status = self._book.end(case.name, "unproven", payment.transaction)
            log.error("audit.unproven", execution_id=case.name.id, number=case.name.number, status=status)
            return False
        if standing.used or standing.known or not payment.settled + MISSING_US <= head.time_us <= ends_us:
            self._book.later(case.name, SOON_US)
            return False
        return True

    def _proven(self, case: _Case, transaction: str) -> None:
        named = case.payment.transaction
        response = "" if transaction == named else self._settler.settled.response(case.payload, transaction)
        status = self._book.end(case.name, "proven", transaction, response)
        log.info("audit.proven", execution_id=case.name.id, number=case.name.number, status=status)

    def _send_again(self, case: _Case) -> None:
        """Sends the identical payment; its nonce is unused, so it cannot be paid twice."""
        if not self._book.later(case.name, TAKEN_US):
            return
        log.warning("audit.payment_resent", execution_id=case.name.id, number=case.name.number)
        answer = self._facilitator.settle(json.loads(case.payload), json.loads(case.requirements))
        outcome = classify_settle(answer, earlier_unknown=True)
        named = outcome.transaction if isinstance(outcome, Settled) else ""
        self._book.later(case.name, SOON_US if named else LATER_US, named)
