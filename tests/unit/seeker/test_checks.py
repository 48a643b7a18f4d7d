"""Checks before signing and after delivery."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.fake_worker import SEEKER, TRANSACTION, WORKER, WORKER_KEY, FakeWorker, ReceivedRequest
from worker.contracts.signatures import sign_digest
from worker.seeker.checks import SigningLimits, check_bytes, check_demand, check_receipt, choose
from worker.seeker.demand import Demand, read_asking
from worker.seeker.problems import ChecksumMismatch, OfferRefused, ReceiptInvalid, SpendCapReached, plain
from worker.x402.networks import BASE, BASE_SEPOLIA
from worker.x402.receipts import Settlement, sign_receipt

AGREED = SigningLimits(
    host="worker.example",
    most=1_000_000,
    longest_s=3_600,
    network=BASE_SEPOLIA,
    pay_to=WORKER,
    amount=500_000,
)


def demand(**changes: Any) -> Demand:
    asked = FakeWorker().ask(ReceivedRequest("POST", "/execute", {}, b""))
    [found] = read_asking(asked.headers, asked.body).demands
    return replace(found, **changes)


def test_matching_offer_passes() -> None:
    """A demand that matches the offer passes; the case of the network name does not matter."""
    assert check_demand(demand(), AGREED) is BASE_SEPOLIA
    shouted = demand(pay_to=WORKER.upper().replace("X", "x"), asset=BASE_SEPOLIA.asset.lower())
    assert check_demand(shouted, AGREED) is BASE_SEPOLIA


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scheme": "upto"}, "scheme"),
        ({"network": "eip155:8453"}, "network"),
        ({"network": "eip155:999"}, "network"),
        ({"network": ""}, "network"),
        ({"asset": BASE.asset}, "asset"),
        ({"extra": {"name": "USD Coin", "version": "2"}}, "extra.name"),
        ({"extra": {"name": "USDC", "version": "1"}}, "extra.version"),
        ({"extra": {"assetTransferMethod": "permit2"}}, "extra.assetTransferMethod"),
        ({"extra": {"paymentFlow": "upfront"}}, "extra.paymentFlow"),
        ({"amount": 500_001}, "amount"),
        ({"amount": 499_999}, "amount"),
        ({"amount": 0}, "amount"),
        ({"pay_to": SEEKER}, "payTo"),
        ({"pay_to": "0x"}, "payTo"),
        ({"resource_url": "https://worker.example.evil.example/execute"}, "resource.url"),
        ({"resource_url": "https://worker.example@evil.example/execute"}, "resource.url"),
        ({"resource_url": "https://[broken"}, "resource.url"),
        ({"max_timeout_s": 3_601}, "maxTimeoutSeconds"),
        ({"max_timeout_s": 10**18}, "maxTimeoutSeconds"),
        ({"max_timeout_s": 0}, "maxTimeoutSeconds"),
        ({"max_timeout_s": -1}, "maxTimeoutSeconds"),
    ],
)
def test_each_mismatch_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    """Each mismatch is reported with the expected and the received value."""
    with pytest.raises(OfferRefused) as raised:
        check_demand(demand(**changes), AGREED)
    assert raised.value.details["field"] == field
    assert "expected" in raised.value.details


def test_without_a_contract_the_payee_must_be_an_address() -> None:
    """Without a contract the payee is open, but it must be an address."""
    open_ = replace(AGREED, pay_to=None, amount=None)
    assert check_demand(demand(pay_to=SEEKER), open_)
    with pytest.raises(OfferRefused):
        check_demand(demand(pay_to="somebody"), open_)


def test_price_cap_applies_to_agreed_contracts_too() -> None:
    """A price stated in the contract is refused if the cap is lower."""
    with pytest.raises(SpendCapReached) as raised:
        check_demand(demand(), replace(AGREED, most=499_999))
    assert raised.value.details["expected"] == "at most 0.499999"
    with pytest.raises(SpendCapReached):
        check_demand(demand(), replace(AGREED, most=-5))


def test_first_acceptable_demand_is_chosen() -> None:
    """Unacceptable demands are skipped for an acceptable one; without any, the first error is reported."""
    bad, good = demand(amount=1), demand()
    assert choose([bad, good], AGREED).demand is good
    with pytest.raises(OfferRefused) as raised:
        choose([bad, demand(scheme="upto")], AGREED)
    assert raised.value.details["field"] == "amount"


def receipt(key: str = WORKER_KEY, **changes: Any) -> dict[str, Any]:
    settlement = Settlement(BASE_SEPOLIA.caip2, "https://worker.example/execute", SEEKER, TRANSACTION, 1)
    return sign_receipt(replace(settlement, **changes), lambda digest: sign_digest(digest, key))


def check(found: Any) -> None:
    check_receipt(
        found,
        signer=WORKER,
        payer=SEEKER,
        network=BASE_SEPOLIA,
        resource_url="https://worker.example/execute",
        transaction=TRANSACTION,
    )


def test_valid_receipt_passes() -> None:
    """A receipt for our payment signed by the worker's wallet passes."""
    check(receipt())


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        {"payload": {}},
        receipt(key="0x" + "33" * 32),
        receipt(payer=WORKER),
        receipt(network=BASE.caip2),
        receipt(resource_url="https://other.example/execute"),
        receipt(transaction="0x" + "cd" * 32),
        receipt(transaction=""),
        {**receipt(), "format": "jws"},
        {**receipt(), "signature": "0x00"},
        {**receipt(), "signature": None},
        {**receipt(), "payload": {**receipt()["payload"], "issuedAt": 2}},
        {**receipt(), "payload": {**receipt()["payload"], "issuedAt": "1"}},
        {**receipt(), "payload": {}},
    ],
)
def test_incomplete_receipt_is_refused(found: Any) -> None:
    """Another signer, payer, network, resource or transaction, or any change after signing, is refused."""
    with pytest.raises(ReceiptInvalid):
        check(found)


def test_files_are_checked_by_checksum_and_size() -> None:
    """A flipped bit, a wrong size or a missing checksum is a mismatch."""
    data = b"content"
    checksum = "sha256:" + hashlib.sha256(data).hexdigest()
    check_bytes(data, name="a", checksum=checksum, size=7)
    check_bytes(data, name="a", checksum=checksum, size=None)
    for spoiled, announced, size in (
        (b"Content", checksum, 7),
        (data, checksum, 8),
        (data, checksum.upper(), 7),
        (data, checksum[7:], 7),
        (data, None, 7),
        (data, "sha256:abc...", 7),
    ):
        with pytest.raises(ChecksumMismatch):
            check_bytes(spoiled, name="a", checksum=announced, size=size)


def test_terminal_control_characters_are_removed() -> None:
    """Escape sequences, line ends and direction marks become spaces; long text is truncated."""
    assert plain("a\x1b[2Jb\r\nc\u202ed") == "a [2Jb  c d"
    assert plain("x" * 1_000, 10) == "x" * 10 + "..."
