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
from typing import Any

from worker.capabilities.declare import Capability
from worker.contracts.book import PURCHASE, Contract, ContractBook
from worker.contracts.ids import estimated_bits
from worker.contracts.terms import BEFORE_WORK, CURRENCY, TRIGGER, Listing, parse_terms
from worker.core.canonical import contract_hash
from worker.core.json import text_of
from worker.engine.events import iso
from worker.x402.windows import longest_validity
from worker.x402.wire import PAYMENT_IDENTIFIER, PaymentPayload, payment_key

# Latest end of work that is paid before it starts.
LIFE_US = 24 * 3600 * 1_000_000
# Work that is paid afterwards expires with its authorization, and so do failed payments.
MARGIN_US = 60 * 1_000_000
# A UUID has 122 random bits.
SECRET_BITS = 120


@dataclass(frozen=True)
class PurchaseTerms:
    """Writes the terms that a payment at the plain door accepts."""

    book: ContractBook
    listing: Callable[[], Listing]

    def offered(self, capability: Capability, price: str, now_us: int) -> Contract:
        """The current offer to anybody; never stored."""
        return self._terms(capability, price, now_us, "", "-", {}, drafted=now_us)

    def accepted(
        self, capability: Capability, price: str, now_us: int, payment: PaymentPayload, window_s: int
    ) -> Contract:
        """The purchase that this payment makes."""
        identifier = secret_of(payment)
        digest = {"identifier": _digest(identifier)} if identifier else {}
        key = payment_key(payment)
        token = derived_token(identifier, key) if identifier else f"tok_{secrets.token_hex(20)}"
        # A later end is refused, but only once the offer is known; the end may be any 256-bit number.
        latest_s = now_us // 1_000_000 + longest_validity(window_s) + 1
        ends_s = min(payment.authorization.valid_before, latest_s)
        # Clients count the window from the moment of signing.
        signed_s = ends_s - window_s
        lasts_us = max(ends_s * 1_000_000 - now_us, window_s * 1_000_000)
        before_work = self.listing().capabilities[capability.name].settle == BEFORE_WORK
        return self._terms(
            capability,
            price,
            now_us,
            payment.authorization.payer,
            token,
            digest,
            ref=self.book.purchase_ref(key),
            drafted=max(1, signed_s * 1_000_000),
            life_us=LIFE_US if before_work else lasts_us + MARGIN_US,
        )

    def _terms(
        self,
        capability: Capability,
        price: str,
        now_us: int,
        payer: str,
        token: str,
        more: dict[str, Any],
        *,
        ref: str = "",
        drafted: int = 0,
        life_us: int = LIFE_US,
    ) -> Contract:
        listing = self.listing()
        sold = listing.capabilities[capability.name]
        document = {
            "version": f"{PURCHASE}2",
            "contract_id": token,
            "created_at": iso(now_us),
            "parties": {
                "seeker": {"agent_id": "", "wallet": payer},
                "worker": {"agent_id": listing.agent_id, "wallet": listing.wallet},
            },
            "task": {"description": capability.description, "capability": capability.name},
            "terms": {
                "price": {"amount": price, "currency": CURRENCY, "network": listing.network},
                "deadline": iso(now_us + life_us),
                "payment_trigger": TRIGGER,
                "settlement": sold.settle,
                "platform_fee": {"percentage": 0, "wallet": listing.wallet},
            },
            **more,
        }
        return Contract(
            ref=ref,
            text=text_of(document),
            terms=parse_terms(document),
            hash=contract_hash(document),
            registered=0,
            execution=None,
            drafted=drafted,
            is_purchase=True,
        )


def secret_of(payment: PaymentPayload) -> str:
    """The payment's identifier if it is unguessable, else ''; it never goes on the chain."""
    identifier = payment.identifier or ""
    return identifier if estimated_bits(identifier) >= SECRET_BITS else ""


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
