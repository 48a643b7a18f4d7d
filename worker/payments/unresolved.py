"""What waits for an answer or the operator: settlements open or unproven, legs, found transfers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from worker.payments.found import FoundMoney, FoundTransfer
from worker.payments.leg import Leg
from worker.payments.leg_ledger import LegLedger
from worker.payments.payment import PaymentState
from worker.payments.report import JournalReport, PaymentRow
from worker.store.data_model import Keys
from worker.store.money_fields import payment_field

OPEN = (PaymentState.SETTLING, PaymentState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class UnresolvedPayment:
    """A payment without a proven outcome. `standing`: settling, unknown, unproven or presumed."""

    row: PaymentRow
    standing: str

    @property
    def is_open(self) -> bool:
        """Whether one of the two decisions can end it."""
        return self.standing in OPEN


@dataclass(frozen=True)
class UnresolvedMoney:
    """Reads the books; changes nothing."""

    client: redis.Redis
    keys: Keys
    leg_books: LegLedger
    found: FoundMoney
    _presumed_before: dict[tuple[str, int], bool] = field(default_factory=dict, init=False)

    def payments(self, books: JournalReport) -> Iterator[UnresolvedPayment]:
        for row in books.rows.values():
            if row.state in OPEN:
                yield UnresolvedPayment(row, row.state)
            elif row.state == PaymentState.SETTLED and row.unproven:
                yield UnresolvedPayment(row, "unproven")
            elif row.state == PaymentState.SETTLED and self._presumed(row):
                yield UnresolvedPayment(row, "presumed")

    def legs(self) -> list[Leg]:
        """Every leg that is not settled."""
        legs = (self.leg_books.get(name) for name in self.leg_books.open())
        return [leg for leg in legs if leg is not None]

    def transfers(self) -> list[FoundTransfer]:
        """Found money that needs a decision."""
        return [each for each in self.found.listed() if each.needs_decision]

    def _presumed(self, row: PaymentRow) -> bool:
        """From the journal; looked up for entries written before the journal recorded it."""
        if row.presumed or not row.was_unknown:
            return row.presumed
        known = self._presumed_before
        if (row.id, row.number) not in known:
            how: Any = self.client.hget(self.keys.money(row.id), payment_field(row.number, "how"))
            known[row.id, row.number] = how == b"presumed"
        return known[row.id, row.number]
