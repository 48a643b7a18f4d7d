"""The terms of a purchase without a contract: our offer in the form of a contract document.

The offer is rebuilt for every request; its document is stored only with the claim of a payment that accepts
it. The document's contract_id is the task's token, which grants access to the result.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from worker.capabilities.declare import Capability
from worker.contracts.book import PURCHASE, Contract
from worker.contracts.ids import estimated_bits
from worker.contracts.terms import BEFORE_WORK, CURRENCY, TRIGGER, Listing, Terms, parse_terms
from worker.core.canonical import contract_hash
from worker.core.json import text_of
from worker.engine.events import iso
from worker.x402.windows import longest_validity
from worker.x402.wire import PAYMENT_IDENTIFIER, PaymentPayload, payment_key

_VERSION = f"{PURCHASE}2"
# Latest end of work that is paid before it starts.
LIFE_US = 24 * 3600 * 1_000_000
# Work that is paid afterwards expires with its authorization, and so do failed payments.
MARGIN_US = 60 * 1_000_000
# A UUID has 122 random bits.
SECRET_BITS = 120


@dataclass(frozen=True)
class PurchaseTerms:
    """Writes the terms that a payment at the plain door accepts."""

    listing: Callable[[], Listing]

    def offered(self, capability: Capability, price: str, now_us: int) -> Contract:
        """The current offer to anybody; never stored, so it is made without its document's hash."""
        terms = replace(
            _lasting_terms(self._sold(capability, price)), created_at=now_us, deadline=now_us + LIFE_US
        )
        return Contract("", "{}", terms, "", registered=0, execution=None, drafted=now_us, is_purchase=True)

    def accepted(
        self,
        ref: str,
        capability: Capability,
        price: str,
        now_us: int,
        payment: PaymentPayload,
        window_s: int,
    ) -> Contract:
        """The purchase that this payment makes; `ref`: where it is stored."""
        sold, payer = self._sold(capability, price), payment.authorization.payer
        identifier = secret_of(payment)
        if identifier:
            token = derived_token(identifier, payment_key(payment))
        else:
            token = f"tok_{secrets.token_hex(20)}"
        # A later end is refused, but only once the offer is known; the end may be any 256-bit number.
        latest_s = now_us // 1_000_000 + longest_validity(window_s) + 1
        ends_s = min(payment.authorization.valid_before, latest_s)
        lasts_us = max(ends_s * 1_000_000 - now_us, window_s * 1_000_000)
        deadline = now_us + (LIFE_US if sold.settle == BEFORE_WORK else lasts_us + MARGIN_US)
        document = _document(sold, capability.description, token, payer, now_us, deadline)
        if identifier:
            document["identifier"] = _digest(identifier)
        terms = replace(
            _lasting_terms(sold),
            contract_id=token,
            seeker_wallet=payer,
            created_at=now_us,
            deadline=deadline,
        )
        return Contract(
            ref,
            text_of(document),
            terms,
            contract_hash(document),
            registered=0,
            execution=None,
            drafted=signed_us(ends_s, window_s),
            is_purchase=True,
        )

    def _sold(self, capability: Capability, price: str) -> _Sold:
        listing = self.listing()
        settle = listing.capabilities[capability.name].settle
        return _Sold(capability.name, price, settle, listing.agent_id, listing.wallet, listing.network)


class _Sold(NamedTuple):
    """What many purchases have in common."""

    capability: str
    price: str
    settle: str
    agent_id: str
    wallet: str
    network: str


@lru_cache(maxsize=256)
def _lasting_terms(sold: _Sold) -> Terms:
    """All terms except the token, the payer and the times."""
    return parse_terms(_document(sold, "", "-", "", 0, 0))


def _document(
    sold: _Sold, description: str, token: str, payer: str, created_us: int, deadline_us: int
) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "contract_id": token,
        "created_at": iso(created_us),
        "parties": {
            "seeker": {"agent_id": "", "wallet": payer},
            "worker": {"agent_id": sold.agent_id, "wallet": sold.wallet},
        },
        "task": {"description": description, "capability": sold.capability},
        "terms": {
            "price": {"amount": sold.price, "currency": CURRENCY, "network": sold.network},
            "deadline": iso(deadline_us),
            "payment_trigger": TRIGGER,
            "settlement": sold.settle,
            "platform_fee": {"percentage": 0, "wallet": sold.wallet},
        },
    }


def signed_us(ends_s: int, window_s: int) -> int:
    """When a payment was signed; clients count the window from that moment."""
    return max(1, (ends_s - window_s) * 1_000_000)


def secret_of(payment: PaymentPayload) -> str:
    """The payment's identifier if it is unguessable, else ''; it never goes on the chain."""
    identifier = payment.identifier or ""
    return identifier if identifier and estimated_bits(identifier) >= SECRET_BITS else ""


def derived_token(identifier: str, payment_key: str) -> str:
    """The task's token, derived from the identifier that came with the payment."""
    return f"tok_{_digest(f'task-token:{identifier}:{payment_key}')[:40]}"


def without_secret(payment: PaymentPayload) -> PaymentPayload:
    """The payment as stored and sent to facilitators, without the secret that the token derives from."""
    identifier = secret_of(payment)
    if not identifier:
        return payment
    entry = payment.extensions[PAYMENT_IDENTIFIER]
    # The digest still identifies one purchase.
    hidden = {**entry, "info": {**entry["info"], "id": _digest(identifier)}}
    extensions = {**payment.extensions, PAYMENT_IDENTIFIER: hidden}
    return replace(payment, raw={**payment.raw, "extensions": extensions})


def shows_secret(contract: Contract, payment: PaymentPayload) -> bool:
    """Whether a payment carries the secret identifier that the purchase was made with."""
    identifier = secret_of(payment)
    known = str(contract.document.get("identifier", "")) if identifier else ""
    return bool(known) and hmac.compare_digest(known, _digest(identifier))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
