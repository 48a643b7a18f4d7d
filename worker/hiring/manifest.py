"""The agent manifest, and the listing that contracts are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import redis

from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Capability
from worker.contracts.terms import BEFORE_WORK, CapabilityOffer, Listing
from worker.core.amounts import to_atomic
from worker.core.errors import Unavailable
from worker.core.settings import Settings
from worker.core.version import __version__
from worker.store.outage import note
from worker.x402.networks import Network

_STARTED = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
# Minimum time between signing and deadline.
MIN_LEAD_US = 120_000_000


@dataclass(frozen=True)
class Manifest:
    """Built from the catalog on each call, because the work processes decide what is on offer."""

    settings: Settings
    catalog: Catalog
    network: Network
    webhook_key: str | None
    # The listing of the catalog as it was read last.
    _kept: list[tuple[Mapping[str, Capability], Listing]] = field(
        default_factory=list, init=False, repr=False
    )

    def for_sale(self) -> dict[str, Capability]:
        """Capabilities with a price above zero; others are not sold."""
        return {
            name: each
            for name, each in self.catalog.all().items()
            if not name.startswith("_") and to_atomic(each.price) > 0
        }

    def for_sale_if_known(self) -> dict[str, Capability]:
        """The same, or none while the store is away: public documents are served all the same."""
        try:
            return self.for_sale()
        except redis.RedisError as error:
            note(error, "manifest")
            return {}

    def listing(self) -> Listing:
        """The listing that contracts are checked against; refused until a work process publishes agents."""
        offered = self.catalog.all()
        if not self.catalog.published:
            raise not_served("no work process has said yet what it can run")
        if not self._kept or self._kept[0][0] is not offered:
            self._kept[:] = [(offered, self._listing())]
        return self._kept[0][1]

    def _listing(self) -> Listing:
        for_sale = self.for_sale()
        offers = {
            name: CapabilityOffer(to_atomic(each.price), latency_ms(each), self.settle(each))
            for name, each in for_sale.items()
        }
        return Listing(
            agent_id=self.settings.worker_agent_id,
            wallet=self.settings.worker_wallet or "",
            network=self.network.caip2,
            network_names=frozenset({self.network.name}),
            production=self.settings.deployed,
            capabilities=offers,
            min_lead_us=MIN_LEAD_US,
        )

    def settle(self, capability: Capability) -> str:
        """When payments for this capability settle."""
        if capability.stream and not capability.settle:
            return BEFORE_WORK
        return capability.settle or self.settings.settle

    def document(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "created_at": _STARTED,
            "updated_at": _STARTED,
            "tags": ["x402", "usdc"],
            "software": f"hire-worker/{__version__}",
            "network": self.network.caip2,
        }
        if self.webhook_key is not None:
            metadata["webhook_public_key"] = self.webhook_key
        return {
            "version": "1.0",
            "agent": {
                "id": self.settings.worker_agent_id,
                "publisher": "@worker",
                "name": self.settings.worker_agent_id,
                "description": "A worker that is hired over HTTPS and paid per task in USDC.",
                "owner": {"wallet": self.settings.worker_wallet or ""},
            },
            "capabilities": [self._capability(each) for each in self.for_sale().values()],
            "endpoint": {"url": self.settings.public_url, "protocol": "HIRE/1.0", "auth": "x402"},
            "metadata": metadata,
        }

    def _capability(self, capability: Capability) -> dict[str, Any]:
        described: dict[str, Any] = {
            "name": capability.name,
            "description": capability.description or capability.name,
            "pricing": {"type": "per-task", "amount": capability.price, "currency": "USDC"},
            "sla": {"max_latency_ms": latency_ms(capability)},
            "settle": self.settle(capability),
            "stream": capability.stream,
        }
        optional: Mapping[str, Any] = {
            "input_schema": capability.input_schema,
            "output_schema": capability.output_schema,
            "example_input": capability.example_input,
            "example_output": capability.example_output,
        }
        return {**described, **{name: value for name, value in optional.items() if value is not None}}


def not_served(message: str = "nobody can run this capability now") -> Unavailable:
    return Unavailable(message, code="CAPABILITY_UNAVAILABLE", retry_after=10)


def latency_ms(capability: Capability) -> int:
    """The latency that the capability can promise: its own maximum, or its time limit."""
    return capability.max_latency_ms or int(capability.time_limit * 1000)
