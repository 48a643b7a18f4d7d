"""Signed offers: verifiable by anybody, signed once per window, dropped first from a full header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from worker.contracts.signatures import sign_digest
from worker.x402.bazaar import BAZAAR, Described, bazaar_extension
from worker.x402.header_budget import LEFT_OUT
from worker.x402.headers import MAX_WRITE_CHARS, PAYMENT_REQUIRED, decode, encode, required_header
from worker.x402.receipts import OFFER_RECEIPT
from worker.x402.signed_offers import OFFER, WINDOW_S, OfferSigner

KEY = "0x" + "22" * 32
SIGNER = Account.from_key(KEY).address
URL = "https://worker.example/buy/word-count"


def terms(network: str = "eip155:8453", **extra: Any) -> dict[str, Any]:
    return {
        "scheme": "exact",
        "network": network,
        "amount": "20000",
        "asset": "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
        "payTo": SIGNER,
        "maxTimeoutSeconds": 300,
        "extra": {"name": "USD Coin", "version": "2", **extra},
    }


class CountingSigner:
    """Signs, and counts the signatures."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, digest: bytes) -> bytes:
        self.count += 1
        return sign_digest(digest, KEY)


def test_anybody_recovers_the_signer_by_the_extensions_own_typed_data() -> None:
    """eth-account, with the types that the extension defines, recovers our key."""
    signer = OfferSigner(CountingSigner(), lambda: 1_800_000_000)
    entry = signer.extension(URL, [terms(), terms("eip155:137")])
    jsonschema.validate(entry["info"], entry["schema"])
    assert [each["acceptIndex"] for each in entry["info"]["offers"]] == [0, 1]
    for offer, network in zip(entry["info"]["offers"], ("eip155:8453", "eip155:137"), strict=True):
        assert offer["payload"]["network"] == network and offer["payload"]["amount"] == "20000"
        message = encode_typed_data(
            {"name": "x402 offer", "version": "1", "chainId": 1},
            {"Offer": [{"name": name, "type": kind} for name, kind in OFFER.fields]},
            offer["payload"],
        )
        assert Account.recover_message(message, signature=offer["signature"]) == SIGNER


def test_an_offer_is_signed_once_per_window_and_never_ends_at_once() -> None:
    """Requests within a window share one signature, and each offer is valid for at least a window."""
    now, sign = [1_800_000_000.0], CountingSigner()
    signer = OfferSigner(sign, lambda: now[0])
    for second in range(0, WINDOW_S * 2, 30):
        now[0] = 1_800_000_000 // WINDOW_S * WINDOW_S + second
        offer = signer.extension(URL, [terms()])["info"]["offers"][0]
        assert WINDOW_S < offer["payload"]["validUntil"] - now[0] <= 2 * WINDOW_S
    assert sign.count == 2


def full_document(padding: int) -> Mapping[str, Any]:
    accepts = [terms(), terms("eip155:137", note="n" * 100)]
    body = {"type": "object", "properties": {"text": {"type": "string", "description": "d" * 500}}}
    return {
        "x402Version": 2,
        "error": "payment required",
        "resource": {"url": URL, "description": ""},
        "accepts": accepts,
        "extensions": {
            "other": {"info": {"padding": "p" * padding}},
            BAZAAR: bazaar_extension(Described(body, None, {"text": "to be"})),
            OFFER_RECEIPT: OfferSigner(CountingSigner(), lambda: 0).extension(URL, accepts),
        },
    }


@pytest.mark.parametrize(
    ("left_out", "offers", "schemas", "networks"),
    [(0, True, True, 2), (1, False, True, 2), (2, False, False, 2), (3, False, False, 1)],
)
def test_a_full_header_loses_offers_then_schemas_then_networks(
    left_out: int, offers: bool, schemas: bool, networks: int
) -> None:
    """Parts that exceed the limit are dropped in the documented order, and no more than needed."""
    smallest = full_document(0)
    for reduce in LEFT_OUT[:left_out]:
        smallest = reduce(smallest)
    # As much as fits once this many parts are dropped.
    padding = (MAX_WRITE_CHARS - len(encode(smallest))) * 3 // 4 - 8
    header = required_header(full_document(padding), LEFT_OUT)
    assert len(header) < MAX_WRITE_CHARS
    sent = decode(header, PAYMENT_REQUIRED)
    extensions = sent["extensions"]
    assert (OFFER_RECEIPT in extensions) is offers
    assert bool(extensions[BAZAAR]["schema"]["properties"]["input"]["properties"]["body"]) is schemas
    assert len(sent["accepts"]) == networks
