"""The local facilitator on the local chain, compared with the official client and facilitator."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from eth_abi import encode
from eth_account import Account
from structlog.testing import capture_logs
from x402 import x402ClientSync
from x402.facilitator import x402FacilitatorSync
from x402.http import FacilitatorConfig, HTTPFacilitatorClientSync
from x402.mechanisms.evm.exact import register_exact_evm_client, register_exact_evm_facilitator
from x402.mechanisms.evm.signers import FacilitatorWeb3Signer
from x402.schemas import PaymentPayload, PaymentRequired, PaymentRequirements
from x402.schemas.v1 import PaymentRequiredV1, PaymentRequirementsV1

from tests.fakes.dollar import (
    CANCEL_BY_BYTES,
    DOLLAR,
    Rpc,
    SignedAuthorization,
    artifact,
    calldata,
    cancellation,
    fresh,
    request_v1,
    request_v2,
    requirements,
)
from worker.local.chain import ETHER, LocalChain
from worker.local.facilitator import LocalFacilitator
from worker.local.httpd import Answer, JsonServer

GAS = Account.create()
USED = "invalid_exact_evm_nonce_already_used"


def key_of(account: Any) -> str:
    return "0x" + bytes(account.key).hex()


@pytest.fixture(name="chain", scope="module")
def _chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rpc]:
    with LocalChain(tmp_path_factory.mktemp("chain"), ether={GAS.address: 100 * ETHER}) as running:
        yield Rpc(running.url)


@pytest.fixture(name="facilitator", scope="module")
def _facilitator(chain: Rpc) -> Iterator[str]:
    with LocalFacilitator(chain.url, key_of(GAS), wait_s=5) as running:
        yield running.url


def post(url: str, path: str, body: Any) -> dict[str, Any]:
    answer = requests.post(url + path, json=body, timeout=30)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def signed_payment(
    chain: Rpc, *, dollars: int = 50_000, **overrides: Any
) -> tuple[Any, Any, SignedAuthorization]:
    payer, payee = fresh(chain, dollars=dollars), Account.create()
    return payer, payee, SignedAuthorization(payer.address, payee.address, **overrides).signed_by(payer)


# With the official packages


def offer(payee: Any, amount: int) -> PaymentRequired:
    return PaymentRequired.model_validate(
        {
            "x402Version": 2,
            "resource": {"url": "https://worker.example/execute"},
            "accepts": [requirements(payee.address, amount)],
        }
    )


def test_official_client_and_facilitator_client_pay(chain: Rpc, facilitator: str) -> None:
    """A payment of the official client with default settings settles through the official HTTP client."""
    payer, payee = fresh(chain, dollars=1_000_000), Account.create()
    client = register_exact_evm_client(x402ClientSync(), payer)
    payload = client.create_payment_payload(offer(payee, 250_000))
    wanted = PaymentRequirements.model_validate(requirements(payee.address, 250_000))
    with HTTPFacilitatorClientSync(FacilitatorConfig(url=facilitator)) as http:
        kinds = {(kind.x402_version, kind.scheme, kind.network) for kind in http.get_supported().kinds}
        assert kinds == {(2, "exact", "eip155:84532"), (1, "exact", "base-sepolia")}
        verdict = http.verify(payload, wanted)
        assert (verdict.is_valid, verdict.payer) == (True, payer.address)
        settled = http.settle(payload, wanted)
        assert settled.success and settled.network == "eip155:84532" and settled.payer == payer.address
        assert chain.receipt(settled.transaction)["status"] == "0x1"
        assert (chain.dollars(payer.address), chain.dollars(payee.address)) == (750_000, 250_000)
        again = http.settle(payload, wanted)
        assert (again.success, again.error_reason, again.transaction) == (False, USED, "")
    assert chain.dollars(payee.address) == 250_000


def test_official_v1_client_pays(chain: Rpc, facilitator: str) -> None:
    """A version 1 payment of the official client verifies and settles, under the network's old name."""
    payer, payee = fresh(chain, dollars=1_000_000), Account.create()
    body = request_v1(SignedAuthorization(payer.address, payee.address), requirements(payee.address, 5_000))
    asked = {"x402Version": 1, "error": "", "accepts": [body["paymentRequirements"]]}
    client = register_exact_evm_client(x402ClientSync(), payer)
    payload = client.create_payment_payload(PaymentRequiredV1.model_validate(asked))
    wanted = PaymentRequirementsV1.model_validate(body["paymentRequirements"])
    with HTTPFacilitatorClientSync(FacilitatorConfig(url=facilitator)) as http:
        assert http.verify(payload, wanted).is_valid
        settled = http.settle(payload, wanted)
    assert settled.success and settled.network == "base-sepolia"
    assert chain.dollars(payee.address) == 5_000


@pytest.fixture(name="official", scope="module")
def _official(chain: Rpc) -> x402FacilitatorSync:
    signer = FacilitatorWeb3Signer(key_of(fresh(chain, gas=True)), chain.url)
    return register_exact_evm_facilitator(x402FacilitatorSync(), signer, "eip155:84532")


Change = Callable[[SignedAuthorization, dict[str, Any], Any], tuple[SignedAuthorization, dict[str, Any]]]
NOW = time.time
HOSTILE: dict[str, tuple[Change, str]] = {
    "no domain": (
        lambda a, w, p: (a, w | {"extra": {}}),
        "missing_eip712_domain",
    ),
    "other payee": (
        lambda a, w, p: (a, w | {"payTo": "0x" + "22" * 20}),
        "invalid_exact_evm_payload_recipient_mismatch",
    ),
    "a unit more wanted": (
        lambda a, w, p: (a, w | {"amount": "10001"}),
        "invalid_exact_evm_payload_authorization_value_mismatch",
    ),
    "a unit less wanted": (
        lambda a, w, p: (a, w | {"amount": "9999"}),
        "invalid_exact_evm_payload_authorization_value_mismatch",
    ),
    "ends now": (
        lambda a, w, p: (replace(a, valid_before=int(NOW()) + 2).signed_by(p), w),
        "invalid_exact_evm_payload_authorization_valid_before",
    ),
    "starts later": (
        lambda a, w, p: (replace(a, valid_after=int(NOW()) + 60).signed_by(p), w),
        "invalid_exact_evm_payload_authorization_valid_after",
    ),
    "not signed": (
        lambda a, w, p: (replace(a, signature=""), w),
        "invalid_exact_evm_payload_signature",
    ),
    "signed with nothing": (
        lambda a, w, p: (replace(a, signature="0x"), w),
        "invalid_exact_evm_payload_undeployed_smart_wallet",
    ),
    "signed by another": (
        lambda a, w, p: (a.signed_by(Account.create()), w),
        "invalid_exact_evm_payload_signature",
    ),
    "signed for another chain": (
        lambda a, w, p: (a.signed_by(p, chainId=8453), w),
        "invalid_exact_evm_payload_signature",
    ),
    "signed under another name": (
        lambda a, w, p: (a.signed_by(p, name="USD Coin"), w),
        "invalid_exact_evm_payload_signature",
    ),
    "a wallet that is not there": (
        lambda a, w, p: (replace(a, signature="0x01" + a.signature[2:]), w),
        "invalid_exact_evm_payload_undeployed_smart_wallet",
    ),
    "a wallet to be deployed": (
        lambda a, w, p: (replace(a, signature=wrapped(a.signature)), w),
        "eip6492_factory_not_allowed",
    ),
    "an asset without code": (
        lambda a, w, p: (
            a.signed_by(p, verifyingContract="0x" + "33" * 20),
            w | {"asset": "0x" + "33" * 20},
        ),
        "asset_not_deployed_contract",
    ),
    "more than the balance": (
        lambda a, w, p: (replace(a, value=50_001).signed_by(p), w | {"amount": "50001"}),
        "invalid_exact_evm_insufficient_balance",
    ),
}


def wrapped(signature: str) -> str:
    """The signature of an undeployed wallet: factory, its call, the inner signature, a marker."""
    inner = bytes.fromhex(signature[2:])
    parts = encode(["address", "bytes", "bytes"], ["0x" + "44" * 20, b"\x01\x02\x03\x04", inner])
    return "0x" + parts.hex() + "6492" * 16


@pytest.mark.parametrize("name", HOSTILE)
def test_same_reason_as_the_official_facilitator(
    chain: Rpc, facilitator: str, official: x402FacilitatorSync, name: str
) -> None:
    """Each bad payment is refused for the official facilitator's reason, and moves nothing."""
    change, reason = HOSTILE[name]
    payer, payee, good = signed_payment(chain)
    authorization, wanted = change(good, requirements(payee.address), payer)
    body = request_v2(authorization, wanted)
    verdict = post(facilitator, "/verify", body)
    assert (verdict["isValid"], verdict["invalidReason"]) == (False, reason)
    assert verdict["payer"].lower() == payer.address.lower()
    settled = post(facilitator, "/settle", body)
    assert (settled["success"], settled["errorReason"], settled["transaction"]) == (False, reason, "")
    payload = PaymentPayload.model_validate(body["paymentPayload"])
    theirs = official.verify(payload, PaymentRequirements.model_validate(wanted))
    assert (theirs.is_valid, theirs.invalid_reason) == (False, reason)
    assert chain.dollars(payer.address) == 50_000
    # the payment before it was corrupted is valid
    assert post(facilitator, "/verify", request_v2(good, requirements(payee.address)))["isValid"]


def test_scheme_network_and_version_are_checked_first(chain: Rpc, facilitator: str) -> None:
    """Scheme, network and version are checked before anything in the authorization."""
    _, payee, good = signed_payment(chain)
    wanted = requirements(payee.address)
    other = wanted | {"network": "eip155:8453"}
    cases = [
        (request_v2(good, wanted | {"scheme": "upto"}), "unsupported_scheme"),
        (request_v2(good, wanted) | {"paymentRequirements": other}, "network_mismatch"),
        (request_v2(good, other), "invalid_exact_evm_failed_to_get_network_config"),
        (
            request_v2(good, wanted | {"network": "solana:1"}),
            "invalid_exact_evm_failed_to_get_network_config",
        ),
        (request_v2(good, wanted) | {"x402Version": 3}, "invalid_x402_version"),
        (request_v2(good, wanted) | {"x402Version": True}, "invalid_x402_version"),
        (request_v2(good, wanted) | {"x402Version": 1}, "invalid_x402_version"),
    ]
    for body, reason in cases:
        assert post(facilitator, "/verify", body)["invalidReason"] == reason
        settled = post(facilitator, "/settle", body)
        assert (settled["success"], settled["errorReason"], settled["transaction"]) == (False, reason, "")


def test_v1_accepts_more_than_the_price_but_not_less(chain: Rpc, facilitator: str) -> None:
    """Version 1 accepts an authorization above the price, and none below it."""
    payer, payee, signed = signed_payment(chain)
    more = request_v1(signed, requirements(payee.address, 9_999))
    less = request_v1(signed, requirements(payee.address, 10_001))
    reason = post(facilitator, "/verify", less)["invalidReason"]
    assert reason == "invalid_exact_evm_payload_authorization_value"
    assert post(facilitator, "/settle", more)["success"]
    assert chain.dollars(payer.address) == 40_000


@pytest.mark.parametrize("path", ["/verify", "/settle"])
def test_malformed_bodies_are_invalid_payload(chain: Rpc, facilitator: str, path: str) -> None:
    """A body that is not a payment gets invalid_payload with 200, never an error page and never money."""
    payer, payee, good = signed_payment(chain)

    def spoilt(**fields: Any) -> dict[str, Any]:
        body = json.loads(json.dumps(request_v2(good, requirements(payee.address))))
        body["paymentPayload"]["payload"]["authorization"].update(fields)
        return dict(body)

    bodies: list[Any] = [
        None, 7, [], {}, {"x402Version": 2},
        {"x402Version": 2, "paymentPayload": [], "paymentRequirements": {}},
        spoilt(nonce="0x12"), spoilt(nonce=None), spoilt(value=10_000),
        spoilt(value="1e4"), spoilt(value="-1"),
        spoilt(value=str(2**256)), spoilt(value="0x2710"),
        spoilt(value="\u0661"), spoilt(to="payee"), spoilt(to=7),
        spoilt(validBefore="soon"), spoilt(**{"from": "0x" + "g" * 40}),
    ]  # fmt: skip
    odd = request_v2(replace(good, signature="0x123"), requirements(payee.address))
    long = request_v2(replace(good, signature="0x" + "11" * 9000), requirements(payee.address))
    for body in [*bodies, odd, long]:
        answer = post(facilitator, path, body)
        assert answer.get("invalidReason", answer.get("errorReason")) == "invalid_payload", body
    raw = requests.post(facilitator + path, data=b"\xff{", timeout=5)
    assert raw.status_code == 200 and "invalid_payload" in raw.text
    deep = requests.post(facilitator + path, data=b"[" * 100_000, timeout=5)
    assert deep.status_code == 200 and "invalid_payload" in deep.text
    assert requests.get(facilitator + path, timeout=5).status_code == 404
    assert chain.dollars(payer.address) == 50_000


# Payers


def wallet_of(chain: Rpc, owner: Any) -> str:
    code = artifact("TestWallet")["bytecode"] + owner.address[2:].lower().rjust(64, "0")
    found: str = chain.receipt(chain.send(owner, None, code))["contractAddress"]
    return found


@pytest.mark.parametrize("wrap", [False, True], ids=["plain", "wrapped though deployed"])
def test_contract_wallet_pays(chain: Rpc, facilitator: str, wrap: bool) -> None:
    """A deployed contract wallet pays with its own kind of signature; a stranger's is refused."""
    owner, payee = fresh(chain, gas=True), Account.create()
    wallet = wallet_of(chain, owner)
    chain("test_mint", wallet, 30_000)
    plain = SignedAuthorization(wallet, payee.address)
    signatures = ["0x01" + plain.signed_by(who).signature[2:] for who in (Account.create(), owner)]
    if wrap:
        signatures = [wrapped(each) for each in signatures]
    wanted = requirements(payee.address)
    forged, good = (request_v2(replace(plain, signature=each), wanted) for each in signatures)
    assert post(facilitator, "/settle", forged)["errorReason"] == "invalid_exact_evm_payload_signature"
    short = request_v2(plain.signed_by(owner), wanted)
    assert post(facilitator, "/verify", short)["invalidReason"] == "invalid_exact_evm_payload_signature"
    assert post(facilitator, "/verify", good) == {"isValid": True, "payer": plain.payer}
    assert post(facilitator, "/settle", good)["success"]
    assert (chain.dollars(wallet), chain.dollars(payee.address)) == (20_000, 10_000)


def test_hostile_contract_wallet_is_a_bad_signature(chain: Rpc, facilitator: str) -> None:
    """A wallet that burns all gas or returns garbage is a bad signature, within a moment."""
    deployer, payee = fresh(chain, gas=True), Account.create()
    loop, garbage = "5b600056", "60206000f3"
    for code in (loop, garbage):
        # creation code that returns the code after it
        size = len(code) // 2
        creation = f"0x60{size:02x}600c60003960{size:02x}6000f3{code}"
        wallet = chain.receipt(chain.send(deployer, None, creation))["contractAddress"]
        assert chain("eth_getCode", wallet, "latest") == "0x" + code
        signed = replace(SignedAuthorization(wallet, payee.address), signature="0x" + "01" * 66)
        verdict = post(facilitator, "/verify", request_v2(signed, requirements(payee.address)))
        assert verdict["invalidReason"] == "invalid_exact_evm_payload_signature"


def test_recovery_id_0_or_1_is_accepted(chain: Rpc, facilitator: str) -> None:
    """A signature that ends in 0 or 1 instead of 27 or 28 settles."""
    payer, payee, signed = signed_payment(chain)
    low = replace(signed, signature=signed.signature[:-2] + f"{int(signed.signature[-2:], 16) - 27:02x}")
    assert post(facilitator, "/settle", request_v2(low, requirements(payee.address)))["success"]
    assert chain.dollars(payer.address) == 40_000


# Changes between verify and settle


def test_balance_drained_after_verify(chain: Rpc, facilitator: str) -> None:
    """Money moved between verify and settle is noticed before a transaction is paid for."""
    payer, payee, signed = signed_payment(chain)
    chain("test_fund", payer.address, ETHER)
    body = request_v2(signed, requirements(payee.address))
    assert post(facilitator, "/verify", body)["isValid"]
    chain.send(payer, DOLLAR, calldata("transfer(address,uint256)", "0x" + "55" * 20, 45_000))
    sent_before = chain("eth_getTransactionCount", GAS.address, "latest")
    settled = post(facilitator, "/settle", body)
    assert settled["errorReason"] == "invalid_exact_evm_insufficient_balance" and settled["transaction"] == ""
    assert chain("eth_getTransactionCount", GAS.address, "latest") == sent_before
    chain("test_mint", payer.address, 5_000)
    assert post(facilitator, "/settle", body)["success"], "the authorization itself is still good"


def test_nonce_cancelled_after_verify(chain: Rpc, facilitator: str) -> None:
    """A cancelled authorization is refused as used, and nothing moves."""
    payer, payee, signed = signed_payment(chain)
    chain("test_fund", payer.address, ETHER)
    body = request_v2(signed, requirements(payee.address))
    assert post(facilitator, "/verify", body)["isValid"]
    chain.send(payer, DOLLAR, calldata(CANCEL_BY_BYTES, *cancellation(payer, signed.nonce)))
    assert post(facilitator, "/settle", body)["errorReason"] == USED
    assert chain.dollars(payer.address) == 50_000


def test_twelve_parallel_settles_move_money_once(chain: Rpc, facilitator: str) -> None:
    """Of many settles of one payment one succeeds with the hash, the others report it used; one transfer."""
    payer, payee, signed = signed_payment(chain)
    body = request_v2(signed, requirements(payee.address))
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: post(facilitator, "/settle", body), range(12)))
    won = [each for each in answers if each["success"]]
    assert len(won) == 1 and chain.receipt(won[0]["transaction"])["status"] == "0x1"
    assert {each.get("errorReason") for each in answers if not each["success"]} == {USED}
    assert chain.dollars(payee.address) == 10_000


def test_ten_parallel_payers_do_not_mix_gas_nonces(chain: Rpc, facilitator: str) -> None:
    """Concurrent settles of different payers all land, each with its own transaction."""
    payments = [signed_payment(chain) for _ in range(10)]
    bodies = [request_v2(signed, requirements(payee.address)) for _, payee, signed in payments]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda body: post(facilitator, "/settle", body), bodies))
    assert all(each["success"] for each in answers)
    assert len({each["transaction"] for each in answers}) == 10
    assert [chain.dollars(payee.address) for _, payee, _ in payments] == [10_000] * 10


# Slow chains and broken nodes


@pytest.fixture(name="slow")
def _slow(tmp_path: Path) -> Iterator[Rpc]:
    gift = {GAS.address: 100 * ETHER}
    with LocalChain(tmp_path / "slow", block_time=3600, ether=gift) as running:
        yield Rpc(running.url)


def test_slow_chain_is_pending_then_settled(slow: Rpc) -> None:
    """Before the block: pending with the hash, however often asked; after it, success with the same hash."""
    payer, payee, signed = signed_payment(slow)
    body = request_v2(signed, requirements(payee.address))
    with LocalFacilitator(slow.url, key_of(GAS), wait_s=0.2) as running:
        first = post(running.url, "/settle", body)
        assert (first["success"], first["errorReason"]) == (False, "settlement_pending")
        assert slow("eth_getTransactionByHash", first["transaction"])["blockNumber"] is None
        reordered = json.loads(json.dumps(body, sort_keys=True))
        assert post(running.url, "/settle", reordered) == first
        slow("test_mine")
        done = post(running.url, "/settle", body)
        assert (done["success"], done["transaction"]) == (True, first["transaction"])
        assert "errorReason" not in done
        assert post(running.url, "/settle", body)["errorReason"] == USED
    assert slow.dollars(payee.address) == 10_000
    assert slow.dollars(payer.address) == 40_000


def test_block_within_the_wait_is_a_plain_success(tmp_path: Path) -> None:
    """If the block arrives within the wait, the settle returns success directly."""
    with LocalChain(tmp_path, block_time=0.7, ether={GAS.address: ETHER}) as running:
        chain = Rpc(running.url)
        _, payee, signed = signed_payment(chain)
        with LocalFacilitator(chain.url, key_of(GAS), wait_s=10) as facilitator:
            assert post(facilitator.url, "/settle", request_v2(signed, requirements(payee.address)))[
                "success"
            ]
        assert chain.dollars(payee.address) == 10_000


def test_parallel_copies_on_a_slow_chain_keep_the_hash(slow: Rpc) -> None:
    """Many settles of one unmined payment all name the one transaction that was sent."""
    payer, payee, signed = signed_payment(slow)
    body = request_v2(signed, requirements(payee.address))
    with LocalFacilitator(slow.url, key_of(GAS), wait_s=0.1) as running:
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: post(running.url, "/settle", body), range(6)))
        assert {each["errorReason"] for each in answers} == {"settlement_pending"}
        assert len({each["transaction"] for each in answers}) == 1
        assert slow("eth_getTransactionCount", GAS.address, "pending") == "0x1"
        slow("test_mine")
        assert post(running.url, "/settle", body)["transaction"] == answers[0]["transaction"]
    assert slow.dollars(payee.address) == 10_000


@pytest.mark.parametrize("change", ["amount", "payTo", "resource", "maxTimeoutSeconds", "version"])
def test_pending_payment_settles_nothing_else(slow: Rpc, change: str) -> None:
    """While a payment is pending, the same signature for anything else is refused and reveals no hash."""
    payer, payee, signed = signed_payment(slow)
    wanted = requirements(payee.address)
    body = request_v2(signed, wanted)
    other: dict[str, Any] = json.loads(json.dumps(body))
    if change == "resource":
        other["paymentPayload"]["resource"]["url"] = "https://worker.example/other"
    elif change == "version":
        other = request_v1(signed, wanted)
    else:
        value = {"amount": "9000000", "payTo": "0x" + "66" * 20, "maxTimeoutSeconds": 301}[change]
        other["paymentRequirements"][change] = other["paymentPayload"]["accepted"][change] = value
    with LocalFacilitator(slow.url, key_of(GAS), wait_s=0.1) as running:
        pending = post(running.url, "/settle", body)
        assert pending["errorReason"] == "settlement_pending"
        refused = post(running.url, "/settle", other)
        assert (refused["success"], refused["transaction"]) == (False, "")
        slow("test_mine")
        assert not post(running.url, "/settle", other)["success"]
        assert post(running.url, "/settle", body)["transaction"] == pending["transaction"]
    assert slow.dollars(payee.address) == 10_000


def test_failed_pending_transaction_is_reported(slow: Rpc) -> None:
    """If the payer cancels while the transfer is pending, the failure names the transaction."""
    payer, payee, signed = signed_payment(slow)
    slow("test_fund", payer.address, ETHER)
    body = request_v2(signed, requirements(payee.address))
    cancelled = slow.send(payer, DOLLAR, calldata(CANCEL_BY_BYTES, *cancellation(payer, signed.nonce)))
    with LocalFacilitator(slow.url, key_of(GAS), wait_s=0.1) as running:
        pending = post(running.url, "/settle", body)
        assert pending["errorReason"] == "settlement_pending"
        slow("test_mine")
        assert slow.receipt(cancelled)["status"] == "0x1"
        failed = post(running.url, "/settle", body)
        assert (failed["errorReason"], failed["transaction"]) == (
            "transaction_failed",
            pending["transaction"],
        )
        assert post(running.url, "/settle", body)["errorReason"] == USED
    assert slow.dollars(payer.address) == 50_000


class LossyNode:
    """A node that loses a transaction before (`swallow`) or after (`drop`) accepting it."""

    def __init__(self, chain: Rpc) -> None:
        self._chain = chain
        self.fault: str | None = None
        self.server = JsonServer(self._handle)
        self.sent = 0

    def _handle(self, method: str, path: str, body: bytes) -> Answer:
        sending = b"eth_sendRawTransaction" in body
        self.sent += sending
        if self.fault == "down":
            return 502, b"bad gateway"
        if sending and self.fault == "swallow":
            return 504, b"too late"
        answer = requests.post(self._chain.url, data=body, timeout=10)
        if sending and self.fault == "drop":
            return 504, b"too late"
        if sending and self.fault == "garbage":
            return 200, b"<html>"
        return answer.status_code, answer.content


@pytest.fixture(name="lossy_node")
def _lossy_node(chain: Rpc) -> Iterator[LossyNode]:
    lossy_node = LossyNode(chain)
    lossy_node.server.start()
    yield lossy_node
    lossy_node.server.close()


@pytest.mark.parametrize("fault", ["drop", "garbage", "swallow"])
def test_lost_node_answer_does_not_lose_the_hash(chain: Rpc, lossy_node: LossyNode, fault: str) -> None:
    """A transaction sent without a response is looked up, resent if needed, and counted once."""
    payer, payee, signed = signed_payment(chain)
    body = request_v2(signed, requirements(payee.address))
    with LocalFacilitator(lossy_node.server.url, key_of(fresh(chain, gas=True)), wait_s=0.3) as running:
        lossy_node.fault = fault
        first = post(running.url, "/settle", body)
        if fault == "swallow":
            assert first["errorReason"] == "settlement_pending" and len(first["transaction"]) == 66
            assert chain("eth_getTransactionByHash", first["transaction"]) is None
            lossy_node.fault = None
            second = post(running.url, "/settle", body)
            assert (second["success"], second["transaction"]) == (True, first["transaction"])
            assert lossy_node.sent == 2
        else:
            assert first["success"] and lossy_node.sent == 1
    assert chain.dollars(payee.address) == 10_000
    assert chain.dollars(payer.address) == 40_000


def test_node_down_is_an_error_not_a_refusal(chain: Rpc, lossy_node: LossyNode) -> None:
    """Without its node the facilitator answers 503 with a body that refuses nothing, and recovers."""
    _, payee, signed = signed_payment(chain)
    body = request_v2(signed, requirements(payee.address))
    with LocalFacilitator(lossy_node.server.url, key_of(GAS), wait_s=2) as running:
        lossy_node.fault = "down"
        for path, reason in {
            "/verify": "unexpected_verify_error",
            "/settle": "unexpected_settle_error",
        }.items():
            answer = requests.post(running.url + path, json=body, timeout=10)
            assert answer.status_code == 503 and reason in answer.text
        assert requests.get(running.url + "/health", timeout=10).status_code == 503
        lossy_node.fault = None
        assert requests.get(running.url + "/health", timeout=10).json()["chain_id"] == 84532
        assert post(running.url, "/settle", body)["success"]


def test_empty_gas_account_sends_nothing(chain: Rpc) -> None:
    """A facilitator without gas money fails without a transaction, and the payment stays valid."""
    payer, payee, signed = signed_payment(chain)
    body = request_v2(signed, requirements(payee.address))
    with LocalFacilitator(chain.url, key_of(Account.create()), wait_s=1) as running:
        failed = post(running.url, "/settle", body)
        assert (failed["errorReason"], failed["transaction"]) == ("transaction_failed", "")
    assert chain.dollars(payer.address) == 50_000
    assert not chain.used(payer.address, signed.nonce)


# The service


def test_startup_warns_that_it_is_not_for_production(chain: Rpc) -> None:
    """The startup log says that it is not for production, and /health repeats it."""
    with capture_logs() as logs, LocalFacilitator(chain.url, key_of(GAS)) as running:
        note = requests.get(running.url + "/health", timeout=5).json()["note"]
    assert "not meant for production" in note
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "facilitator.not_for_production"
    ]


def test_process_serves_and_stops_on_sigterm(chain: Rpc) -> None:
    """The process needs its gas key in the environment, reports its address, and ends on SIGTERM."""
    command = [sys.executable, "-m", "worker.local.facilitator", "--rpc", chain.url, "--port", "0"]
    refused = subprocess.run(command, capture_output=True, text=True, env={}, timeout=20, check=False)
    assert refused.returncode == 2 and "FACILITATOR_GAS_KEY" in refused.stderr
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={"FACILITATOR_GAS_KEY": key_of(GAS)}
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    url = next(line for line in lines if "ready at" in line).split()[-1]
    supported = requests.get(url + "/supported", timeout=5).json()
    assert supported["signers"] == {"eip155:*": [GAS.address]}
    process.terminate()
    assert process.wait(timeout=10) == 0
    process.stdout.close()


def test_locks_are_released(chain: Rpc) -> None:
    """After all settles are answered no locks are kept."""
    running = LocalFacilitator(chain.url, key_of(GAS), wait_s=5)
    running.start()
    bodies = []
    for _ in range(3):
        _, payee, signed = signed_payment(chain)
        bodies.append(request_v2(signed, requirements(payee.address)))
    threads = [threading.Thread(target=post, args=(running.url, "/settle", body)) for body in bodies * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert running._settler._locks._held == {} and running._settler._pending == {}
    running.close()
