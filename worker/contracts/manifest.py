"""What this worker says of itself: the agent manifest, and the listing contracts are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from worker import __version__
from worker.agents.catalog import Catalog
from worker.agents.declare import Capability
from worker.contracts.amounts import to_atomic
from worker.contracts.terms import BEFORE_WORK, CapabilityOffer, Listing
from worker.payments.networks import Network
from worker.settings import Settings

_STARTED = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
# The least time between signing and deadline.
MIN_LEAD_US = 120_000_000


@dataclass(frozen=True)
class Manifest:
    """Built from the catalog each time, because what is on offer changes with the work processes."""

    settings: Settings
    catalog: Catalog
    network: Network
    webhook_key: str | None

    def for_sale(self) -> dict[str, Capability]:
        """Capabilities that cost something; the rest is not sold."""
        return {
            name: each
            for name, each in self.catalog.all().items()
            if not name.startswith("_") and to_atomic(each.price) > 0
        }

    def listing(self) -> Listing:
        offers = {
            name: CapabilityOffer(to_atomic(each.price), latency_ms(each), self.settle(each))
            for name, each in self.for_sale().items()
        }
        return Listing(
            agent_id=self.settings.worker_agent_id,
            wallet=self.settings.worker_wallet or "",
            network=self.network.caip2,
            network_names=frozenset({self.network.name}),
            production=self.settings.production,
            capabilities=offers,
            min_lead_us=MIN_LEAD_US,
        )

    def settle(self, capability: Capability) -> str:
        """When the payment of this capability is taken."""
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


def latency_ms(capability: Capability) -> int:
    """The longest a seeker may have to wait for a result that was promised a latency."""
    return capability.max_latency_ms or int(capability.time_limit * 1000)
