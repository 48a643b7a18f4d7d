"""Classifies a facilitator's answers: settled, refused or unknown; valid, invalid or unknown.

Only a code on the closed list below, with no transaction and no earlier unknown settle of the same
payment, counts as refused: from then on a seeker may be asked to pay again. Anything not certainly
settled or certainly refused is unknown, and only a later success or the chain ends it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.core.errors import BadRequest
from worker.core.evm import is_bytes32
from worker.x402.bazaar import BAZAAR
from worker.x402.headers import decode

EXTENSION_RESPONSES = "EXTENSION-RESPONSES"

# Faults found in the authorization or the wallet before anything is sent to the chain. Excluded on
# purpose: a used nonce (the payer may have sent the very transfer), a failed simulation, a failed
# or unconfirmed transaction, every failure to query a node, and every code that says "unexpected".
REFUSED_CODES = frozenset(
    {
        # the payer's wallet
        "insufficient_funds",
        "invalid_exact_evm_insufficient_balance",
        "invalid_exact_evm_insufficient_funds",
        "invalid_exact_evm_payload_undeployed_smart_wallet",
        "eip6492_factory_not_allowed",
        # payers who are not served
        "kyt_risk_detected",
        "request_blocked_by_location",
        "self_send_not_allowed",
        "invalid_exact_evm_payload_authorization_from_address_kyt",
        "invalid_exact_evm_payload_authorization_to_address_kyt",
        # the signature
        "invalid_exact_evm_payload_signature",
        "invalid_exact_evm_payload_signature_address",
        "invalid_exact_evm_payload_missing_signature",
        "invalid_exact_evm_signature",
        "invalid_exact_evm_signature_format",
        "invalid_exact_evm_failed_to_parse_signature",
        # the terms
        "invalid_exact_evm_payload_authorization_typed_data_message",
        "invalid_exact_evm_payload_authorization_valid_after",
        "invalid_exact_evm_payload_authorization_valid_before",
        "invalid_exact_evm_payload_authorization_value",
        "invalid_exact_evm_payload_authorization_value_mismatch",
        "invalid_exact_evm_payload_authorization_value_too_low",
        "invalid_exact_evm_payload_recipient_mismatch",
        "invalid_exact_evm_recipient_mismatch",
        "invalid_exact_evm_authorization_value",
        "invalid_exact_evm_required_amount",
        "invalid_exact_evm_missing_eip712_domain",
        "missing_eip712_domain",
        "invalid_exact_evm_token_name_mismatch",
        "invalid_exact_evm_token_version_mismatch",
        "invalid_exact_evm_eip3009_not_supported",
        "asset_not_deployed_contract",
        "amount_too_low",
        "invalid_amount",
        # the request
        "invalid_exact_evm_extra_field",
        "invalid_exact_evm_network_mismatch",
        "invalid_exact_evm_payload",
        "invalid_exact_evm_scheme",
        "invalid_exact_evm_unsupported_scheme",
        "invalid_network",
        "invalid_payload",
        "invalid_payment_requirements",
        "invalid_scheme",
        "invalid_x402_version",
        "network_mismatch",
        "unsupported_payload_type",
        "unsupported_scheme",
    }
)

# Refusals that no longer apply once the wallet has the money.
OUT_OF_MONEY_CODES = frozenset(
    {
        "insufficient_funds",
        "invalid_exact_evm_insufficient_balance",
        "invalid_exact_evm_insufficient_funds",
    }
)

NONCE_USED_CODES = frozenset(
    {
        "invalid_exact_evm_nonce_already_used",
        "invalid_exact_evm_payload_authorization_nonce",
        "nonce_already_used",
    }
)

# Codes of a facilitator that could not check a payment, as opposed to one that found it wrong.
_COULD_NOT_TELL = re.compile(
    r"unexpected|unknown_error|node_failure|timed_out|timeout|rate_limit|failed_to_(?!parse_signature)"
    r"|pending|duplicate_settlement"
)
_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,120}")


@dataclass(frozen=True, slots=True)
class CatalogStatus:
    """Whether a catalog listed the paid endpoint: success, processing or rejected, and why not."""

    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FacilitatorAnswer:
    """The HTTP status with its JSON object, or the kind of fault instead."""

    status: int | None = None
    body: Mapping[str, Any] | None = None
    fault: str | None = None
    catalog: CatalogStatus | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """The money has moved, in this transaction."""

    transaction: str


@dataclass(frozen=True, slots=True)
class SettlementRefused:
    """No money has moved and none will."""

    code: str


@dataclass(frozen=True, slots=True)
class SettlementUnknown:
    """Money may have moved. `transaction` is a hash to look for, `nonce_used` a hint, not a proof."""

    cause: str
    transaction: str | None = None
    nonce_used: bool = False


@dataclass(frozen=True, slots=True)
class Valid:
    """The facilitator would settle this payment."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """The facilitator would not settle it. With `nonce_used`, check the chain before asking again."""

    code: str
    nonce_used: bool = False


@dataclass(frozen=True, slots=True)
class VerificationUnknown:
    """The facilitator could not tell; asking again moves no money."""

    cause: str


def classify_settle(
    answer: FacilitatorAnswer, *, earlier_unknown: bool
) -> Settled | SettlementRefused | SettlementUnknown:
    """Classify a settle answer; `earlier_unknown`: an earlier call of this payment ended unknown."""
    body = answer.body
    if answer.status is None or body is None:
        return SettlementUnknown(_silence(answer))
    success, code = body.get("success"), clean_code(body.get("errorReason"))
    named = body.get("transaction")
    transaction = named.lower() if isinstance(named, str) and is_bytes32(named) else None
    used = code in NONCE_USED_CODES
    http = f"http_{answer.status}"
    if success is True:
        if transaction is None:
            return SettlementUnknown("success_without_hash")
        return Settled(transaction) if 200 <= answer.status < 300 else SettlementUnknown(http, transaction)
    if success is not False:
        return SettlementUnknown(http, transaction)
    if named not in (None, ""):
        return SettlementUnknown(code or "failed_with_transaction", transaction, used)
    answered = 200 <= answer.status < 300 or 400 <= answer.status < 500
    if answered and code in REFUSED_CODES and not earlier_unknown:
        return SettlementRefused(code)
    return SettlementUnknown(code or (http if not answered else "no_reason"), None, used)


def classify_verify(answer: FacilitatorAnswer) -> Valid | Invalid | VerificationUnknown:
    """Classify a verify answer."""
    body = answer.body
    if answer.status is None or body is None:
        return VerificationUnknown(_silence(answer))
    valid, code = body.get("isValid"), clean_code(body.get("invalidReason"))
    answered = 200 <= answer.status < 300
    if valid is True and answered:
        return Valid()
    if valid is not False or not (answered or 400 <= answer.status < 500):
        return VerificationUnknown(f"http_{answer.status}")
    if code and _COULD_NOT_TELL.search(code):
        return VerificationUnknown(code)
    return Invalid(code or "unspecified", code in NONCE_USED_CODES)


def supports(answer: FacilitatorAnswer, network: str) -> bool:
    """Tell whether a /supported answer lists V2 `exact` payments on this CAIP-2 network."""
    kinds = answer.body.get("kinds") if answer.body is not None and answer.status == 200 else None
    if not isinstance(kinds, list):
        return False
    return any(
        isinstance(kind, dict)
        and (kind.get("x402Version"), kind.get("scheme"), kind.get("network")) == (2, "exact", network)
        for kind in kinds
    )


def _silence(answer: FacilitatorAnswer) -> str:
    if answer.status is not None and not 200 <= answer.status < 300:
        return f"http_{answer.status}"
    return answer.fault or "no_answer"


def read_catalog_status(header: str | None) -> CatalogStatus | None:
    """Return the listing status in EXTENSION-RESPONSES; None if it is missing or unreadable."""
    if not header:
        return None
    try:
        entry = decode(header, EXTENSION_RESPONSES).get(BAZAAR)
    except BadRequest:
        return None
    if not isinstance(entry, dict) or entry.get("status") not in ("success", "processing", "rejected"):
        return None
    status, reason = entry["status"], entry.get("rejectedReason")
    shown = reason[:200] if isinstance(reason, str) else ""
    return CatalogStatus(status, "".join(each if each.isprintable() else " " for each in shown))


def clean_code(value: Any) -> str:
    """Return a code fit to store and show; foreign text of any other form is dropped."""
    return value if isinstance(value, str) and _CODE.fullmatch(value) else ""
