"""Nonces and authorizations of legs: transfers from the worker's own wallet that follow payments.

Pure functions. A leg is an EIP-3009 authorization whose nonce is derived from its purpose, so the chain
pays it once, however often it is signed and with whatever end.
"""

from __future__ import annotations

from typing import Any

from worker.core.evm import checksum_address, is_address, keccak
from worker.payments.leg import LegKind
from worker.x402.networks import Network
from worker.x402.typed_data import UINT256_MAX, Authorization

_NONCE_PREFIX = b"hire-worker leg 1"


def fee_subject(network: Network, wallet: str, period: str) -> str:
    """Return the subject of a fee leg: wallet, coin and period of the fees."""
    return "/".join((network.caip2, network.asset, wallet, period)).lower()


def leg_nonce(kind: LegKind, subject: str, ordinal: int) -> str:
    """Return the unique nonce of this leg; the subject is a payment key or a `fee_subject`.

    Every part is prefixed with its length, so that no two different legs hash the same bytes.
    """
    if ordinal < 0:
        raise ValueError("an ordinal is not negative")
    parts = (_NONCE_PREFIX, kind.value.encode(), subject.lower().encode("utf-8"), str(ordinal).encode())
    return "0x" + keccak(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).hex()


def leg_authorization(
    *, wallet: str, to: str, amount: int, nonce: str, now_s: int, window_s: int
) -> Authorization:
    """Return the transfer to sign. Signing it again with a later end is safe: the nonce stays."""
    if not (is_address(wallet) and is_address(to)) or wallet.lower() == to.lower():
        raise ValueError("a leg goes from one address to another")
    if not 0 < amount <= UINT256_MAX:
        raise ValueError("a leg of nothing is not made")
    if window_s <= 0:
        raise ValueError("a leg needs time to settle")
    return Authorization(
        payer=wallet.lower(),
        to=to.lower(),
        value=amount,
        valid_after=0,
        valid_before=now_s + window_s,
        nonce=nonce,
    )


def leg_requirements(authorization: Authorization, network: Network, window_s: int) -> dict[str, Any]:
    """Return the V2 terms that a facilitator checks this leg against."""
    return {
        "scheme": "exact",
        "network": network.caip2,
        "amount": str(authorization.value),
        "asset": network.asset,
        "payTo": checksum_address(authorization.to),
        "maxTimeoutSeconds": window_s,
        "extra": {"name": network.asset_name, "version": network.asset_version},
    }


def leg_payload(
    authorization: Authorization, signature: bytes, requirements: dict[str, Any]
) -> dict[str, Any]:
    """Return the V2 payment payload to journal and to send to a facilitator."""
    return {
        "x402Version": 2,
        "accepted": requirements,
        "payload": {"signature": "0x" + signature.hex(), "authorization": authorization.to_wire()},
    }
