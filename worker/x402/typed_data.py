"""EIP-712 digests, encoded by hand because the usual packages take half a second to import.

Supports only the static types that payments need: address, uint256, bytes32 and string. This
module turns values into the 32 bytes to sign; signing and recovery happen elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from worker.core.bounded_cache import keep_by_length
from worker.core.evm import checksum_address, is_address, is_bytes32, keccak

UINT256_MAX = 2**256 - 1
# Characters of the texts whose hashes a process keeps.
_KEPT_CHARS = 32 * 1024


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
        """Return the type's encoding, for example `Mail(address from,string text)`."""
        return f"{self.name}({','.join(f'{kind} {field}' for field, kind in self.fields)})".encode()


@dataclass(frozen=True, slots=True)
class Authorization:
    """An EIP-3009 transfer authorized by its payer; hex is lower case, times are Unix seconds."""

    payer: str
    to: str
    value: int
    valid_after: int
    valid_before: int
    nonce: str

    def to_wire(self) -> dict[str, str]:
        """Return the six strings as x402 writes them, addresses with their checksum."""
        return {
            "from": checksum_address(self.payer),
            "to": checksum_address(self.to),
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
    """Return the digest that the payer of an EIP-3009 transfer signs."""
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
    """Return the digest of an x402 offer-receipt receipt; a missing transaction counts as ""."""
    return digest(RECEIPT_DOMAIN, RECEIPT, {"transaction": "", **payload})


def digest(domain: Domain, struct: Struct, values: Mapping[str, Any]) -> bytes:
    """Return the 32 bytes to sign; a missing or malformed value raises a ValueError."""
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
    """Return the hash that binds a digest to one contract on one chain."""
    fields = [("name", "string"), ("version", "string"), ("chainId", "uint256")]
    values: dict[str, Any] = {"name": domain.name, "version": domain.version, "chainId": domain.chain_id}
    if domain.verifying_contract is not None:
        fields.append(("verifyingContract", "address"))
        values["verifyingContract"] = domain.verifying_contract
    return hash_struct(Struct("EIP712Domain", tuple(fields)), values)


@keep_by_length(_KEPT_CHARS)
def _text_hash(text: str) -> bytes:
    """Networks, addresses and URLs are the same in many statements."""
    return keccak(text.encode("utf-8"))


@lru_cache(maxsize=64)
def _type_hash(struct: Struct) -> bytes:
    return keccak(struct.encode_type())


def _encode(kind: str, value: Any, field: str) -> bytes:
    if kind == "string" and isinstance(value, str):
        return _text_hash(value)
    if kind == "uint256" and type(value) is int and 0 <= value <= UINT256_MAX:
        return value.to_bytes(32, "big")
    if kind == "address" and is_address(value):
        return bytes(12) + bytes.fromhex(value[2:])
    if kind == "bytes32" and is_bytes32(value):
        return bytes.fromhex(value[2:])
    raise ValueError(f"{field} is not a {kind}")
