"""EIP-712 digests, encoded by hand because the usual packages take half a second to import.

Only the static types that payments need are known here: address, uint256, bytes32 and string.
Whoever signs or recovers does it elsewhere; this file turns values into the 32 bytes they sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from eth_hash.auto import keccak as _keccak

UINT256_MAX = 2**256 - 1
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
_BYTES32 = re.compile(r"0x[0-9a-fA-F]{64}")


def keccak(data: bytes) -> bytes:
    """Return the Keccak-256 hash that Ethereum uses."""
    return bytes(_keccak(data))


def is_address(value: object) -> bool:
    """Tell whether this is 0x and 40 hex digits, in any case."""
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def is_bytes32(value: object) -> bool:
    """Tell whether this is 0x and 64 hex digits: a nonce or a transaction hash."""
    return isinstance(value, str) and _BYTES32.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Domain:
    """An EIP-712 domain; without a contract the field is left out of the type too."""

    name: str
    version: str
    chain_id: int
    verifying_contract: str | None = None


@dataclass(frozen=True, slots=True)
class Struct:
    """A named EIP-712 type: its fields in the order in which they are hashed."""

    name: str
    fields: tuple[tuple[str, str], ...]

    def encode_type(self) -> bytes:
        """Return the type's own text, for example `Mail(address from,string text)`."""
        return f"{self.name}({','.join(f'{kind} {field}' for field, kind in self.fields)})".encode()


@dataclass(frozen=True, slots=True)
class Authorization:
    """An EIP-3009 transfer that its payer allows; hex is lower case, times are Unix seconds."""

    payer: str
    to: str
    value: int
    valid_after: int
    valid_before: int
    nonce: str

    def to_wire(self) -> dict[str, str]:
        """Return the six strings as x402 writes them."""
        return {
            "from": self.payer,
            "to": self.to,
            "value": str(self.value),
            "validAfter": str(self.valid_after),
            "validBefore": str(self.valid_before),
            "nonce": self.nonce,
        }


TRANSFER = Struct(
    "TransferWithAuthorization",
    (
        ("from", "address"),
        ("to", "address"),
        ("value", "uint256"),
        ("validAfter", "uint256"),
        ("validBefore", "uint256"),
        ("nonce", "bytes32"),
    ),
)

RECEIPT = Struct(
    "Receipt",
    (
        ("version", "uint256"),
        ("network", "string"),
        ("resourceUrl", "string"),
        ("payer", "string"),
        ("issuedAt", "uint256"),
        ("transaction", "string"),
    ),
)

# The extension fixes chain id 1 for every network: its signatures never go on a chain.
RECEIPT_DOMAIN = Domain("x402 receipt", "1", 1)


def transfer_digest(domain: Domain, authorization: Authorization) -> bytes:
    """Return what the payer of an EIP-3009 transfer signs."""
    values = {
        "from": authorization.payer,
        "to": authorization.to,
        "value": authorization.value,
        "validAfter": authorization.valid_after,
        "validBefore": authorization.valid_before,
        "nonce": authorization.nonce,
    }
    return digest(domain, TRANSFER, values)


def receipt_digest(payload: Mapping[str, Any]) -> bytes:
    """Return what a server signs on an x402 offer-receipt receipt; no transaction counts as ""."""
    return digest(RECEIPT_DOMAIN, RECEIPT, {"transaction": "", **payload})


def digest(domain: Domain, struct: Struct, values: Mapping[str, Any]) -> bytes:
    """Return the 32 bytes to sign; a missing or misformed value is a ValueError."""
    return keccak(b"\x19\x01" + domain_separator(domain) + hash_struct(struct, values))


def hash_struct(struct: Struct, values: Mapping[str, Any]) -> bytes:
    """Return EIP-712's hashStruct of these values."""
    parts = [_type_hash(struct)]
    for field, kind in struct.fields:
        if field not in values:
            raise ValueError(f"{struct.name} has no value for {field}")
        parts.append(_encode(kind, values[field], field))
    return keccak(b"".join(parts))


@lru_cache(maxsize=64)
def domain_separator(domain: Domain) -> bytes:
    """Return the hash that ties a digest to one contract on one chain."""
    fields = [("name", "string"), ("version", "string"), ("chainId", "uint256")]
    values: dict[str, Any] = {"name": domain.name, "version": domain.version, "chainId": domain.chain_id}
    if domain.verifying_contract is not None:
        fields.append(("verifyingContract", "address"))
        values["verifyingContract"] = domain.verifying_contract
    return hash_struct(Struct("EIP712Domain", tuple(fields)), values)


@lru_cache(maxsize=64)
def _type_hash(struct: Struct) -> bytes:
    return keccak(struct.encode_type())


def _encode(kind: str, value: Any, field: str) -> bytes:
    if kind == "string" and isinstance(value, str):
        return keccak(value.encode("utf-8"))
    if kind == "uint256" and type(value) is int and 0 <= value <= UINT256_MAX:
        return value.to_bytes(32, "big")
    if kind == "address" and is_address(value):
        return bytes(12) + bytes.fromhex(value[2:])
    if kind == "bytes32" and is_bytes32(value):
        return bytes.fromhex(value[2:])
    raise ValueError(f"{field} is not a {kind}")
