"""Makes capabilities discoverable: catalog metadata for their 402s, and their addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from worker.capabilities.declare import Capability
from worker.core.settings import Settings
from worker.x402.bazaar import BAZAAR, Described, bazaar_extension, service_metadata
from worker.x402.offer import Offer
from worker.x402.receipts import OFFER_RECEIPT
from worker.x402.signed_offers import OfferSigner

PATH = "/buy/"
# The capability that OpenAI clients buy at an address of its own.
CHAT = "chat"
COMPLETIONS = "/v1/chat/completions"


@dataclass(frozen=True)
class Discovery:
    """Builds the metadata from the declaration alone. `offers` is absent without a signing key."""

    settings: Settings
    offers: OfferSigner | None

    def address(self, name: str) -> str:
        """The stable URL where a capability is bought."""
        return f"{self.settings.public_url}{PATH}{name}"

    def capability_at(self, url: str) -> str | None:
        """The name of the capability bought at this address, if it is ours."""
        name = url.removeprefix(f"{self.settings.public_url}{PATH}")
        return None if name == url or not name or "/" in name else name

    def icon(self, capability: Capability | None = None) -> str:
        own = capability.icon if capability else ""
        return own or self.settings.icon_url or f"{self.settings.public_url}/favicon.ico"

    def advertise(self, capability: Capability, offer: Offer) -> Offer:
        """The offer with what catalogs and verifiers read."""
        extensions = {**offer.extensions, **self._extensions(capability, offer)}
        return replace(offer, extensions=extensions, about=self._about(capability))

    def _about(self, capability: Capability) -> dict[str, Any]:
        """Additional fields of the 402's resource: serviceName, tags, iconUrl."""
        return service_metadata(capability.title or capability.name, capability.tags, self.icon(capability))

    def _extensions(self, capability: Capability, offer: Offer) -> dict[str, Any]:
        described = Described(
            capability.input_schema,
            capability.output_schema,
            capability.example_input,
            capability.example_output,
        )
        found = {BAZAAR: bazaar_extension(described)}
        # Signing an amount that depends on a stranger's input would cost a signature per request.
        if self.offers is not None and offer.price == capability.price:
            found[OFFER_RECEIPT] = self.offers.extension(offer.resource_url, [offer.requirements()])
        return found
