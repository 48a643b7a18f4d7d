"""Parsing payments and writing responses: strict in, short and exact out."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.errors import BadRequest, Problem
from worker.x402.headers import (
    MAX_READ_CHARS,
    MAX_WRITE_CHARS,
    PAYMENT_RESPONSE,
    X_PAYMENT_RESPONSE,
    encode,
    required_header,
    response_headers,
    stored_response_headers,
)
from worker.x402.networks import BASE_SEPOLIA
from worker.x402.typed_data import transfer_digest
from worker.x402.wire import (
    Journaled,
    PaymentPayload,
    decode_payment,
    decode_v1_payment,
    journaled,
    payment_key,
    read_payment,
    restore,
    sent_form,
)

PAYER = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
PAYEE = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
ASSET = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
NONCE = "0x" + "aB" * 32
SIGNATURE = "0x" + "5c" * 64 + "1b"
REQUIREMENTS: dict[str, Any] = {
    "scheme": "exact",
    "network": "eip155:84532",
    "amount": "10000",
    "asset": ASSET,
    "payTo": PAYEE,
    "maxTimeoutSeconds": 60,
    "extra": {"name": "USDC", "version": "2"},
}


def document(**changes: Any) -> dict[str, Any]:
    """Return a good V2 payment; a change at "a.b" replaces that value, None removes it."""
    paid: dict[str, Any] = {
        "x402Version": 2,
        "resource": {"url": "https://worker.example/execute"},
        "accepted": REQUIREMENTS,
        "payload": {
            "signature": SIGNATURE,
            "authorization": {
                "from": PAYER,
                "to": PAYEE,
                "value": "10000",
                "validAfter": "0",
                "validBefore": "4102444800",
                "nonce": NONCE,
            },
        },
    }
    paid = json.loads(json.dumps(paid))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = paid
        for parent in parents:
            place = place[parent]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return paid


def packed(value: Any) -> str:
    """Return base64 of this JSON value, or of this exact text."""
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def refused(header: str) -> BadRequest:
    """Decode a payment that must be refused and return the refusal."""
    with pytest.raises(BadRequest) as caught:
        decode_payment(header)
    assert caught.value.code == "PAYMENT_INVALID" and caught.value.status == 400
    assert caught.value.details["field"]
    return caught.value


def test_v2_payment_is_parsed() -> None:
    """Every part of a V2 payment is returned, hex in lower case and numbers as integers."""
    payment = decode_payment(packed(document()))
    assert payment.version == 2
    assert payment.accepted.pay_to == PAYEE and payment.accepted.max_timeout_seconds == 60
    assert payment.authorization.payer == PAYER.lower() and payment.authorization.to == PAYEE.lower()
    assert (payment.authorization.value, payment.authorization.valid_after) == (10000, 0)
    assert payment.authorization.valid_before == 4102444800
    assert payment.authorization.nonce == NONCE.lower()
    assert len(payment.signature_bytes) == 65
    assert payment.resource == {"url": "https://worker.example/execute"}
    assert payment.extensions == {} and payment.identifier is None


def test_raw_payload_is_preserved() -> None:
    """The facilitator gets the seeker's own document, including unknown keys."""
    sent = document(payload__more={"a": [1, "ü"]}, unknown=1)
    payment = decode_payment(packed(sent))
    assert payment.raw == sent
    assert_restored(payment)


def assert_restored(payment: PaymentPayload) -> None:
    """What a process keeps of the text that it has journaled is what another reads in it."""
    text = payment.stored()
    kept, read = journaled(text), Journaled(text)
    assert restore(text) is kept.payment and read is not kept
    assert kept.payment == read.payment == replace(payment, version=2)
    assert dict(kept) == dict(read) == payment.raw and kept.sent == read.sent
    assert json.dumps(kept) == json.dumps(read)


def test_what_was_journaled_counts() -> None:
    """Not the fields of the payment that it was made from: a secret identifier is left out of the text."""
    payment = decode_payment(packed(document()))
    changes = {"resource": {"url": "https://other"}, "extensions": {"x": 1}}
    turned = replace(payment, raw={**payment.raw, **changes})
    found = restore(turned.stored())
    assert (found.resource, found.extensions) == (changes["resource"], changes["extensions"])
    assert_restored(replace(payment, raw=payment.raw))


def test_v1_payment_is_converted_to_v2() -> None:
    """X-PAYMENT becomes a V2 payment with our terms, since V1 does not repeat them."""
    header = packed(
        {
            "x402Version": 1,
            "scheme": "exact",
            "network": "base-sepolia",
            "payload": document()["payload"],
        }
    )
    payment = decode_v1_payment(header, REQUIREMENTS)
    assert payment.version == 1
    assert payment.raw == {"x402Version": 2, "accepted": REQUIREMENTS, "payload": document()["payload"]}
    assert payment_key(payment) == payment_key(decode_payment(packed(document())))
    assert restore(payment.stored(), version=1) == payment
    assert_restored(payment)


def test_v1_payment_keeps_scheme_and_network() -> None:
    """Terms that V1 does state are not overwritten by ours, so that a mismatch is detected later."""
    payload = document()["payload"]
    other = packed({"x402Version": 1, "scheme": "upto", "network": "base", "payload": payload})
    payment = decode_v1_payment(other, REQUIREMENTS)
    assert (payment.accepted.scheme, payment.accepted.network) == ("upto", "eip155:8453")
    unknown = packed({"x402Version": 1, "scheme": "exact", "network": "peaq", "payload": payload})
    assert decode_v1_payment(unknown, REQUIREMENTS).accepted.network == "peaq"


def test_published_headers_are_parsed() -> None:
    """The published V2 and V1 headers decode to one payment, with the published signature."""
    vector = json.loads(Path(__file__).with_name("x402_vector.json").read_text())
    two = read_payment({"PAYMENT-SIGNATURE": vector["PAYMENT-SIGNATURE"]}, {})
    one = read_payment({"X-PAYMENT": vector["X-PAYMENT"]}, REQUIREMENTS)
    assert one is not None and two is not None
    assert two.raw == vector["paymentPayload"]
    assert one.authorization == two.authorization and one.accepted == two.accepted
    assert one.signature == two.signature == vector["signature"]
    assert payment_key(one) == payment_key(two) == f"eip155:84532/{ASSET}/{PAYER}/{NONCE}".lower()
    digest = transfer_digest(BASE_SEPOLIA.domain, two.authorization)
    assert "0x" + digest.hex() == vector["digest"]
    assert response_headers(vector["settleResponse"]) == {PAYMENT_RESPONSE: vector["PAYMENT-RESPONSE"]}


def test_v2_header_wins() -> None:
    """With both headers only PAYMENT-SIGNATURE is read; with none there is no payment."""
    both = {"PAYMENT-SIGNATURE": packed(document()), "X-PAYMENT": "not even base64!"}
    payment = read_payment(both, REQUIREMENTS)
    assert payment is not None and payment.version == 2
    assert read_payment({}, REQUIREMENTS) is None


def test_empty_header_is_an_invalid_payment() -> None:
    """An empty header is refused, not treated as no payment."""
    with pytest.raises(BadRequest):
        read_payment({"PAYMENT-SIGNATURE": ""}, REQUIREMENTS)


def test_both_base64_alphabets_and_missing_padding_are_accepted() -> None:
    """Standard or url-safe, padded or not: the same bytes are the same payment."""
    raw = json.dumps(document(note="???>>>ÿÿÿ~~~"), ensure_ascii=False).encode()
    standard, safe = base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()
    assert standard != safe and ("+" in standard or "/" in standard)
    expected = decode_payment(standard)
    for header in (safe, standard.rstrip("="), safe.rstrip("=")):
        assert decode_payment(header) == expected


def test_invalid_base64_is_refused() -> None:
    """Blanks, line ends, mixed alphabets, wrong padding and wrong lengths are refused."""
    good = packed(document())
    for wrong in (
        "",
        "=",
        "====",
        " " + good,
        good + "\n",
        good[:40] + " " + good[40:],
        good[:8] + "+_" + good[10:],
        good.rstrip("=") + "===",
        "A" * 5,
        "A" * 4 + "=",
        good + ",",
        "ÿ" * 8,
        "{" + json.dumps(document()),
    ):
        assert refused(wrong).details["field"] == "PAYMENT-SIGNATURE"


def test_long_header_is_refused_before_decoding() -> None:
    """A header one character above the limit is refused by its length alone."""
    error = refused("A" * (MAX_READ_CHARS + 1))
    assert error.details["received"] == MAX_READ_CHARS + 1


@pytest.mark.parametrize("text", ["null", "[]", '"text"', "1", "{", "", '\ufeff{"x402Version":2}'])
def test_non_object_json_is_refused(text: str) -> None:
    """Only a single JSON object is a payment."""
    refused(packed(text))


@pytest.mark.parametrize(
    "member",
    [
        '"x402Version":2',
        '"a":1,"a":1',
        '"a":{"b":[{"c":1,"c":2}]}',
        '"a":NaN',
        '"a":Infinity',
        '"a":-Infinity',
        '"a":1e999',
        '"a":-1e999',
        '"a":' + "9" * 5000,
        '"a":"\\ud800"',
        '"a":["\\udfff\\ud800"]',
        '"\\udfff":1',
        '"a":' + "[" * 40 + "]" * 40,
        '"a":' + "[" * 5000 + "]" * 5000,
    ],
)
def test_ambiguous_json_is_refused(member: str) -> None:
    """One invalid member spoils an otherwise good payment: duplicates, odd numbers, broken text."""
    good = json.dumps(document())
    assert decode_payment(packed(good[:-1] + ',"a":[1e3,"\\ud83d\\ude00"]}'))
    assert refused(packed(good[:-1] + "," + member + "}")).details["field"] == "PAYMENT-SIGNATURE"


@pytest.mark.parametrize("spaces", [0, 1, 2])
def test_padding_must_be_correct_or_absent(spaces: int) -> None:
    """At any length, a payment is read with correct padding or none, and with no other."""
    header = packed(json.dumps(document()) + " " * spaces)
    body = header.rstrip("=")
    right = "=" * (len(header) - len(body))
    for padding in ("", "=", "==", "==="):
        if padding in ("", right):
            assert decode_payment(body + padding)
        else:
            refused(body + padding)


def test_deep_nesting_is_refused() -> None:
    """Even if a library raised the recursion limit, a deep header is refused without a crash."""
    program = (
        "import base64, sys\n"
        "from worker.core.errors import BadRequest\n"
        "from worker.x402.wire import decode_payment\n"
        "sys.setrecursionlimit(1_000_000)\n"
        'text = \'{"a":"[[\\\\"[[","b":\' + \'[\' * 12_000\n'
        "try: decode_payment(base64.b64encode(text.encode()).decode())\n"
        "except BadRequest as refused: print(refused.details['expected'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "at most 32 levels"


def test_invalid_utf8_is_refused() -> None:
    """Latin-1 inside the base64 is malformed."""
    refused(base64.b64encode(b'{"x402Version":2,"a":"\xff"}').decode())


@pytest.mark.parametrize("version", [1, 3, 0, "2", 2.0, True, None])
def test_version_must_match_its_header(version: Any) -> None:
    """PAYMENT-SIGNATURE must contain the integer 2."""
    paid = document()
    paid["x402Version"] = version
    error = refused(packed(paid))
    assert error.details["field"] == "x402Version" and error.details["reason"] == "invalid_x402_version"


def test_a_v2_payment_in_the_v1_header_is_refused() -> None:
    """X-PAYMENT must contain the integer 1."""
    with pytest.raises(BadRequest) as caught:
        decode_v1_payment(packed(document()), REQUIREMENTS)
    assert caught.value.details["field"] == "x402Version"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"accepted": None}, "accepted"),
        ({"accepted": []}, "accepted"),
        ({"accepted__scheme": None}, "accepted.scheme"),
        ({"accepted__network": 8453}, "accepted.network"),
        ({"accepted__amount": 10000}, "accepted.amount"),
        ({"accepted__payTo": ""}, "accepted.payTo"),
        ({"accepted__maxTimeoutSeconds": "60"}, "accepted.maxTimeoutSeconds"),
        ({"accepted__maxTimeoutSeconds": True}, "accepted.maxTimeoutSeconds"),
        ({"accepted__maxTimeoutSeconds": 60.0}, "accepted.maxTimeoutSeconds"),
        ({"accepted__extra": []}, "accepted.extra"),
        ({"resource": "https://worker.example"}, "resource"),
        ({"extensions": []}, "extensions"),
        ({"payload": None}, "payload"),
        ({"payload": "0x"}, "payload"),
        ({"payload__signature": None}, "payload.signature"),
        ({"payload__signature": "0x"}, "payload.signature"),
        ({"payload__signature": "0x123"}, "payload.signature"),
        ({"payload__signature": "5c" * 65}, "payload.signature"),
        ({"payload__signature": SIGNATURE + "\n"}, "payload.signature"),
        ({"payload__authorization": None}, "payload.authorization"),
        ({"payload__authorization__from": "0x1234"}, "payload.authorization.from"),
        ({"payload__authorization__from": PAYER + "\n"}, "payload.authorization.from"),
        ({"payload__authorization__to": None}, "payload.authorization.to"),
        ({"payload__authorization__value": 10000}, "payload.authorization.value"),
        ({"payload__authorization__value": "-1"}, "payload.authorization.value"),
        ({"payload__authorization__value": "+1"}, "payload.authorization.value"),
        ({"payload__authorization__value": "1e4"}, "payload.authorization.value"),
        ({"payload__authorization__value": "0x2710"}, "payload.authorization.value"),
        ({"payload__authorization__value": "1_0"}, "payload.authorization.value"),
        ({"payload__authorization__value": " 1"}, "payload.authorization.value"),
        ({"payload__authorization__value": "010000"}, "payload.authorization.value"),
        ({"payload__authorization__value": "١٠"}, "payload.authorization.value"),
        ({"payload__authorization__value": str(2**256)}, "payload.authorization.value"),
        ({"payload__authorization__validAfter": 0}, "payload.authorization.validAfter"),
        ({"payload__authorization__validBefore": "9" * 79}, "payload.authorization.validBefore"),
        ({"payload__authorization__nonce": "0x12"}, "payload.authorization.nonce"),
        ({"payload__authorization__nonce": "ab" * 32}, "payload.authorization.nonce"),
        ({"payload__authorization__nonce": NONCE + "00"}, "payload.authorization.nonce"),
    ],
)
def test_wrong_field_is_named(changes: dict[str, Any], field: str) -> None:
    """Whichever part is missing or malformed, the refusal names it and the expected form."""
    error = refused(packed(document(**changes)))
    assert error.details["field"] == field
    assert error.details["expected"] and error.details["received"] is not None
    assert "You were not charged" in error.advice


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({"signature": SIGNATURE, "permit2Authorization": {}}, "permit2"),
        ({"delegationManager": PAYEE, "permissionContext": "0x", "delegator": PAYER}, "erc7710"),
        ({"transaction": "AQID"}, "a signed transaction"),
        ({**document()["payload"], "permit2Authorization": {}}, "permit2"),
    ],
)
def test_unsupported_schemes_are_named(payload: dict[str, Any], kind: str) -> None:
    """Only EIP-3009 is offered: permit2 and others are refused as unsupported, by name."""
    error = refused(packed(document(payload=payload)))
    assert error.details["field"] == "payload" and error.details["received"] == kind
    assert error.details["expected"] == "an EIP-3009 authorization"
    assert error.details["reason"] == "unsupported_payload_type"


def test_smart_wallet_signature_is_accepted() -> None:
    """A signature's length proves nothing: the facilitator judges long ones."""
    payment = decode_payment(packed(document(payload__signature="0x" + "62" * 1500)))
    assert len(payment.signature_bytes) == 1500


@pytest.mark.parametrize("found", ["pay_7d5d747be160e280504c099d984bcfe0", "a" * 16, "A-_9" * 32])
def test_payment_identifier_is_read(found: str) -> None:
    """An id of 16 to 128 plain characters is passed on."""
    extension = {"payment-identifier": {"info": {"required": False, "id": found}, "schema": {}}}
    assert decode_payment(packed(document(extensions=extension))).identifier == found


@pytest.mark.parametrize(
    "found", ["a" * 15, "a" * 129, "a" * 20 + "!", "a" * 20 + "\n", 12345678901234567, ["a" * 16]]
)
def test_malformed_payment_identifier_is_refused(found: Any) -> None:
    """An id of another form is a malformed payment, as the extension's specification says."""
    extension = {"payment-identifier": {"info": {"required": False, "id": found}}}
    error = refused(packed(document(extensions=extension)))
    assert error.details["field"] == "extensions.payment-identifier.info.id"


def test_extension_without_an_id_is_accepted() -> None:
    """Clients echo the declaration unchanged; null for optional parts counts as absent."""
    extension = {"payment-identifier": {"info": {"required": False}, "schema": {}}, "other": 1}
    assert decode_payment(packed(document(extensions=extension))).identifier is None
    paid = document()
    paid["extensions"] = paid["resource"] = paid["accepted"]["extra"] = None
    payment = decode_payment(packed(paid))
    assert payment.extensions == {} and payment.resource is None and payment.accepted.extra == {}
    refused(packed(document(extensions={"payment-identifier": {"info": "x"}})))
    refused(packed(document(extensions={"payment-identifier": "x"})))


def test_refusal_echoes_little() -> None:
    """Received values are shown short: long text and huge numbers only by their type."""
    long = refused(packed(document(accepted__scheme="x", payload__signature="z" * 3000)))
    assert len(str(long.details["received"])) < 120
    huge = refused(packed(document(accepted__maxTimeoutSeconds={"a": 1})))
    assert huge.details["received"] == "an object"
    number = refused(packed('{"x402Version":' + "9" * 4000 + "}"))
    assert number.details["received"] == "a very large integer"


@given(st.text(max_size=200))
def test_random_text_is_malformed(text: str) -> None:
    """Any header raises nothing but the refusal."""
    with pytest.raises(BadRequest):
        decode_payment(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
places = ["accepted", "payload", "extensions", "resource", "payload__authorization", "accepted__extra"]
places += ["payload__signature", "payload__authorization__value", "accepted__maxTimeoutSeconds"]


@given(st.sampled_from(places), json_values)
def test_any_json_is_parsed_or_refused(place: str, value: Any) -> None:
    """Any value in any place gives a payment or the refusal, and no other error."""
    try:
        payment = decode_payment(packed(document(**{place: value})))
    except Problem as problem:
        assert problem.status == 400
        json.dumps(problem.details)
    else:
        assert isinstance(payment, PaymentPayload)
        assert_restored(payment)


def test_kept_payments_are_bounded_by_their_bytes() -> None:
    """Headers of the largest size and of the form that takes most memory leave little behind."""
    empty, room = packed(document(more=[])), (MAX_READ_CHARS - 2_000) // 4 * 3
    assert len(empty) < 2_000
    tracemalloc.start()
    try:
        for number in range(64):
            decode_payment(packed(document(number=number, more=[[[]]] * (room // 6))))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 6_000_000


def test_payment_key_is_case_insensitive() -> None:
    """The same authorization in another letter case has the same key; another nonce does not."""
    key = payment_key(decode_payment(packed(document())))
    upper = document(
        accepted__asset=ASSET.upper().replace("0X", "0x"),
        payload__authorization__from=PAYER.upper().replace("0X", "0x"),
        payload__authorization__nonce=NONCE.upper().replace("0X", "0x"),
    )
    assert payment_key(decode_payment(packed(upper))) == key
    other = document(payload__authorization__nonce="0x" + "00" * 32)
    assert payment_key(decode_payment(packed(other))) != key


def test_headers_are_padded_ascii() -> None:
    """Headers are standard base64 with padding over ASCII JSON, the form that every client reads."""
    value = encode({"a": "ü😀", "b": 1})
    assert len(value) % 4 == 0 and "-" not in value and "_" not in value
    text = base64.b64decode(value, validate=True).decode("ascii")
    assert json.loads(text) == {"a": "ü😀", "b": 1} and " " not in text
    with pytest.raises(ValueError, match="JSON"):
        encode({"a": float("nan")})


@pytest.mark.parametrize("character", ["x", "ü", "😀", '"', "\n"])
def test_long_description_is_truncated(character: str) -> None:
    """PAYMENT-REQUIRED stays under its limit for any description, and loses no terms."""
    paid = {"x402Version": 2, "resource": {"url": "u", "description": character * 20_000}, "accepts": [1]}
    value = required_header(paid)
    assert MAX_WRITE_CHARS * 0.9 < len(value) < MAX_WRITE_CHARS
    read = json.loads(base64.b64decode(value))
    assert read["accepts"] == [1] and read["resource"]["url"] == "u"
    assert set(read["resource"]["description"]) == {character}
    assert paid["resource"]["description"] == character * 20_000


def test_oversized_header_is_never_sent() -> None:
    """If the header is too long even without a description, building it fails."""
    with pytest.raises(ValueError, match="PAYMENT-REQUIRED"):
        required_header({"resource": {"url": "u" * 8000, "description": "d"}})
    with pytest.raises(ValueError, match="PAYMENT-RESPONSE"):
        response_headers({"network": "eip155:8453", "a": "x" * 8000})


def test_short_description_is_kept() -> None:
    """A document that fits is written unchanged."""
    paid = {"resource": {"url": "u", "description": "a short one"}}
    assert json.loads(base64.b64decode(required_header(paid))) == paid


OUTCOMES: dict[str, dict[str, Any]] = {
    "settled": {"success": True, "transaction": "0x1", "network": "eip155:84532", "payer": PAYER},
    "nested first": {"a": {"network": "eip155:84532"}, "network": "eip155:84532"},
    "nested last": {"network": "eip155:84532", "a": {"network": "eip155:84532"}},
    "nested only": {"a": {"network": "eip155:84532"}},
    "in a list": {"a": ["network", {"network": "eip155:8453"}], "network": "eip155:8453"},
    "quoted": {"a": '"network":"eip155:8453"', "b": '\\"network":"eip155:8453', "network": "eip155:8453"},
    "escaped": {"ü\u2028": "\x00", "network": "eip155:8453"},
    "a bracket": {"a": "{", "network": "eip155:8453"},
    "its name": {"network": "base"},
    "odd case": {"network": " EIP155:8453 "},
    "unknown": {"network": "eip155:1"},
    "no text": {"network": ["eip155:8453"]},
    "none": {"success": False},
}


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_headers_of_a_stored_outcome_are_those_of_its_document(outcome: dict[str, Any]) -> None:
    """The V1 header is changed in the text, and only where the encoder would change it."""
    text = json.dumps(outcome, separators=(",", ":"))
    expected = {**response_headers(outcome), **response_headers(outcome, version=1)}
    assert stored_response_headers(text, str(outcome.get("network", ""))) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accepted__asset": ASSET.lower()},
        {"payload__authorization__from": PAYER.lower()},
        {"resource__url": "https://ünï.example/\u2028"},
        {"extensions": {"x": [1.5, 1e300, True, None, "\x00", 10**30, {"from": PAYER.lower()}]}},
    ],
)
@pytest.mark.parametrize("escaped", [True, False])
def test_a_journaled_payment_is_sent_as_its_document(changes: dict[str, Any], escaped: bool) -> None:
    """The stored text is sent as it is only if that is what the encoder writes."""
    paid = document(**changes)
    text = json.dumps(paid, separators=(",", ":"), ensure_ascii=escaped)
    assert journaled(text).sent == sent_form(paid)


def test_response_uses_the_payers_version() -> None:
    """V2 payers get PAYMENT-RESPONSE with the CAIP-2 id, V1 payers X-PAYMENT-RESPONSE with the name."""
    settled = {"success": True, "transaction": "0x1", "network": "eip155:84532", "payer": PAYER}
    (two,) = response_headers(settled).items()
    (one,) = response_headers(settled, version=1).items()
    assert two[0] == PAYMENT_RESPONSE and one[0] == X_PAYMENT_RESPONSE
    assert json.loads(base64.b64decode(two[1])) == settled
    assert json.loads(base64.b64decode(one[1])) == {**settled, "network": "base-sepolia"}
