"""Receipts and payment responses: signed with the worker's key, verifiable by anybody."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from x402.schemas import SettleResponse

from worker.core.json import ascii_of
from worker.x402 import receipts
from worker.x402.headers import MAX_WRITE_CHARS, response_headers, stored_response_headers
from worker.x402.receipts import (
    REFUND,
    Refund,
    RefundReason,
    Settlement,
    failed_response,
    outcome_of,
    pending_response,
    settled_response,
    settled_text,
    sign_receipt,
    sign_refund,
)

KEY = "0x" + "22" * 32
WORKER = Account.from_key(KEY).address
PAYER = "0x" + "ab" * 20
SETTLEMENT = Settlement(
    network="eip155:84532",
    resource_url="https://worker.example/execute",
    payer="0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
    transaction="0x" + "cd" * 32,
    issued_at_s=1_800_000_000,
)
REFUND_DONE = Refund(
    network="eip155:84532",
    asset="0x036CbD53842c5426634e7929541eC2318f3dCF7e",
    payer=SETTLEMENT.payer,
    amount=10_000,
    payment=SETTLEMENT.transaction,
    refund="0x" + "ef" * 32,
    reason=RefundReason.DUPLICATE,
    contract_hash="sha256:" + "a" * 64,
    issued_at_s=1_800_000_100,
)
DOMAIN_FIELDS = [
    {"name": "name", "type": "string"},
    {"name": "version", "type": "string"},
    {"name": "chainId", "type": "uint256"},
]


def sign(digest: bytes) -> bytes:
    """Sign as the worker does."""
    return bytes(Account.unsafe_sign_hash(digest, KEY).signature)


def signer_of(signed: dict[str, Any], name: str, primary: str, fields: list[tuple[str, str]]) -> str:
    """Recover a signer as a third party would: typed data through eth_account only."""
    typed = {
        "types": {
            "EIP712Domain": DOMAIN_FIELDS,
            primary: [{"name": field, "type": kind} for field, kind in fields],
        },
        "primaryType": primary,
        "domain": {"name": name, "version": "1", "chainId": 1},
        "message": signed["payload"],
    }
    return str(Account.recover_message(encode_typed_data(full_message=typed), signature=signed["signature"]))


RECEIPT_FIELDS = [
    ("version", "uint256"),
    ("network", "string"),
    ("resourceUrl", "string"),
    ("payer", "string"),
    ("issuedAt", "uint256"),
    ("transaction", "string"),
]


def test_receipt_signature_recovers_to_the_worker() -> None:
    """A third party recovers the worker's wallet from a receipt with the published types."""
    receipt = sign_receipt(SETTLEMENT, sign)
    assert set(receipt) == {"format", "payload", "signature"} and receipt["format"] == "eip712"
    assert signer_of(receipt, "x402 receipt", "Receipt", RECEIPT_FIELDS) == WORKER
    assert receipt["payload"]["transaction"] == SETTLEMENT.transaction


def test_receipts_name_addresses_with_their_checksum() -> None:
    """However the payment spelt them; the PAYMENT-RESPONSE and its receipt name one payer."""
    lower = replace(SETTLEMENT, payer=SETTLEMENT.payer.lower())
    answer = settled_response(lower, sign)
    receipt = answer["extensions"]["offer-receipt"]["info"]["receipt"]
    assert receipt["payload"]["payer"] == answer["payer"] == SETTLEMENT.payer
    refund = replace(REFUND_DONE, payer=REFUND_DONE.payer.lower(), asset=REFUND_DONE.asset.lower())
    assert sign_refund(refund, sign) == sign_refund(REFUND_DONE, sign)


@pytest.mark.parametrize("field", ["network", "resourceUrl", "payer", "issuedAt", "transaction"])
def test_changed_receipt_is_invalid(field: str) -> None:
    """Changing any field changes the recovered signer."""
    receipt = sign_receipt(SETTLEMENT, sign)
    receipt["payload"][field] = 7 if field == "issuedAt" else "other"
    assert signer_of(receipt, "x402 receipt", "Receipt", RECEIPT_FIELDS) != WORKER


def test_settled_response_carries_its_receipt() -> None:
    """PAYMENT-RESPONSE contains the receipt at its published place, and its schema describes it."""
    answer = settled_response(SETTLEMENT, sign)
    entry = answer["extensions"]["offer-receipt"]
    jsonschema.Draft202012Validator.check_schema(entry["schema"])
    jsonschema.validate(entry["info"], entry["schema"])
    assert entry["info"]["receipt"] == sign_receipt(SETTLEMENT, sign)
    read = SettleResponse.model_validate(answer)
    assert read.success and read.transaction == SETTLEMENT.transaction and read.payer == SETTLEMENT.payer
    (header,) = response_headers(answer).values()
    assert len(header) < MAX_WRITE_CHARS / 2


@pytest.mark.parametrize(
    "url", [SETTLEMENT.resource_url, '"}}}},"schema":{', "ünï\u2028\\\x00", "x" * 5_000, ""]
)
@pytest.mark.parametrize("network", ["eip155:84532", '"network":"eip155:8453"'])
def test_settled_response_is_written_as_by_the_encoder(url: str, network: str) -> None:
    """The text, whose schema is not encoded again, is the document's compact ASCII JSON."""
    settlement = replace(SETTLEMENT, resource_url=url, network=network)
    expected = json.dumps(settled_response(settlement, sign), separators=(",", ":"))
    assert settled_text(settlement, sign) == expected
    entry = settled_response(settlement, sign)
    del entry["extensions"]["offer-receipt"]["schema"]
    assert outcome_of(expected) == entry
    receipts._OUTCOMES.drop(expected)  # as in a process that has not made it
    assert outcome_of(expected) == entry


@pytest.mark.parametrize("response", ["{}", '{"success":false,"a":"é"}', '{"a":{"b":{"c":1},"schema":{}}}'])
def test_other_responses_are_read_as_they_are(response: str) -> None:
    assert outcome_of(response) == json.loads(response)


def test_failed_settlement_has_no_receipt() -> None:
    """A refusal gives its reason and no transaction; a pending one may name the hash to watch."""
    refused = SettleResponse.model_validate(failed_response("insufficient_funds", "eip155:8453", PAYER))
    assert (refused.success, refused.error_reason, refused.transaction) == (False, "insufficient_funds", "")
    assert "payer" not in failed_response("invalid_payload", "eip155:8453")
    pending = SettleResponse.model_validate(pending_response("eip155:8453", PAYER, "0xcd"))
    assert (pending.success, pending.error_reason, pending.transaction) == (
        False,
        "settlement_pending",
        "0xcd",
    )
    assert pending_response("eip155:8453", PAYER)["transaction"] == ""


def test_refund_receipt_recovers_to_the_worker() -> None:
    """The documented struct and domain suffice to verify a refund receipt."""
    signed = sign_refund(REFUND_DONE, sign)
    fields = [
        ("version", "uint256"),
        ("network", "string"),
        ("asset", "string"),
        ("payer", "string"),
        ("amount", "string"),
        ("payment", "string"),
        ("refund", "string"),
        ("reason", "string"),
        ("contract", "string"),
        ("issuedAt", "uint256"),
    ]
    assert tuple(fields) == REFUND.fields
    assert signer_of(signed, "hire refund receipt", "RefundReceipt", fields) == WORKER
    assert signed["payload"]["reason"] == "duplicate_payment" and signed["payload"]["amount"] == "10000"
    signed["payload"]["amount"] = "10001"
    assert signer_of(signed, "hire refund receipt", "RefundReceipt", fields) != WORKER
    json.dumps(signed)


@pytest.mark.parametrize(
    "changes", [{"amount": 0}, {"amount": -1}, {"payment": ""}, {"refund": "0x12"}, {"refund": "pending"}]
)
def test_no_receipt_for_a_refund_that_did_not_happen(changes: dict[str, Any]) -> None:
    """A refund receipt needs an amount and both transaction hashes."""
    with pytest.raises(ValueError, match="refund receipt"):
        sign_refund(replace(REFUND_DONE, **changes), sign)


def test_failing_signer_is_reported() -> None:
    """A signature of the wrong length is never returned."""
    with pytest.raises(ValueError, match="65 bytes"):
        sign_receipt(SETTLEMENT, lambda digest: b"\x00" * 64)


def test_headers_of_a_stored_outcome_are_those_of_its_document() -> None:
    """In both dialects, byte for byte, wherever the outcome names a network and whatever it contains."""
    member = '"network":"eip155:84532"'
    texts = ["", "x", member, "\\", '\\"', "{" + member, "é\n", "eip155:84532", "},"]
    networks = ["eip155:84532", "eip155:8453", "base-sepolia", "BASE", "eip155:1", "", member]
    documents: list[dict[str, Any]] = [
        settled_response(SETTLEMENT, lambda digest: b"\1" * 65),
        failed_response("insufficient_funds", "eip155:84532", PAYER),
        failed_response("insufficient_funds", "base-sepolia"),
        {},
        {"extensions": {"network": "eip155:84532"}},
    ]
    for text in texts:
        for network in networks:
            documents += [
                {"reason": text, "network": network, "payer": text},
                {"a": {"network": network, "b": text}, "network": network},
                {"a": [{"network": network}], "b": text, "network": "eip155:8453"},
                {"network": network, "a": {"network": network}, text: text},
                {text: {}, "network": network},
            ]
    for document in documents:
        expected = {**response_headers(document), **response_headers(document, version=1)}
        named = str(document.get("network", ""))
        assert stored_response_headers(ascii_of(document), named) == expected, document
    with pytest.raises(ValueError, match="X-PAYMENT-RESPONSE|PAYMENT-RESPONSE"):
        stored_response_headers(ascii_of({"a": "x" * 8_000}), "")
