"""Settled payments' texts in their short stored form."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from worker.core.evm import checksum_address
from worker.payments import packed_payment
from worker.payments.packed_payment import SentPayment, pack_response, unpack_response
from worker.store.packed_text import common_words, pack
from worker.x402.receipts import Settlement, settled_response

SCHEMA = unpack_response("\x01\x0b", f"eip155:84532/{'0x' + '1' * 40}/{'0x' + '2' * 40}/0x3", "")
PAYER = checksum_address("0x0061d8ba60461e97e1ffe6f14fd856884a8f78ce")
PAY_TO = checksum_address("0x1563915e194d8cfba1943570603f7606a3115508")
ASSET = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
NONCE, TX = "0x" + "ab" * 32, "0x" + "cd" * 32
KEY = f"eip155:84532/{ASSET}/{PAYER}/{NONCE}".lower()
SIGNATURE = "0x" + "12" * 65
REQUIREMENTS = {
    "scheme": "exact",
    "network": "eip155:84532",
    "amount": "10000",
    "asset": ASSET,
    "payTo": PAY_TO,
    "maxTimeoutSeconds": 300,
    "extra": {"name": "USDC", "version": "2"},
}
AUTHORIZATION = {
    "from": PAYER,
    "to": PAY_TO,
    "value": "10000",
    "validAfter": "1795063300",
    "validBefore": "1795065499",
    "nonce": NONCE,
}
RESOURCE = {"url": "https://worker.example/execute", "description": "Runs x", "mimeType": "application/json"}


def text(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def turned(document: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(document.items()))


SIGNED = {"signature": SIGNATURE, "authorization": AUTHORIZATION}
PAYLOADS: dict[str, Any] = {
    "accepted first": {"x402Version": 2, "accepted": REQUIREMENTS, "payload": SIGNED},
    "payload first": {
        "x402Version": 2,
        "payload": turned(SIGNED),
        "resource": RESOURCE,
        "accepted": REQUIREMENTS,
    },
    "all turned": {
        "payload": turned(SIGNED),
        "accepted": turned(REQUIREMENTS),
        "extensions": {"payment-identifier": {"info": {"id": "a" * 20}}},
        "x402Version": 2,
    },
    "lower case": {
        "x402Version": 2,
        "accepted": REQUIREMENTS | {"asset": ASSET.lower(), "payTo": PAY_TO.lower()},
        "payload": {"signature": SIGNATURE, "authorization": AUTHORIZATION | {"from": PAYER.lower()}},
    },
    "other money": {"x402Version": 2, "accepted": {"extra": {"name": "EURC"}}, "payload": SIGNED},
    "characters of the packed form": {"resource": {"description": "\x01\x02\x0b\x1f ünï \u2028"}},
    "nothing": {},
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
@pytest.mark.parametrize("escaped", [True, False])
def test_sent_payment_comes_back_byte_for_byte(payload: Any, escaped: bool) -> None:
    """Whatever a seeker's client wrote, in whatever order."""
    written = json.dumps(payload, separators=(",", ":"), ensure_ascii=escaped)
    sent = SentPayment(written, text(REQUIREMENTS), KEY)
    assert sent.packed().plain() == sent
    assert sent.plain() == sent


@pytest.mark.parametrize("name", ["accepted first", "payload first"])
def test_usual_payment_is_packed_to_its_own_facts(name: str) -> None:
    """Signature, times, the wallet that is paid and the seeker's resource are kept, what repeats is not."""
    sent = SentPayment(text(PAYLOADS[name]), text(REQUIREMENTS), KEY)
    packed = sent.packed()
    assert len(packed.payload) + len(packed.requirements) < 280 < len(sent.payload)


@pytest.mark.parametrize("transaction", [TX, NONCE, ""])
def test_response_comes_back_byte_for_byte(transaction: str) -> None:
    """Receipt and schema included."""
    settlement = Settlement("eip155:84532", RESOURCE["url"], PAYER, transaction, 1795063909)
    response = text(settled_response(settlement, lambda digest: b"\x12" * 65))
    packed = pack_response(response, KEY, transaction)
    assert len(packed) < 200 < 1_000 < len(response)
    assert unpack_response(packed, KEY, transaction) == response
    assert unpack_response(response, KEY, transaction) == response


@pytest.mark.parametrize("transaction", [TX, "type", '"}}', "\x01", ""])
@pytest.mark.parametrize("before", ["{", "", "\x01", "\x02x", "ünï", SCHEMA, SCHEMA[:-1], "\u2028"])
@pytest.mark.parametrize("after", ["", "}", SCHEMA])
def test_any_response_comes_back(before: str, transaction: str, after: str) -> None:
    """Where its schema stands, how often, and whatever stands before it."""
    response = f"{before}{transaction}{KEY}{SCHEMA}{after}"
    packed = pack_response(response, KEY, transaction)
    if response.startswith("\x01"):
        assert packed == response  # no JSON begins like this
    else:
        assert unpack_response(packed, KEY, transaction) == response


def test_usual_response_is_packed_as_a_whole_text_is() -> None:
    """Its schema is left out first, which changes no byte of the stored form."""
    settlement = Settlement("eip155:84532", RESOURCE["url"], PAYER, TX, 1795063909)
    response = text(settled_response(settlement, lambda digest: b"\x12" * 65))
    own = {packed_payment._TRANSACTION: TX, **packed_payment._words(KEY)}
    assert pack_response(response, KEY, TX) == pack(response, own, packed_payment._IN_RESPONSES)


def test_stored_texts_stay_readable() -> None:
    """Texts that a store holds already: no character's word may ever change."""
    signed = SIGNATURE[2:]
    sent = SentPayment(
        f'\x01\x0b\x14\x02,\x0c\r{signed}",\x0e\x06\x0f\n\x1010000\x111795063300\x121795065499\x13\x08"}}}}}}',
        f"\x01\x15\x03\x1610000\x17\x04\x18{PAY_TO}\x19300\x1a",
        KEY,
    )
    plain = sent.plain()
    assert plain.payload == text(PAYLOADS["accepted first"])
    assert plain.requirements == text(REQUIREMENTS)
    resource = f'{{"url":"{RESOURCE["url"]}","description":"Runs x","mimeType":"application/json"}}'
    with_resource = SentPayment(f"\x01{{\x1c{RESOURCE['url']}\x1dRuns x\x1e}}", "{}", KEY).plain()
    assert with_resource.payload == f'{{"resource":{resource}}}'
    response = (
        f"\x01\x0c\t\r\x03\x0e\x06\x0f\x03\x10{RESOURCE['url']}\x0e\x06\x111795063909\x12\t\x13{signed}\x0b"
    )
    settlement = Settlement("eip155:84532", RESOURCE["url"], PAYER, TX, 1795063909)
    expected = text(settled_response(settlement, lambda digest: b"\x12" * 65))
    assert unpack_response(response, KEY, TX) == expected


def test_payments_own_words_keep_their_characters() -> None:
    """In texts that a store holds already, in either case."""
    own = SentPayment("\x01\x03 \x04 \x05 \x06 \x07 \x08 \x0a \x1b", text(REQUIREMENTS), KEY).plain()
    extra = ',"extra":{"name":"USD Coin","version":"2"}}'
    words = ["eip155:84532", ASSET, ASSET.lower(), PAYER, PAYER.lower(), NONCE, PAY_TO, extra]
    assert own.payload == " ".join(words)


def test_receipts_schema_is_the_one_that_stored_responses_leave_out() -> None:
    """Another schema needs a word of its own, or what was sent earlier would be shown with it."""
    left_out = unpack_response("\x01\x0b", KEY, TX)
    assert left_out.startswith('"}},"schema":{"$schema":')
    digest = hashlib.sha256(left_out.encode()).hexdigest()
    assert digest == "b2a1221504a87ed548fcbe42b8bd77e0ea5a6eb2d0b8091af09ffdcfd12d3e09"


def test_more_words_than_control_characters_are_refused() -> None:
    """The next character would be a blank, which no text gives back."""
    assert len(common_words(*map(str, range(21)))) == 21
    with pytest.raises(ValueError):
        common_words(*map(str, range(22)))
