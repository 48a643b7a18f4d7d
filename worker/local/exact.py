"""A payment of scheme `exact` as a facilitator receives it, and all checks that need no chain.

Both protocol versions become one value. The checks run in the reference facilitator's order and return the
same reasons, so that a resource server sees no difference.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from eth_utils.crypto import keccak

V1_CHAINS = {"base": 8453, "base-sepolia": 84532}
SETTLE_SECONDS = 6

TRANSFER_TYPE = keccak(
    b"TransferWithAuthorization(address from,address to,uint256 value,"
    b"uint256 validAfter,uint256 validBefore,bytes32 nonce)"
)
DOMAIN_TYPE = keccak(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")
ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}\Z")
NONCE = re.compile(r"0x[0-9a-fA-F]{64}\Z")
HEX = re.compile(r"0x(?:[0-9a-fA-F]{2})*\Z")
DECIMAL = re.compile(r"[0-9]{1,78}\Z")
MOST_SIGNATURE = 8192


class PaymentRejected(Exception):
    """The payment is invalid; `reason` is the protocol's code for why."""

    def __init__(self, reason: str, payer: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.payer = payer


@dataclass(frozen=True)
class ExactPayment:
    """A signed authorization and what it should pay for. Addresses are lower-case."""

    version: int
    scheme: str
    network: str
    offered_network: str
    asset: str
    pay_to: str
    amount: int
    domain_name: str | None
    domain_version: str | None
    payer: str
    to: str
    value: int
    valid_after: int
    valid_before: int
    nonce: bytes
    signature: bytes | None
    fingerprint: str

    @property
    def key(self) -> tuple[str, str, bytes]:
        """What can be spent once: the asset's record of this payer's nonce."""
        return self.asset, self.payer, self.nonce

    def digest(self, chain_id: int) -> bytes:
        """The digest the payer signed (EIP-712)."""
        separator = keccak(
            DOMAIN_TYPE
            + keccak((self.domain_name or "").encode())
            + keccak((self.domain_version or "").encode())
            + word(chain_id)
            + word(self.asset)
        )
        body = self.arguments
        return keccak(b"\x19\x01" + separator + keccak(TRANSFER_TYPE + body))

    @property
    def arguments(self) -> bytes:
        """The six values of the authorization, as both the signature and the contract take them."""
        parts = (self.payer, self.to, self.value, self.valid_after, self.valid_before)
        return b"".join(word(part) for part in parts) + self.nonce


def word(value: int | str) -> bytes:
    """A number or an address as the 32 bytes that contracts read."""
    return (int(value, 16) if isinstance(value, str) else value).to_bytes(32, "big")


def read(body: Any) -> ExactPayment:
    """Parse `{x402Version, paymentPayload, paymentRequirements}`; reject anything malformed."""
    try:
        version = body["x402Version"]
        payload, wanted = body["paymentPayload"], body["paymentRequirements"]
        if (
            version not in (1, 2)
            or isinstance(version, bool)
            or payload.get("x402Version", version) != version
        ):
            raise PaymentRejected("invalid_x402_version")
        chosen = payload if version == 1 else payload["accepted"]
        signed = payload["payload"]
        authorization = signed["authorization"]
        extra = wanted.get("extra") or {}
        return ExactPayment(
            version=version,
            scheme=_text(chosen["scheme"]),
            network=_text(wanted["network"]),
            offered_network=_text(chosen["network"]),
            asset=_match(ADDRESS, wanted["asset"]).lower(),
            pay_to=_match(ADDRESS, wanted["payTo"]).lower(),
            amount=_number(wanted["maxAmountRequired" if version == 1 else "amount"]),
            domain_name=_optional(extra.get("name")),
            domain_version=_optional(extra.get("version")),
            payer=_match(ADDRESS, authorization["from"]).lower(),
            to=_match(ADDRESS, authorization["to"]).lower(),
            value=_number(authorization["value"]),
            valid_after=_number(authorization["validAfter"]),
            valid_before=_number(authorization["validBefore"]),
            nonce=bytes.fromhex(_match(NONCE, authorization["nonce"])[2:]),
            signature=_signature(signed.get("signature")),
            fingerprint=_fingerprint(payload, wanted),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise PaymentRejected("invalid_payload") from exc


def check(payment: ExactPayment, chain_id: int, now: int) -> None:
    """Run every check that does not need the chain, in the reference order."""
    reject = _rejecter(payment)
    if payment.scheme != "exact":
        reject("unsupported_scheme")
    if payment.offered_network != payment.network:
        reject("network_mismatch")
    if chain_of(payment.network) != chain_id:
        reject("invalid_exact_evm_failed_to_get_network_config")
    if payment.domain_name is None or payment.domain_version is None:
        reject("missing_eip712_domain")
    if payment.to != payment.pay_to:
        reject("invalid_exact_evm_payload_recipient_mismatch")
    if payment.version == 1 and payment.value < payment.amount:
        reject("invalid_exact_evm_payload_authorization_value")
    if payment.version == 2 and payment.value != payment.amount:
        reject("invalid_exact_evm_payload_authorization_value_mismatch")
    if payment.valid_before < now + SETTLE_SECONDS:
        reject("invalid_exact_evm_payload_authorization_valid_before")
    if payment.valid_after > now:
        reject("invalid_exact_evm_payload_authorization_valid_after")
    if payment.signature is None:
        reject("invalid_exact_evm_payload_signature")


def chain_of(network: str) -> int | None:
    """The chain id for either version's name of a network."""
    space, _, reference = network.partition(":")
    if space == "eip155" and DECIMAL.match(reference):
        return int(reference)
    return V1_CHAINS.get(network)


def v1_name(chain_id: int) -> str | None:
    return next((name for name, known in V1_CHAINS.items() if known == chain_id), None)


def _rejecter(payment: ExactPayment) -> Any:
    def reject(reason: str) -> None:
        raise PaymentRejected(reason, payment.payer)

    return reject


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _match(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.match(_text(value)):
        raise ValueError(value)
    return str(value)


def _number(value: Any) -> int:
    """Parse a decimal string, as the protocol writes it; it must fit the contract's word."""
    number = int(_match(DECIMAL, value))
    if number >= 2**256:
        raise ValueError(value)
    return number


def _signature(value: Any) -> bytes | None:
    if value is None or value == "":
        return None
    text = _match(HEX, value)
    if len(text) > 2 + 2 * MOST_SIGNATURE:
        raise ValueError(value)
    return bytes.fromhex(text[2:])


def _fingerprint(payload: Any, wanted: Any) -> str:
    """One value for all fields of a request, independent of key order; null means absent."""
    canonical = json.dumps([_pruned(payload), _pruned(wanted)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _pruned(each) for name, each in value.items() if each is not None}
    return [_pruned(each) for each in value] if isinstance(value, list) else value
