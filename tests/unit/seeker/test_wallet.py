"""The key signs the right documents and is never shown."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.fake_worker import SEEKER, SEEKER_KEY, FakeWorker, ReceivedRequest
from worker.contracts.signatures import recover_digest, recover_text
from worker.core.errors import BadRequest
from worker.seeker.demand import Demand, read_asking
from worker.seeker.wallet import Wallet
from worker.x402.networks import BASE_SEPOLIA
from worker.x402.offer import mismatch, signature_mismatch
from worker.x402.wire import decode_payment, decode_v1_payment

NOW = 1_700_000_000


def demand(version: int = 2) -> Demand:
    asked = FakeWorker().ask(ReceivedRequest("POST", "/execute", {}, b""))
    [found] = read_asking(asked.headers if version == 2 else {}, asked.body).demands
    return found


def test_v2_payment_is_accepted_by_our_worker() -> None:
    """The worker's own parser, comparison and signature check accept the payment."""
    signed = Wallet(SEEKER_KEY).sign_payment(demand(), BASE_SEPOLIA, NOW)
    payment = decode_payment(signed.value)
    offer = FakeWorker().offer()
    assert mismatch(payment, offer, NOW) is None
    assert signature_mismatch(payment, offer, recover_digest) is None
    assert (signed.header, signed.amount, signed.valid_before_s) == ("PAYMENT-SIGNATURE", 500_000, NOW + 600)


def test_v1_payment_is_accepted_by_our_worker() -> None:
    """X-PAYMENT carries scheme, network name and the same authorization."""
    signed = Wallet(SEEKER_KEY).sign_payment(demand(1), BASE_SEPOLIA, NOW)
    offer = FakeWorker().offer()
    payment = decode_v1_payment(signed.value, offer.requirements())
    assert mismatch(payment, offer, NOW) is None
    assert signature_mismatch(payment, offer, recover_digest) is None
    assert signed.header == "X-PAYMENT"


def test_nonces_and_identifiers_are_unique() -> None:
    """Signing twice makes two payments, so each payment is signed once."""
    wallet = Wallet(SEEKER_KEY)
    payments = [wallet.sign_payment(demand(), BASE_SEPOLIA, NOW) for _ in range(5)]
    assert len({each.nonce for each in payments}) == 5
    assert len({decode_payment(each.value).identifier for each in payments}) == 5


def test_extensions_are_echoed_with_an_id() -> None:
    """Servers compare the echo with what they declared."""
    payment_required = demand()
    sent = json.loads(
        base64.b64decode(Wallet(SEEKER_KEY).sign_payment(payment_required, BASE_SEPOLIA, NOW).value)
    )
    entry = sent["extensions"]["payment-identifier"]
    assert len(entry["info"].pop("id")) == 36
    assert sent["extensions"] == dict(payment_required.extensions)
    assert sent["accepted"] == dict(payment_required.accepted)
    plain = replace(payment_required, extensions={"other": {"info": 5}})
    sent = json.loads(base64.b64decode(Wallet(SEEKER_KEY).sign_payment(plain, BASE_SEPOLIA, NOW).value))
    assert sent["extensions"] == {"other": {"info": 5}}


def test_a_contract_is_signed_as_text() -> None:
    """The signature recovers to the wallet from the ASCII text of the hash."""
    wallet = Wallet(SEEKER_KEY)
    text = "sha256:" + "a" * 64
    assert recover_text(text, wallet.sign_contract(text)) == SEEKER == wallet.address


def test_key_is_never_shown() -> None:
    """Neither repr nor an error message contains the key."""
    assert SEEKER_KEY[2:] not in repr(Wallet(SEEKER_KEY))
    bad = "ab" * 31
    with pytest.raises(BadRequest) as raised:
        Wallet(bad)
    assert bad not in f"{raised.value.message}{raised.value.details}{raised.value.advice}"
    assert raised.value.__suppress_context__


def test_keys_are_read_from_files(tmp_path: Path) -> None:
    """Plain hex, with or without 0x and line end, or a local worker's local.json."""
    for text in (SEEKER_KEY, SEEKER_KEY[2:] + "\n", json.dumps({"seeker_key": SEEKER_KEY})):
        (tmp_path / "key").write_text(text)
        assert Wallet.from_file(tmp_path / "key").address == SEEKER
    for text in ("", "{}", "{", "0x12", '{"seeker_key": 5}'):
        (tmp_path / "key").write_text(text)
        with pytest.raises(BadRequest):
            Wallet.from_file(tmp_path / "key")
    with pytest.raises(BadRequest):
        Wallet.from_file(tmp_path / "none")
