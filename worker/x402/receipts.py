"""Statements for a payer: the PAYMENT-RESPONSE, a signed receipt, a signed refund receipt.

The receipt is x402's offer-receipt extension, EIP-712 form. No standard has a refund receipt, so
ours is an EIP-712 struct too, with the domain {name "hire refund receipt", version "1", chainId 1}:

    RefundReceipt(uint256 version, string network, string asset, string payer, string amount,
                  string payment, string refund, string reason, string contract, uint256 issuedAt)

`payment` and `refund` are transaction hashes, `amount` is in atomic units, `contract` is the hash
that both parties signed, never the contract's id. It travels as {format, payload, signature}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from worker.core.bounded_cache import BoundedCache
from worker.core.evm import checksum_address, is_bytes32
from worker.core.json import ascii_of
from worker.x402.typed_data import RECEIPT, RECEIPT_DOMAIN, Domain, Struct, digest

OFFER_RECEIPT = "offer-receipt"

# Takes a digest, returns 65 bytes: r, s, v.
Sign = Callable[[bytes], bytes]

REFUND_DOMAIN = Domain("hire refund receipt", "1", 1)
REFUND = Struct(
    "RefundReceipt",
    (
        ("version", "uint256"),
        ("network", "string"),
        ("asset", "string"),
        ("payer", "string"),
        ("amount", "string"),
        ("payment", "string"),
        ("refund", "string"),
        ("reason", "string"),
        ("contract", "string"),
        ("issuedAt", "uint256"),
    ),
)

# What PAYMENT-RESPONSEs say, which are made shortly before their tasks are answered; bounded by characters.
_OUTCOMES: BoundedCache[Mapping[str, Any]] = BoundedCache(128 * 1024)
# Stored PAYMENT-RESPONSEs leave it out (payments/packed_payment.py): another schema needs a word of its own.
RECEIPT_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "receipt": {
            "type": "object",
            "properties": {
                "format": {"type": "string", "const": "eip712"},
                "payload": {
                    "type": "object",
                    "properties": {
                        "version": {"type": "integer"},
                        "network": {"type": "string"},
                        "resourceUrl": {"type": "string"},
                        "payer": {"type": "string"},
                        "issuedAt": {"type": "integer"},
                        "transaction": {"type": "string"},
                    },
                    "required": ["version", "network", "resourceUrl", "payer", "issuedAt"],
                },
                "signature": {"type": "string"},
            },
            "required": ["format", "payload", "signature"],
        }
    },
    "required": ["receipt"],
}


# Behind the schema three objects end: the receipt's extension, all extensions and the response.
_SCHEMA_END = f',"schema":{ascii_of(RECEIPT_SCHEMA)}}}}}}}'


class RefundReason(StrEnum):
    """Why money was refunded, in the terms of x402's draft refund extension."""

    NOT_DELIVERED = "service_not_delivered"
    DEFECTIVE = "service_defective"
    DUPLICATE = "duplicate_payment"
    OVERCHARGE = "overcharge"
    CUSTOMER_REQUEST = "customer_request"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Settlement:
    """A payment whose money has moved, with the fields of its receipt; the network is CAIP-2."""

    network: str
    resource_url: str
    payer: str
    transaction: str
    issued_at_s: int


@dataclass(frozen=True, slots=True)
class Refund:
    """A settled refund; `payment` and `refund` are transaction hashes."""

    network: str
    asset: str
    payer: str
    amount: int
    payment: str
    refund: str
    reason: RefundReason
    contract_hash: str
    issued_at_s: int


def sign_receipt(settlement: Settlement, sign: Sign) -> dict[str, Any]:
    """Return a signed statement that this payer paid for this resource and was served."""
    payload = {
        "version": 1,
        "network": settlement.network,
        "resourceUrl": settlement.resource_url,
        "payer": checksum_address(settlement.payer),
        "issuedAt": settlement.issued_at_s,
        "transaction": settlement.transaction,
    }
    return signed_statement(RECEIPT_DOMAIN, RECEIPT, payload, sign)


def sign_refund(refund: Refund, sign: Sign) -> dict[str, Any]:
    """Return a signed statement that this much of a payment was refunded to its payer."""
    if not (is_bytes32(refund.payment) and is_bytes32(refund.refund)):
        raise ValueError("a refund receipt names two transaction hashes")
    if refund.amount <= 0:
        raise ValueError("a refund receipt names an amount")
    payload = {
        "version": 1,
        "network": refund.network,
        "asset": checksum_address(refund.asset),
        "payer": checksum_address(refund.payer),
        "amount": str(refund.amount),
        "payment": refund.payment,
        "refund": refund.refund,
        "reason": str(refund.reason),
        "contract": refund.contract_hash,
        "issuedAt": refund.issued_at_s,
    }
    return signed_statement(REFUND_DOMAIN, REFUND, payload, sign)


def settled_response(settlement: Settlement, sign: Sign) -> dict[str, Any]:
    """Return the PAYMENT-RESPONSE of a settled payment, with its receipt."""
    return _settled(
        settlement, {"info": {"receipt": sign_receipt(settlement, sign)}, "schema": RECEIPT_SCHEMA}
    )


def settled_text(settlement: Settlement, sign: Sign) -> str:
    """Return the same as JSON. The schema, which is most of it, never changes."""
    outcome = _settled(settlement, {"info": {"receipt": sign_receipt(settlement, sign)}})
    response = f"{ascii_of(outcome)[:-3]}{_SCHEMA_END}"
    _OUTCOMES.add(response, outcome, len(response))
    return response


def outcome_of(response: str) -> Mapping[str, Any]:
    """What a stored PAYMENT-RESPONSE says, without the schema if `settled_text` made it."""
    outcome = _OUTCOMES.get(response)
    if outcome is None:
        outcome = json.loads(_without_schema(response))
        _OUTCOMES.add(response, outcome, len(response))
    return outcome


def _without_schema(response: str) -> str:
    """A stored PAYMENT-RESPONSE as JSON with a third of the text, if `settled_text` made it."""
    return f"{response[: -len(_SCHEMA_END)]}}}}}}}" if response.endswith(_SCHEMA_END) else response


def _settled(settlement: Settlement, receipt: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "success": True,
        "transaction": settlement.transaction,
        "network": settlement.network,
        "payer": checksum_address(settlement.payer),
        "extensions": {OFFER_RECEIPT: receipt},
    }


def failed_response(reason: str, network: str, payer: str | None = None) -> dict[str, Any]:
    """Return the PAYMENT-RESPONSE of a payment that was refused; no money has moved."""
    answer: dict[str, Any] = {
        "success": False,
        "errorReason": reason,
        "transaction": "",
        "network": network,
    }
    if payer is not None:
        answer["payer"] = checksum_address(payer)
    return answer


def pending_response(network: str, payer: str, transaction: str | None = None) -> dict[str, Any]:
    """Return the PAYMENT-RESPONSE of a payment whose outcome is not known yet."""
    answer = failed_response("settlement_pending", network, payer)
    return {**answer, "transaction": transaction or ""}


def signed_statement(domain: Domain, struct: Struct, payload: dict[str, Any], sign: Sign) -> dict[str, Any]:
    """Return {format, payload, signature}, the envelope of all our statements."""
    signature = sign(digest(domain, struct, payload))
    if len(signature) != 65:
        raise ValueError("a signature has 65 bytes")
    return {"format": "eip712", "payload": payload, "signature": "0x" + signature.hex()}
