"""The terms of purchases without a contract, which are made in parts."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.capabilities.declare import Capability
from worker.contracts.terms import AFTER_WORK, BEFORE_WORK, CapabilityOffer, Listing, parse_terms
from worker.core.canonical import contract_hash
from worker.core.errors import Problem
from worker.hiring.purchase_terms import PurchaseTerms
from worker.x402.typed_data import UINT256_MAX, Authorization
from worker.x402.wire import PAYMENT_IDENTIFIER, PaymentPayload, Requirements

WALLET, PAYER = "0x" + "9" * 40, "0x" + "a" * 40
NOW = 1_790_000_000_123_456
AGENTS = {
    "late": CapabilityOffer(10_000, 1_000, AFTER_WORK),
    "early": CapabilityOffer(10_000, 1_000, BEFORE_WORK),
}


def terms(wallet: str = WALLET) -> PurchaseTerms:
    listing = Listing("agent", wallet, "eip155:84532", frozenset(), False, AGENTS, 0)
    return PurchaseTerms(lambda: listing)


def payment(ends_s: int, payer: str = PAYER, identifier: str = "") -> PaymentPayload:
    authorization = Authorization(payer, WALLET, 10_000, 0, ends_s, "0x" + "b" * 64)
    accepted = Requirements("exact", "eip155:84532", "0x" + "c" * 40, "10000", WALLET, 300)
    named = {PAYMENT_IDENTIFIER: {"info": {"id": identifier}}} if identifier else {}
    return PaymentPayload(2, accepted, authorization, "0x", named, None, {})


@given(
    name=st.sampled_from(sorted(AGENTS)),
    price=st.sampled_from(["0.01", "0.5", "12.000001"]),
    description=st.text(max_size=20),
    now=st.integers(NOW, NOW + 10**15),
    payer=st.text("0123456789abcdef", min_size=40, max_size=40),
    ends_s=st.integers(0, UINT256_MAX) | st.integers(NOW // 10**6 - 1_000, NOW // 10**6 + 10**6),
    identifier=st.sampled_from(["", "guessed", "pay_7d5d747be160e280504c099d984bcfe0"]),
)
def test_terms_are_those_of_the_document(
    name: str, price: str, description: str, now: int, payer: str, ends_s: int, identifier: str
) -> None:
    """What a claim stores reads back as the terms that the claim was made by."""
    capability = Capability(name=name, description=description, price=price)
    paid = payment(ends_s, f"0x{payer}", identifier)
    made = terms().accepted("ref", capability, price, now, paid, 300)
    assert made.terms == parse_terms(made.document)
    assert made.hash == contract_hash(made.document)
    assert made.is_purchase and ("identifier" in made.document) == identifier.startswith("pay_")
    task = made.document["task"]
    assert task == {"description": description, "capability": name}


@pytest.mark.parametrize("name", AGENTS)
def test_the_open_offer_is_what_a_payment_accepts(name: str) -> None:
    """Only the token, the payer and the deadline differ."""
    capability = Capability(name=name, price="0.01")
    offered = terms().offered(capability, "0.01", NOW)
    accepted = terms().accepted("ref", capability, "0.01", NOW, payment(NOW // 10**6 + 300), 300)
    theirs = {"contract_id": "-", "seeker_wallet": "", "deadline": NOW + 24 * 3600 * 10**6}
    assert offered.terms == dataclasses.replace(accepted.terms, **theirs)  # type: ignore[arg-type]
    assert offered.is_purchase and offered.signed_us == NOW


def test_a_wallet_that_changes_is_named() -> None:
    """Nothing of an earlier listing is shown."""
    capability, other = Capability(name="late", price="0.01"), "0x" + "8" * 40
    assert terms().offered(capability, "0.01", NOW).terms.worker_wallet == WALLET
    assert terms(other).offered(capability, "0.01", NOW).terms.worker_wallet == other


def test_an_impossible_price_is_refused_each_time() -> None:
    capability = Capability(name="late", price="0.01")
    for _ in range(2):
        with pytest.raises(Problem):
            terms().offered(capability, "0.0000001", NOW)
