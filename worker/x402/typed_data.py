"""EIP-712 digests, encoded by hand because the usual packages take half a second to import.

Supports only the static types that payments need: address, uint256, bytes32 and string. This
module turns values into the 32 bytes to sign; signing and recovery happen elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from worker.core.evm import checksum_address, is_address, is_bytes32, keccak

UINT256_MAX = 2**256 - 1
# Hashes of texts up to this many characters are kept.
_SHORT = 256


@dataclass(frozen=True, slots=True)
class Domain:
    """An EIP-712 domain; without a contract the field is left out of the type too."""

    name: str
    version: str
    chain_id: int
    verifying_contract: str | None = None


@dataclass(frozen=True)
class Struct:
    """A named EIP-712 type: its fields in the order in which they are hashed."""

    name: str
    fields: tuple[tuple[str, str], ...]

    def encode_type(self) -> bytes:
        """Return the type's encoding, for example `Mail(address from,string text)`."""
        return f"{self.name}({','.join(f'{kind} {field}' for field, kind in self.fields)})".encode()

    @cached_property
    def type_hash(self) -> bytes:
        return keccak(self.encode_type())

    @cached_property
    def encoders(self) -> tuple[tuple[str, Callable[[Any], bytes | None]], ...]:
        """How each field is encoded; None is the answer to a value of another type."""
        return tuple((field, _ENCODERS.get(kind, _unknown)) for field, kind in self.fields)


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
    parts = [struct.type_hash]
    for field, encode in struct.encoders:
        if field not in values:
            raise ValueError(f"{struct.name} has no value for {field}")
        part = encode(values[field])
        if part is None:
            raise ValueError(f"{field} is not a {dict(struct.fields)[field]}")
        parts.append(part)
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


def _address(value: Any) -> bytes | None:
    return bytes(12) + bytes.fromhex(value[2:]) if is_address(value) else None


def _bytes32(value: Any) -> bytes | None:
    return bytes.fromhex(value[2:]) if is_bytes32(value) else None


def _string(value: Any) -> bytes | None:
    if not isinstance(value, str):
        return None
    return _hash_of(value) if len(value) <= _SHORT else keccak(value.encode("utf-8"))


# A network, an address of ours and a payer are in many receipts.
@lru_cache(maxsize=256)
def _hash_of(text: str) -> bytes:
    return keccak(text.encode("utf-8"))


def _uint256(value: Any) -> bytes | None:
    return value.to_bytes(32, "big") if type(value) is int and 0 <= value <= UINT256_MAX else None


def _unknown(_: Any) -> None:
    """For a type that we do not encode."""


_ENCODERS: dict[str, Callable[[Any], bytes | None]] = {
    "address": _address,
    "bytes32": _bytes32,
    "string": _string,
    "uint256": _uint256,
}
