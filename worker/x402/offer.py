"""The payment offer in each dialect, and the checks that a payment matches it.

An offer is rebuilt for every request from the contract and the settings, so nothing of it is
stored. We do the comparison ourselves: a facilitator's answer is only a second opinion on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from worker.core.amounts import atomic_units
from worker.core.errors import Problem
from worker.core.evm import checksum_address, is_address
from worker.x402.header_budget import LEFT_OUT
from worker.x402.headers import PAYMENT_REQUIRED, required_header, shown
from worker.x402.networks import Network
from worker.x402.typed_data import transfer_digest
from worker.x402.windows import WindowReason, longest_validity, validity
from worker.x402.wire import PAYMENT_IDENTIFIER, PaymentPayload

SCHEME = "exact"
MAX_DESCRIPTION = 500  # what Coinbase's facilitator takes
MAX_ERROR = 200

_IDENTIFIER_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "required": {"type": "boolean"},
        "id": {"type": "string", "minLength": 16, "maxLength": 128, "pattern": "^[a-zA-Z0-9_-]+$"},
    },
    "required": ["required"],
}


@dataclass(frozen=True, slots=True)
class OfferMismatch:
    """Why a payment does not match our offer; `reason` is x402's own name for it."""

    code: str
    field: str
    expected: Any
    received: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Offer:
    """One request for payment. `price` is the contract's own text, `payer` its seeker's wallet.

    Without a contract `payer` is empty and anybody may pay. `extensions` are x402 extensions by name, each
    with `info` and `schema`; `about` adds the resource's catalog fields: serviceName, tags, iconUrl.

    `needed_s` is the minimum left of a payment's window when it arrives; it is never sent, since
    it varies with the queue. `network_word` is the contract's name for the network if it differs from
    the network's own name: outside production its "base" means whatever network is configured.
    """

    network: Network
    price: str
    pay_to: str
    payer: str
    max_timeout_s: int
    needed_s: int
    resource_url: str
    description: str = ""
    mime_type: str = "application/json"
    network_word: str | None = None
    extensions: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.amount <= 0:
            raise ValueError("an offer asks for money")
        if not is_address(self.pay_to) or (self.payer and not is_address(self.payer)):
            raise ValueError("an offer names its wallets")

    @property
    def amount(self) -> int:
        return atomic_units(self.price)

    def requirements(self) -> dict[str, Any]:
        """Return our V2 terms, for the 402 and for every facilitator call."""
        return {
            "scheme": SCHEME,
            "network": self.network.caip2,
            "amount": str(self.amount),
            "asset": self.network.asset,
            "payTo": checksum_address(self.pay_to),
            "maxTimeoutSeconds": self.max_timeout_s,
            "extra": {"name": self.network.asset_name, "version": self.network.asset_version},
        }

    def resource(self) -> dict[str, Any]:
        """Return the resource that is paid for."""
        return {
            **self.about,
            "url": self.resource_url,
            "description": self.description[:MAX_DESCRIPTION],
            "mimeType": self.mime_type,
        }

    def hire_headers(self) -> dict[str, str]:
        """Return the four headers of HIRE's own 402, with the contract's words."""
        return {
            "X-Payment-Address": checksum_address(self.pay_to),
            "X-Payment-Amount": self.price,
            "X-Payment-Currency": "USDC",
            "X-Payment-Network": self.network_word or self.network.name,
        }

    def payment_required(self, error: str) -> dict[str, Any]:
        """Return the V2 document for PAYMENT-REQUIRED."""
        return {
            "x402Version": 2,
            "error": error[:MAX_ERROR],
            "resource": self.resource(),
            "accepts": [self.requirements()],
            "extensions": {
                PAYMENT_IDENTIFIER: {"info": {"required": False}, "schema": _IDENTIFIER_SCHEMA},
                **self.extensions,
            },
        }

    def v1_body(self, error: str) -> dict[str, Any]:
        """Return the V1 document for the body; V1 clients refuse a null outputSchema."""
        requirements = self.requirements()
        return {
            "x402Version": 1,
            "error": error[:MAX_ERROR],
            "accepts": [
                {
                    "scheme": SCHEME,
                    "network": self.network.name,
                    "maxAmountRequired": requirements["amount"],
                    "resource": self.resource_url,
                    "description": self.description[:MAX_DESCRIPTION],
                    "mimeType": self.mime_type,
                    "payTo": requirements["payTo"],
                    "maxTimeoutSeconds": self.max_timeout_s,
                    "asset": self.network.asset,
                    "extra": requirements["extra"],
                }
            ],
        }

    def headers(self, error: str) -> dict[str, str]:
        """Return all payment headers of a 402, HIRE's and x402's."""
        if self.extensions or self.about:
            return self._headers(error)
        # Many contracts share an offer, and a contract is offered again.
        terms = self.network, self.price, self.pay_to, self.max_timeout_s, self.resource_url
        return dict(_plain_headers(*terms, self.description, self.mime_type, self.network_word, error))

    def _headers(self, error: str) -> dict[str, str]:
        return {
            **self.hire_headers(),
            PAYMENT_REQUIRED: required_header(self.payment_required(error), LEFT_OUT),
        }


@lru_cache(maxsize=512)
def _plain_headers(
    network: Network,
    price: str,
    pay_to: str,
    max_timeout_s: int,
    resource_url: str,
    description: str,
    mime_type: str,
    network_word: str | None,
    error: str,
) -> Mapping[str, str]:
    """The headers of an offer without extensions."""
    offer = Offer(
        network, price, pay_to, "", max_timeout_s, 0, resource_url, description, mime_type, network_word
    )
    return offer._headers(error)


def mismatch(payment: PaymentPayload, offer: Offer, now_s: int) -> OfferMismatch | None:
    """Return the first difference between a payment and our offer, or None."""
    return (
        _accepted_mismatch(payment, offer)
        or _authorization_mismatch(payment, offer)
        or _validity_mismatch(payment, offer, now_s)
    )


def signature_mismatch(
    payment: PaymentPayload, offer: Offer, recover: Callable[[bytes, bytes], str]
) -> OfferMismatch | None:
    """Check a 65-byte signature against the payer; other lengths belong to smart wallets, which only
    a facilitator can check. `recover` takes a digest and a signature and returns an address.
    """
    signature = payment.signature_bytes
    if len(signature) != 65:
        return None
    digest = transfer_digest(offer.network.domain, payment.authorization)
    reason = "invalid_exact_evm_payload_signature"
    try:
        signer = recover(digest, signature)
    except (ValueError, Problem):
        return OfferMismatch(
            "PAYMENT_INVALID", "payload.signature", "a valid signature", "an invalid one", reason
        )
    if not _same_hex(signer, payment.authorization.payer):
        payer = payment.authorization.payer
        return OfferMismatch("PAYMENT_INVALID", "payload.signature", f"signed by {payer}", signer, reason)
    return None


def _accepted_mismatch(payment: PaymentPayload, offer: Offer) -> OfferMismatch | None:
    accepted, ours = payment.accepted, offer.requirements()
    extra = accepted.extra
    exact: tuple[tuple[str, Any, Any, str], ...] = (
        ("accepted.scheme", ours["scheme"], accepted.scheme, "invalid_scheme"),
        ("accepted.network", ours["network"], accepted.network, "invalid_network"),
        ("accepted.amount", ours["amount"], accepted.amount, "invalid_payment_requirements"),
        (
            "accepted.maxTimeoutSeconds",
            ours["maxTimeoutSeconds"],
            accepted.max_timeout_seconds,
            "invalid_payment_requirements",
        ),
        ("accepted.extra.name", ours["extra"]["name"], extra.get("name"), "invalid_payment_requirements"),
        (
            "accepted.extra.version",
            ours["extra"]["version"],
            extra.get("version"),
            "invalid_payment_requirements",
        ),
    )
    for path, expected, received, reason in exact:
        if received != expected:
            return _refusal(path, expected, received, reason)
    for path, expected, received in (
        ("accepted.asset", ours["asset"], accepted.asset),
        ("accepted.payTo", ours["payTo"], accepted.pay_to),
    ):
        if not _same_hex(received, expected):
            return _refusal(path, expected, received, "invalid_payment_requirements")
    return _added_terms(extra) or _resource_mismatch(payment.resource, offer)


def _added_terms(extra: Mapping[str, Any]) -> OfferMismatch | None:
    """Refuse keys that a client may add but that would change how a facilitator settles."""
    for key, only in (("assetTransferMethod", "eip3009"), ("paymentFlow", "authorization")):
        if key in extra and extra[key] != only:
            return _refusal(f"accepted.extra.{key}", only, extra[key], "invalid_payment_requirements")
    return None


def _resource_mismatch(resource: Mapping[str, Any] | None, offer: Offer) -> OfferMismatch | None:
    if resource is None or resource.get("url") in (None, offer.resource_url):
        return None
    return _refusal("resource.url", offer.resource_url, resource["url"], "invalid_payload")


def _authorization_mismatch(payment: PaymentPayload, offer: Offer) -> OfferMismatch | None:
    authorization = payment.authorization
    where = "payload.authorization."
    if not _same_hex(authorization.to, offer.pay_to):
        reason = "invalid_exact_evm_payload_recipient_mismatch"
        return _refusal(f"{where}to", offer.pay_to, authorization.to, reason)
    if authorization.value != offer.amount:
        reason = "invalid_exact_evm_payload_authorization_value_mismatch"
        return _refusal(f"{where}value", str(offer.amount), str(authorization.value), reason)
    if offer.payer and not _same_hex(authorization.payer, offer.payer):
        return OfferMismatch(
            "PAYMENT_PAYER_MISMATCH", f"{where}from", offer.payer, authorization.payer, "invalid_payload"
        )
    return None


def _validity_mismatch(payment: PaymentPayload, offer: Offer, now_s: int) -> OfferMismatch | None:
    authorization = payment.authorization
    if authorization.valid_after > now_s:
        reason = "invalid_exact_evm_payload_authorization_valid_after"
        return _refusal(
            "payload.authorization.validAfter", f"at most {now_s}", str(authorization.valid_after), reason
        )
    found = validity(authorization.valid_before, now_s, offer.needed_s, offer.max_timeout_s)
    if found is None:
        return None
    if found is WindowReason.AUTHORIZATION_TOO_SHORT:
        expected = f"at least {now_s + offer.needed_s}"
    else:
        expected = f"at most {now_s + longest_validity(offer.max_timeout_s)}"
    reason = "invalid_exact_evm_payload_authorization_valid_before"
    return _refusal("payload.authorization.validBefore", expected, str(authorization.valid_before), reason)


def _same_hex(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def _refusal(field: str, expected: Any, received: Any, reason: str) -> OfferMismatch:
    return OfferMismatch("PAYMENT_INVALID", field, expected, shown(received), reason)
