"""Whether a payment is what was offered, and signed by its payer."""

from __future__ import annotations

from functools import lru_cache

from worker.contracts.signatures import recover_digest
from worker.core.errors import Problem
from worker.hiring.task import PaymentRequired
from worker.x402.networks import Network
from worker.x402.offer import Offer, mismatch, signature_mismatch
from worker.x402.typed_data import transfer_digest
from worker.x402.wire import PaymentPayload


def expect_payment(payment: PaymentPayload, offer: Offer, at_us: int, *, proven: bool = False) -> None:
    """Answers 402 again unless the payment is what was offered and signed by its payer.

    `proven`: the caller has found it to be `signed_by_payer`.
    """
    refusal = mismatch(payment, offer, at_us // 1_000_000)
    if refusal is None and not proven:
        refusal = signature_mismatch(payment, offer, _recover)
    if refusal is not None:
        raise PaymentRequired.mismatched(offer, refusal, payment)


def signed_by_payer(payment: PaymentPayload, network: Network) -> bool:
    """Whether a key proves the payer; only a facilitator can check a smart wallet's signature."""
    try:
        signer = _recover(transfer_digest(network.domain, payment.authorization), payment.signature_bytes)
    except Problem:
        return False
    return signer.lower() == payment.authorization.payer.lower()


# The plain door checks a payment's signature before it reads the payer's budget and with the offer.
@lru_cache(maxsize=128)
def _recover(digest: bytes, signature: bytes) -> str:
    return recover_digest(digest, signature)
