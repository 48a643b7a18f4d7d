"""Recorded requests of payers that cannot run against a local chain, parsed by the door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker.contracts.signatures import recover_digest
from worker.core.errors import BadRequest
from worker.x402.networks import BASE
from worker.x402.offer import Offer, mismatch, signature_mismatch
from worker.x402.wire import decode_payment

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "payers.json").read_text("utf-8")
)


def payments(payer: str) -> list[str]:
    """Return the payments in a payer's requests."""
    sent = [each["headers"] for each in RECORDED[payer]["requests"]]
    return [headers["payment-signature"] for headers in sent if "payment-signature" in headers]


def test_agentcash_pays_as_the_402_asks() -> None:
    """agentcash requests, signs in and pays; its payment matches the offer."""
    (header,) = payments("agentcash")
    payment = decode_payment(header)
    required = RECORDED["agentcash"]["required"]
    accepted = required["accepts"][0]
    offer = Offer(
        network=BASE,
        price="0.01",
        pay_to=accepted["payTo"],
        payer="",
        max_timeout_s=accepted["maxTimeoutSeconds"],
        needed_s=60,
        resource_url=required["resource"]["url"],
    )
    signed_s = payment.authorization.valid_before - accepted["maxTimeoutSeconds"]
    assert mismatch(payment, offer, signed_s) is None
    assert signature_mismatch(payment, offer, recover_digest) is None
    wallet = RECORDED["agentcash"]["requests"][0]["headers"]["x-wallet-address"]
    assert payment.authorization.payer.lower() == wallet.lower()


def test_crewai_payment_is_refused_with_its_reason() -> None:
    """crewai reads V1's amount from V2 terms, so it signs for nothing and omits the accepted terms."""
    (header,) = payments("crewai-x402")
    with pytest.raises(BadRequest) as refused:
        decode_payment(header)
    assert refused.value.code == "PAYMENT_INVALID" and refused.value.details["field"] == "accepted"


def test_langchain_sends_no_payment() -> None:
    """langchain looks for terms outside of `accepts`, where no x402 version has them, and does not sign."""
    assert len(RECORDED["langchain-x402"]["requests"]) == 1 and not payments("langchain-x402")
