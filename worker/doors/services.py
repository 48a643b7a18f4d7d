"""The services that the operator's doors need."""

from __future__ import annotations

from collections.abc import Sized
from typing import Protocol

from worker.capabilities.catalog import Catalog
from worker.contracts.book import ContractBook
from worker.contracts.contract_list import ContractList
from worker.core.settings import Settings
from worker.delivery.deliverables import Deliverables
from worker.delivery.outbox import Outbox
from worker.doors.bearers import BearerTokens
from worker.doors.openapi.documents import Publisher
from worker.engine.activity import Activity
from worker.engine.pulse import Pulse
from worker.engine.service import Executions
from worker.engine.transitions import ExecutionStore
from worker.engine.watch import Watcher
from worker.files.health import StorageHealth
from worker.hiring.manifest import Manifest
from worker.payments.audit import AuditBook
from worker.payments.brief import PaymentBriefs
from worker.payments.comparison import ComparisonMark
from worker.payments.found_decisions import FoundDecisions
from worker.payments.gauges import MoneyGauges
from worker.payments.journal import JournalReader
from worker.payments.ledger import Ledger
from worker.payments.leg_ledger import LegLedger
from worker.payments.listings import ListingBook
from worker.payments.refunds import Refunds
from worker.payments.unresolved import UnresolvedMoney
from worker.policy.judge import Policy
from worker.queue.deferred_calls import DeferredCalls
from worker.queue.queue_status import QueueStatusReader
from worker.remote.connection_list import ConnectionList
from worker.remote.intents import Intents
from worker.remote.runners import Runners
from worker.remote.store import RemoteStore
from worker.remote.streams import RemoteStreams
from worker.store.doctor_record import DoctorRecord
from worker.store.health import StoreHealth
from worker.store.operator_journal import OperatorJournal
from worker.store.wrong_credentials import WrongCredentials


class KernelServices(Protocol):
    """Executions, and the remote agents and runners that work on them."""

    @property
    def settings(self) -> Settings: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def bearers(self) -> BearerTokens: ...

    @property
    def executions(self) -> Executions: ...

    @property
    def runners(self) -> Runners: ...

    @property
    def streams(self) -> RemoteStreams: ...

    @property
    def intents(self) -> Intents: ...


class OpsServices(Protocol):
    """Services behind health, metrics and the OpenAPI documents."""

    @property
    def settings(self) -> Settings: ...

    @property
    def store_health(self) -> StoreHealth: ...

    @property
    def store(self) -> ExecutionStore: ...

    @property
    def queue(self) -> Sized: ...

    @property
    def storage(self) -> StorageHealth: ...

    @property
    def manifest(self) -> Manifest: ...

    @property
    def publisher(self) -> Publisher: ...

    @property
    def bearers(self) -> BearerTokens: ...

    @property
    def comparison_mark(self) -> ComparisonMark: ...

    @property
    def leg_books(self) -> LegLedger: ...

    @property
    def audit_book(self) -> AuditBook: ...

    @property
    def listings(self) -> ListingBook: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def money_gauges(self) -> MoneyGauges: ...


class DashboardServices(Protocol):
    """What the operator sees and decides, for all kinds of things in one place."""

    @property
    def settings(self) -> Settings: ...

    @property
    def secret(self) -> str: ...

    @property
    def wrong_credentials(self) -> WrongCredentials: ...

    @property
    def store(self) -> ExecutionStore: ...

    @property
    def executions(self) -> Executions: ...

    @property
    def activity(self) -> Activity: ...

    @property
    def pulse(self) -> Pulse: ...

    @property
    def watcher(self) -> Watcher: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def queue_status(self) -> QueueStatusReader: ...

    @property
    def deliverables(self) -> Deliverables: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def remote_store(self) -> RemoteStore: ...

    @property
    def connection_list(self) -> ConnectionList: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def book(self) -> ContractBook: ...

    @property
    def contract_list(self) -> ContractList: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def journal(self) -> JournalReader: ...

    @property
    def payment_briefs(self) -> PaymentBriefs: ...

    @property
    def unresolved(self) -> UnresolvedMoney: ...

    @property
    def refunds(self) -> Refunds: ...

    @property
    def found_decisions(self) -> FoundDecisions: ...

    @property
    def leg_books(self) -> LegLedger: ...

    @property
    def comparison_mark(self) -> ComparisonMark: ...

    @property
    def listings(self) -> ListingBook: ...

    @property
    def deferred_calls(self) -> DeferredCalls: ...

    @property
    def doctor_record(self) -> DoctorRecord: ...

    @property
    def operator_journal(self) -> OperatorJournal: ...
