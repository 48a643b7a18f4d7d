"""Payment offers, and every way in which a payment can fail to match one."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st
from x402.extensions.payment_identifier import declare_payment_identifier_extension

from worker.core.amounts import atomic_units
from worker.core.errors import BadRequest
from worker.x402.headers import MAX_WRITE_CHARS, encode
from worker.x402.networks import BASE, BASE_SEPOLIA
from worker.x402.offer import Offer, OfferMismatch, mismatch, signature_mismatch
from worker.x402.typed_data import transfer_digest
from worker.x402.wire import PaymentPayload, decode_payment, decode_v1_payment

NOW = 1_800_000_000
KEY = "0x" + "11" * 32
SEEKER = Account.from_key(KEY).address
WORKER = Account.from_key("0x" + "22" * 32).address
STRANGER = Account.from_key("0x" + "33" * 32).address
OFFER = Offer(
    network=BASE_SEPOLIA,
    price="0.01",
    pay_to=WORKER,
    payer=SEEKER,
    max_timeout_s=300,
    needed_s=120,
    resource_url="https://worker.example/execute",
    description="Summarise a text",
)

Change = Callable[[dict[str, Any]], Any]


def document(offer: Offer = OFFER, key: str = KEY) -> dict[str, Any]:
    """Return the payment an honest client signs for this offer."""
    requirements = offer.requirements()
    payment: dict[str, Any] = {
        "x402Version": 2,
        "resource": offer.resource(),
        "accepted": requirements,
        "payload": {
            "signature": "0x" + "00" * 65,
            "authorization": {
                "from": offer.payer,
                "to": offer.pay_to,
                "value": requirements["amount"],
                "validAfter": "0",
                "validBefore": str(NOW + offer.max_timeout_s),
                "nonce": "0x" + "ab" * 32,
            },
        },
    }
    digest = transfer_digest(offer.network.domain, decode_payment(encode(payment)).authorization)
    payment["payload"]["signature"] = "0x" + Account.unsafe_sign_hash(digest, key).signature.hex()
    return payment


def paid(change: Change = lambda payment: None) -> PaymentPayload:
    """Return the honest payment after one change."""
    payment = document()
    change(payment)
    return decode_payment(encode(payment))


def recover(digest: bytes, signature: bytes) -> str:
    """Recover the signer with eth_account in place of the worker's own recovery."""
    try:
        return str(Account._recover_hash(digest, signature=signature))
    except Exception:
        raise ValueError("not a signature") from None


def test_matching_payment_passes() -> None:
    """The payment that an honest client makes for our offer is accepted, including its signature."""
    assert mismatch(paid(), OFFER, NOW) is None
    assert signature_mismatch(paid(), OFFER, recover) is None


def set_at(path: str, value: Any) -> Change:
    """Return a change that sets the value at a dotted path."""

    def change(payment: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            payment = payment[parent]
        payment[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("accepted.scheme", "upto"),
        ("accepted.scheme", "Exact"),
        ("accepted.network", "eip155:8453"),
        ("accepted.network", "base-sepolia"),
        ("accepted.asset", BASE.asset),
        ("accepted.amount", "9999"),
        ("accepted.amount", "10001"),
        ("accepted.amount", "010000"),
        ("accepted.amount", "10000.0"),
        ("accepted.payTo", STRANGER),
        ("accepted.maxTimeoutSeconds", 301),
        ("accepted.maxTimeoutSeconds", 10**12),
        ("accepted.extra.name", "USD Coin"),
        ("accepted.extra.name", None),
        ("accepted.extra.version", "1"),
        ("accepted.extra.version", 2),
        ("accepted.extra.assetTransferMethod", "permit2"),
        ("accepted.extra.paymentFlow", "upfront"),
        ("resource.url", "https://worker.example/other"),
        ("payload.authorization.to", STRANGER),
        ("payload.authorization.value", "1"),
        ("payload.authorization.value", "10001"),
        ("payload.authorization.validAfter", str(NOW + 1)),
        ("payload.authorization.validBefore", str(NOW + 119)),
        ("payload.authorization.validBefore", "0"),
        ("payload.authorization.validBefore", str(NOW + 86_401)),
        ("payload.authorization.validBefore", str(2**256 - 1)),
    ],
)
def test_mismatched_payment_names_its_field(path: str, value: Any) -> None:
    """Each mismatch is refused as PAYMENT_INVALID with the field, the expected and the received value."""
    found = mismatch(paid(set_at(path, value)), OFFER, NOW)
    assert isinstance(found, OfferMismatch)
    assert (found.code, found.field) == ("PAYMENT_INVALID", path)
    assert found.expected and found.received is not None and found.reason
    assert len(str(found.received)) <= 100
    json.dumps([found.expected, found.received])


def test_wrong_payer_has_its_own_code() -> None:
    """A payment from a wallet other than the contract's seeker has its own code."""
    found = mismatch(paid(set_at("payload.authorization.from", STRANGER)), OFFER, NOW)
    assert found is not None and found.code == "PAYMENT_PAYER_MISMATCH"
    assert (found.field, found.expected) == ("payload.authorization.from", SEEKER)
    assert found.received == STRANGER.lower()


@pytest.mark.parametrize("field", ["name", "version"])
def test_missing_domain_parts_are_refused(field: str) -> None:
    """A client may add to extra, but must keep the parts that are signed."""
    found = mismatch(paid(lambda payment: payment["accepted"]["extra"].pop(field)), OFFER, NOW)
    assert found is not None and found.field == f"accepted.extra.{field}" and found.received == "nothing"


def test_an_offer_without_a_payer_is_open_to_everybody() -> None:
    """Any wallet may pay it; everything else is compared as usual."""
    offer = replace(OFFER, payer="")
    stranger = document(replace(OFFER, payer=STRANGER), "0x" + "33" * 32)
    assert mismatch(decode_payment(encode(stranger)), offer, NOW) is None
    refusal = mismatch(decode_payment(encode(stranger)), replace(offer, price="0.02"), NOW)
    assert refusal is not None and refusal.field == "accepted.amount"


def test_extensions_and_listing_texts_are_sent() -> None:
    """Extensions are listed beside payment-identifier, catalog texts in the resource."""
    info = {"bazaar": {"info": {"input": {}}, "schema": {}}}
    offer = replace(OFFER, extensions=info, about={"serviceName": "Words", "tags": ["text"]})
    required = offer.payment_required("")
    assert required["extensions"].keys() == {"payment-identifier", "bazaar"}
    assert required["extensions"]["bazaar"] == info["bazaar"]
    assert required["resource"] == OFFER.resource() | {"serviceName": "Words", "tags": ["text"]}


def test_reordered_and_added_keys_are_fine() -> None:
    """Clients may reorder keys and add their own; only our terms are compared."""

    def change(payment: dict[str, Any]) -> None:
        accepted = dict(reversed(payment["accepted"].items()))
        accepted["extra"] = {"more": {"deep": [1]}, "version": "2", "name": "USDC"}
        accepted["outputSchema"] = None
        payment["accepted"] = accepted
        payment["accepted"]["extra"]["assetTransferMethod"] = "eip3009"
        payment["accepted"]["extra"]["paymentFlow"] = "authorization"

    assert mismatch(paid(change), OFFER, NOW) is None


def test_a_missing_resource_is_fine() -> None:
    """The resource is optional in a payment; without its url nothing is compared."""
    assert mismatch(paid(lambda payment: payment.pop("resource")), OFFER, NOW) is None
    assert mismatch(paid(lambda payment: payment["resource"].pop("url")), OFFER, NOW) is None


def test_addresses_are_case_insensitive() -> None:
    """Checksummed, lower and upper case are the same address, on either side."""
    for form in (str.lower, lambda text: "0x" + text[2:].upper()):

        def change(payment: dict[str, Any], form: Callable[[str], str] = form) -> None:
            for place, key in (
                (payment["accepted"], "asset"),
                (payment["accepted"], "payTo"),
                (payment["payload"]["authorization"], "from"),
                (payment["payload"]["authorization"], "to"),
            ):
                place[key] = form(place[key])

        assert mismatch(paid(change), OFFER, NOW) is None
    lower = replace(OFFER, pay_to=WORKER.lower(), payer=SEEKER.lower())
    assert mismatch(paid(), lower, NOW) is None


def test_validity_window_edges() -> None:
    """Exactly the needed window and exactly the longest validity are accepted; validAfter may be now."""
    for path, value in (
        ("payload.authorization.validBefore", NOW + 120),
        ("payload.authorization.validBefore", NOW + 600),
        ("payload.authorization.validAfter", NOW),
    ):
        assert mismatch(paid(set_at(path, str(value))), OFFER, NOW) is None


def test_a_v1_payment_must_pay_exactly() -> None:
    """V1's own rule lets a payer give more; ours does not, since we settle what we offered."""
    payload = document()["payload"]
    header = encode({"x402Version": 1, "scheme": "exact", "network": "base-sepolia", "payload": payload})
    assert mismatch(decode_v1_payment(header, OFFER.requirements()), OFFER, NOW) is None
    payload["authorization"]["value"] = "10001"
    header = encode({"x402Version": 1, "scheme": "exact", "network": "base-sepolia", "payload": payload})
    found = mismatch(decode_v1_payment(header, OFFER.requirements()), OFFER, NOW)
    assert found is not None and found.field == "payload.authorization.value"
    for name in ("base", "peaq"):
        header = encode({"x402Version": 1, "scheme": "exact", "network": name, "payload": payload})
        found = mismatch(decode_v1_payment(header, OFFER.requirements()), OFFER, NOW)
        assert found is not None and found.field == "accepted.network"


@given(st.sampled_from(["from", "to", "value", "validAfter", "validBefore"]), st.integers(0, 2**256 - 1))
def test_random_authorization_never_matches(field: str, number: int) -> None:
    """An authorization with one random field is refused unless it has the same value for us."""
    value = f"0x{number % 2**160:040x}" if field in ("from", "to") else str(number)
    payment = paid(set_at(f"payload.authorization.{field}", value))
    harmless = {"validAfter": number <= NOW, "validBefore": NOW + 120 <= number <= NOW + 86_400}
    assert (mismatch(payment, OFFER, NOW) is None) == harmless.get(field, False)


def test_wrong_signer_is_refused() -> None:
    """65 bytes by another key, or for other terms, are refused before any network call."""
    forged = decode_payment(encode(document(key="0x" + "33" * 32)))
    found = signature_mismatch(forged, OFFER, recover)
    assert found is not None and found.field == "payload.signature" and found.received == STRANGER
    assert found.reason == "invalid_exact_evm_payload_signature"
    other = paid(set_at("payload.authorization.nonce", "0x" + "ac" * 32))
    assert signature_mismatch(other, OFFER, recover) is not None


def test_signature_uses_the_networks_domain() -> None:
    """A signature for the same amount on the other chain does not pay here."""
    assert signature_mismatch(paid(), replace(OFFER, network=BASE), recover) is not None


@pytest.mark.parametrize("error", [ValueError("x"), BadRequest("x")])
def test_unrecoverable_signature_is_refused(error: Exception) -> None:
    """However recovery fails, the refusal is ours and contains none of its text."""

    def broken(digest: bytes, signature: bytes) -> str:
        raise error

    found = signature_mismatch(paid(), OFFER, broken)
    assert found is not None and found.received == "an invalid one"


@pytest.mark.parametrize("length", [1, 64, 66, 500])
def test_other_signature_lengths_are_left_to_the_facilitator(length: int) -> None:
    """Smart wallet signatures have any length, and we do not judge them."""

    def never(digest: bytes, signature: bytes) -> str:
        raise AssertionError("not to be called")

    assert signature_mismatch(paid(set_at("payload.signature", "0x" + "62" * length)), OFFER, never) is None


def test_hire_payment_headers() -> None:
    """The HIRE headers contain the contract's own words, the amount verbatim."""
    assert replace(OFFER, price="0.010").hire_headers() == {
        "X-Payment-Address": WORKER,
        "X-Payment-Amount": "0.010",
        "X-Payment-Currency": "USDC",
        "X-Payment-Network": "base-sepolia",
    }
    assert replace(OFFER, network_word="base").hire_headers()["X-Payment-Network"] == "base"


def test_v2_payment_required_document() -> None:
    """PaymentRequired has exactly the published fields, and declares payment-identifier."""
    required = OFFER.payment_required("PAYMENT-SIGNATURE header is required")
    assert list(required) == ["x402Version", "error", "resource", "accepts", "extensions"]
    assert required["accepts"] == [
        {
            "scheme": "exact",
            "network": "eip155:84532",
            "amount": "10000",
            "asset": "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
            "payTo": WORKER,
            "maxTimeoutSeconds": 300,
            "extra": {"name": "USDC", "version": "2"},
        }
    ]
    assert required["extensions"] == {"payment-identifier": declare_payment_identifier_extension()}


def test_v1_payment_required_body() -> None:
    """The V1 body uses the network's V1 name and has no outputSchema."""
    (accepts,) = OFFER.v1_body("X-PAYMENT header is required")["accepts"]
    assert accepts["maxAmountRequired"] == "10000" and accepts["network"] == "base-sepolia"
    assert accepts["resource"] == OFFER.resource_url and isinstance(accepts["description"], str)
    assert "outputSchema" not in accepts and None not in accepts.values()


def test_remaining_window_is_not_sent() -> None:
    """Values that change with the queue are left out of the 402, or an earlier payment would not match."""
    busier = replace(OFFER, needed_s=250)
    assert busier.headers("e") == OFFER.headers("e") and busier.v1_body("e") == OFFER.v1_body("e")


@pytest.mark.parametrize("character", ["x", "ü", "😀"])
def test_header_size_is_limited_for_any_description(character: str) -> None:
    """For descriptions of any length and script PAYMENT-REQUIRED stays under its limit, with all terms."""
    offer = replace(OFFER, description=character * 100_000, resource_url="https://w.example/" + "p" * 1500)
    header = offer.headers("e" * 10_000)["PAYMENT-REQUIRED"]
    assert len(header) < MAX_WRITE_CHARS
    read = json.loads(base64.b64decode(header))
    assert read["accepts"] == [offer.requirements()] and read["resource"]["url"] == offer.resource_url
    assert len(read["resource"]["description"]) <= 500 and len(read["error"]) == 200


@pytest.mark.parametrize(
    ("price", "units"),
    [
        ("5", 5_000_000),
        ("0.01", 10_000),
        ("0.000001", 1),
        ("1.0000000", 1_000_000),
        ("0", 0),
        ("10.5", 10_500_000),
    ],
)
def test_prices_become_atomic_units(price: str, units: int) -> None:
    """A price is exact to the millionth."""
    assert atomic_units(price) == units


@pytest.mark.parametrize(
    "price",
    [
        "0.0000001",
        "1.0000000000000000000000000000001",
        "1e3",
        "-1",
        "+1",
        " 1",
        "1_0",
        ".5",
        "5.",
        "",
        "NaN",
        "٥",
        "1\n",
    ],
)
def test_invalid_prices_are_refused(price: str) -> None:
    """More than six decimals, exponents, signs and blanks are refused, never rounded."""
    with pytest.raises(ValueError, match="decimal"):
        atomic_units(price)


@pytest.mark.parametrize(
    "changes", [{"price": "0"}, {"price": "0.0000001"}, {"pay_to": "0x1234"}, {"payer": SEEKER + "\r\n"}]
)
def test_invalid_offer_is_refused(changes: dict[str, Any]) -> None:
    """An offer with a zero amount, or with an invalid wallet on either side, is our own error."""
    with pytest.raises(ValueError):
        replace(OFFER, **changes)
