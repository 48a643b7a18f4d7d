"""The parts with which the operator sees and decides: reports, decisions, journal, deferred calls."""

from __future__ import annotations

from functools import cached_property

from worker.contracts.contract_list import ContractList
from worker.engine.activity import Activity
from worker.engine.pulse import Pulse
from worker.parts.notices import NoticeParts
from worker.payments.brief import PaymentBriefs
from worker.payments.journal import JournalReader
from worker.payments.refunds import Refunds
from worker.payments.resolutions import Resolutions
from worker.payments.unresolved import UnresolvedMoney
from worker.queue.deferred_calls import DeferredCalls
from worker.queue.queue_status import QueueStatusReader
from worker.remote.connection_list import ConnectionList
from worker.store.data_model import Keys
from worker.store.doctor_record import DoctorRecord
from worker.store.operator_journal import OperatorJournal


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

    @cached_property
    def payment_briefs(self) -> PaymentBriefs:
        return PaymentBriefs(self.client, self.keys)

    # What happens now

    @cached_property
    def activity(self) -> Activity:
        return Activity(self.store)

    @cached_property
    def queue_status(self) -> QueueStatusReader:
        return QueueStatusReader(self.store, self.queue)

    @cached_property
    def connection_list(self) -> ConnectionList:
        return ConnectionList(self.remote_store)

    @cached_property
    def contract_list(self) -> ContractList:
        return ContractList(self.book)

    # What the operator does, and leaves to the clock

    @cached_property
    def operator_journal(self) -> OperatorJournal:
        return OperatorJournal(self.client, self.keys, self.store.now)

    @cached_property
    def deferred_calls(self) -> DeferredCalls:
        return DeferredCalls(self.client, self.keys, self.store.now)

    @cached_property
    def doctor_record(self) -> DoctorRecord:
        return DoctorRecord(self.client, self.keys, self.store.now)

    @cached_property
    def pulse(self) -> Pulse:
        keys = self.keys
        shared = (
            *(Keys.journal, Keys.open_payments, Keys.legs, Keys.unproven, Keys.found),
            *(Keys.outbox, Keys.failing_hosts, Keys.epochs, Keys.contracts, Keys.operator_journal),
        )
        lengths = [(each.type.length, f"{keys.prefix}:{each.pattern}") for each in shared]
        return Pulse(self.store, [*lengths, ("GETRANGE", keys.doctor, "0", "40")])
