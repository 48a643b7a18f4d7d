"""Public documents about what is sold here and by whom, generated from the declarations.

llms.txt for models, /.well-known/x402 for crawlers of its first form, an A2A agent card, an ERC-8004
registration file, and a DID document that names the keys that sign offers, receipts and evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from worker.capabilities.declare import Capability
from worker.core.settings import Settings
from worker.core.version import __version__
from worker.hiring.discovery import CHAT, COMPLETIONS, Discovery

DESCRIPTION = "A worker that is hired over HTTPS and paid per task in USDC (x402)."
X402_BINDING = "https://www.x402.org/v2/http"


@dataclass(frozen=True)
class SiteDocuments:
    """The documents of one worker. `signer` is the address of the key that signs statements."""

    settings: Settings
    discovery: Discovery
    network: str
    signer: str | None

    def guidance(self) -> str:
        """Short buying instructions for models, plus the operator's guidance."""
        url = self.settings.public_url
        lines = [
            "Each capability has one URL. POST its input to it as JSON.",
            "Unpaid, the answer is 402 with the price. Input that does not fit is refused before that.",
            "Pay with any x402 client and send the same request with the payment.",
            "Failed work is not charged, unless the 402 says that it is paid before the work.",
            "200 has the result. 202 means that the work goes on: poll the address in Location for free.",
            "Do not pay twice for the same work: to retry, send the identical request and payment.",
            f"Schemas are in {url}/openapi.json, prices there and in each 402.",
        ]
        return "\n".join([*lines, *([self.settings.guidance] if self.settings.guidance else [])])

    def llms(self, sold: Mapping[str, Capability]) -> str:
        parts = [
            f"# {self.settings.worker_agent_id}",
            f"> {DESCRIPTION}",
            f"## How to buy\n\n{self.guidance()}",
            "## Capabilities\n\n" + "\n".join(self._bullet(each) for each in sold.values()),
        ]
        if CHAT in sold:
            parts.append(f"## OpenAI clients\n\n{self._chat(sold[CHAT])}")
        if self.settings.contact_email:
            parts.append(f"## Contact\n\n{self.settings.contact_email}")
        return "\n\n".join(parts) + "\n"

    def _chat(self, chat: Capability) -> str:
        base = f"{self.settings.public_url}{COMPLETIONS}".removesuffix("/chat/completions")
        return f"The base URL is {base}, the model `{chat.model or CHAT}`; it takes a client that pays 402s."

    def _bullet(self, capability: Capability) -> str:
        title = _line(capability.title or capability.name).replace("[", "(").replace("]", ")")
        description = _line(capability.description or capability.name)
        url = self.discovery.address(capability.name)
        schema = f"{self.settings.public_url}/openapi.json"
        return f"- [{title}]({url}): {description} {_price(capability)} [Schema]({schema})"

    def resources(self, sold: Mapping[str, Capability]) -> dict[str, Any]:
        return {"version": 1, "resources": [self.discovery.address(name) for name in sold]}

    def agent_card(self, sold: Mapping[str, Capability]) -> dict[str, Any]:
        """An A2A card. No A2A operation is served: the one interface is plain HTTP paid by x402."""
        url = self.settings.public_url
        return {
            "name": self.settings.worker_agent_id,
            "description": DESCRIPTION,
            "version": __version__,
            "supportedInterfaces": [
                {"url": f"{url}/openapi.json", "protocolBinding": X402_BINDING, "protocolVersion": "2"}
            ],
            "capabilities": {"streaming": False, "pushNotifications": False, "extendedAgentCard": False},
            "defaultInputModes": ["application/json"],
            "defaultOutputModes": ["application/json"],
            "provider": {"organization": self.settings.worker_agent_id, "url": url},
            "documentationUrl": f"{url}/llms.txt",
            "iconUrl": self.discovery.icon(),
            "skills": [_skill(each) for each in sold.values()],
        }

    def registration(self, sold: Mapping[str, Capability]) -> dict[str, Any]:
        """The ERC-8004 registration file; `registrations` prove that registry entries are this worker's."""
        url = self.settings.public_url
        services = [
            {"name": "x402", "endpoint": f"{url}/openapi.json", "version": "2"},
            {"name": "HIRE", "endpoint": f"{url}/manifest", "version": "1.0"},
            {"name": "DID", "endpoint": self.did(), "version": "v1"},
        ]
        if self.settings.contact_email:
            services.append({"name": "email", "endpoint": self.settings.contact_email})
        registered = [
            {"agentId": number, "agentRegistry": registry}
            for registry, number in self.settings.agent_registrations
        ]
        return {
            "type": "https://eips.ethereum.org/EIPS/eip-8004#registration-v1",
            "name": self.settings.worker_agent_id,
            "description": DESCRIPTION,
            "image": self.discovery.icon(),
            "services": services,
            "x402Support": True,
            "active": bool(sold),
            "registrations": registered,
            "supportedTrust": ["reputation"] if registered else [],
        }

    def did(self) -> str:
        """The worker's did:web name; the port is escaped, as the method requires."""
        return "did:web:" + quote(urlsplit(self.settings.public_url).netloc, safe="")

    def did_document(self) -> dict[str, Any]:
        """The keys that sign for this worker: the statement key first, then the wallet's."""
        did = self.did()
        wallet = self.settings.worker_wallet
        keys = {name: address for name, address in (("key-1", self.signer), ("wallet", wallet)) if address}
        if self.signer == wallet:
            keys.pop("wallet", None)
        methods = [
            {
                "id": f"{did}#{name}",
                "type": "EcdsaSecp256k1RecoveryMethod2020",
                "controller": did,
                "blockchainAccountId": f"{self.network}:{address}",
            }
            for name, address in keys.items()
        ]
        return {
            "@context": [
                "https://www.w3.org/ns/did/v1",
                "https://w3id.org/security/suites/secp256k1recovery-2020/v2",
            ],
            "id": did,
            "verificationMethod": methods,
            "assertionMethod": [each["id"] for each in methods],
        }


def _skill(capability: Capability) -> dict[str, Any]:
    skill: dict[str, Any] = {
        "id": capability.name,
        "name": capability.title or capability.name,
        "description": f"{_line(capability.description or capability.name)} {_price(capability)}",
        "tags": [*capability.tags] or ["x402"],
        "inputModes": ["application/json"],
        "outputModes": ["application/json"],
    }
    return skill


def _price(capability: Capability) -> str:
    return f"{'At most ' if capability.prices_input else ''}{capability.price} USDC."


def _line(text: str) -> str:
    return " ".join(text.split())
