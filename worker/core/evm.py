"""EVM values: Keccak hash, addresses, 32-byte words."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

Hash = Callable[[bytes], bytes]


def _keccak_in_c() -> Hash:
    from sha3 import keccak_256

    return lambda data: bytes(keccak_256(data).digest())


def _portable_keccak() -> Hash:
    from eth_hash.auto import keccak as found

    return lambda data: bytes(found(data))


# The one in C takes a third of the time, but some systems have no wheels for it.
try:
    _keccak = _keccak_in_c()
except ImportError:
    _keccak = _portable_keccak()

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
_BYTES32 = re.compile(r"0x[0-9a-fA-F]{64}")


def keccak(data: bytes) -> bytes:
    """Keccak-256, Ethereum's hash (not the later SHA-3)."""
    return _keccak(data)


def is_address(value: object) -> bool:
    """Whether the value is 0x and 40 hex digits, in any case."""
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def is_bytes32(value: object) -> bool:
    """Whether the value is 0x and 64 hex digits, as nonces and transaction hashes are."""
    return isinstance(value, str) and _BYTES32.fullmatch(value) is not None


def same_address(one: str, other: str) -> bool:
    """Whether both are addresses and equal, ignoring case."""
    return is_address(one) and is_address(other) and one.lower() == other.lower()


@lru_cache(maxsize=4_096)
def checksum_address(address: str) -> str:
    """Returns the EIP-55 form of an address."""
    if not is_address(address):
        raise ValueError("not an address")
    digits = address[2:].lower()
    marks = keccak(digits.encode()).hex()
    return "0x" + "".join(d.upper() if int(m, 16) > 7 else d for d, m in zip(digits, marks, strict=False))


def is_mistyped(address: str) -> bool:
    """Whether a mixed-case address fails its EIP-55 checksum: one of its letters or digits is wrong."""
    digits = address[2:]
    return digits not in {digits.lower(), digits.upper()} and address != checksum_address(address)


def address_of_point(point: bytes) -> str:
    """Returns the address of a public key, given as the 64 bytes of its point."""
    return checksum_address("0x" + keccak(point)[-20:].hex())
