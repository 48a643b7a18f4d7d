"""The parts with which the operator sees and decides: reports, decisions, journal, errands."""

from __future__ import annotations

from functools import cached_property

from worker.parts.notices import NoticeParts
from worker.payments.journal import JournalReader
from worker.payments.refunds import Refunds
from worker.payments.resolutions import Resolutions
from worker.payments.unresolved import UnresolvedMoney


class OperatorParts(NoticeParts):
    """Adds what the command line and the dashboard share."""

    @cached_property
    def journal(self) -> JournalReader:
        return JournalReader(self.client, self.keys)

    @cached_property
    def unresolved(self) -> UnresolvedMoney:
        return UnresolvedMoney(self.client, self.keys, self.leg_books, self.found)

    @cached_property
    def resolutions(self) -> Resolutions:
        return Resolutions(self.ledger, self.settler, self.chain, self.store.now)

    @cached_property
    def refunds(self) -> Refunds:
        return Refunds(self.ledger, self.leg_books)
