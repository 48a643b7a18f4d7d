"""The services that the operator's doors need."""

from __future__ import annotations

from collections.abc import Sized
from typing import Protocol

from worker.core.settings import Settings
from worker.delivery.outbox import Outbox
from worker.doors.bearers import BearerTokens
from worker.doors.openapi.documents import Publisher
from worker.engine.service import Executions
from worker.engine.transitions import ExecutionStore
from worker.files.health import StorageHealth
from worker.hiring.manifest import Manifest
from worker.payments.audit import AuditBook
from worker.payments.comparison import ComparisonMark
from worker.payments.gauges import MoneyGauges
from worker.payments.leg_ledger import LegLedger
from worker.payments.listings import ListingBook
from worker.policy.judge import Policy
from worker.remote.intents import Intents
from worker.remote.runners import Runners
from worker.remote.streams import RemoteStreams
from worker.store.health import StoreHealth


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
