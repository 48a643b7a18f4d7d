"""The local chain: the test dollar, the JSON-RPC interface, and restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from eth_account import Account
from eth_utils import keccak

from tests.fakes.dollar import (
    CANCEL_BY_BYTES,
    CANCEL_BY_VRS,
    DOLLAR,
    Rpc,
    RpcFailed,
    SignedAuthorization,
    artifact,
    bundle,
    calldata,
    cancellation,
    fresh,
)
from worker.local.chain import FILE, LocalChain
from worker.local.chain_store import ChainInUse, ChainStore
from worker.local.evm import Evm
from worker.local.rpc import IDLE_BLOCK_SECONDS, Node

# The first account of the well-known development wallet, and what it signed elsewhere with
# another library: see the digest and the signature below.
KNOWN_KEY = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"
KNOWN = SignedAuthorization(
    payer="0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
    to="0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
    value=10_000,
    valid_before=4102444800,
    nonce="0x" + "ab" * 32,
    signature="0x5862cca4a2c703dfc5fed47dd67cb4fee5ce8dc7d76aac4f4df34be0203e87e7"
    "6e221af7d16f607dad50fa2aa1f2dad92ba2f2e6858e2db8c4295ce1ec454a341b",
)
KNOWN_DOMAIN = "71f17a3b2ff373b803d70a5a07c046c1a2bc8e89c09ef722fcb047abe94c9818"
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@pytest.fixture(name="chain", scope="module")
def _chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rpc]:
    with LocalChain(tmp_path_factory.mktemp("chain")) as running:
        yield Rpc(running.url)


def reverts(chain: Rpc, data: str, words: str, sender: str | None = None) -> None:
    message = {"to": DOLLAR, "data": data} | ({"from": sender} if sender else {})
    with pytest.raises(RpcFailed) as failed:
        chain("eth_call", message, "latest")
    assert failed.value.code == 3
    assert words in failed.value.message
    assert failed.value.data is not None and failed.value.data.startswith("0x08c379a0")


# The asset


def test_dollar_is_deployed_at_the_usdc_address(chain: Rpc) -> None:
    """The dollar has the USDC address of Base Sepolia, that network's id, and the USDC name and domain."""
    assert chain("eth_chainId") == hex(84532)
    assert chain("net_version") == "84532"
    assert chain("eth_getCode", DOLLAR, "latest") == artifact("TestDollar")["deployedBytecode"]
    assert b"USDC" in chain.ask("name()")
    assert chain.ask("version()")[-32:].startswith(b"2")
    assert int.from_bytes(chain.ask("decimals()"), "big") == 6
    assert chain.ask("DOMAIN_SEPARATOR()").hex() == KNOWN_DOMAIN


@pytest.mark.parametrize("form", ["vrs", "bytes"])
def test_known_signature_transfers_money(chain: Rpc, form: str) -> None:
    """A signature made elsewhere is accepted in both forms, and pays exactly its value, with both events."""
    if not chain.dollars(KNOWN.payer):
        chain("test_mint", KNOWN.payer, 50_000)
    submitter = fresh(chain, gas=True)
    data = KNOWN.by_vrs() if form == "vrs" else KNOWN.by_bytes()
    if chain.used(KNOWN.payer, KNOWN.nonce):
        # the other form was used first: this one must name the nonce, so its signature was never the issue
        return reverts(chain, data, "authorization is used or canceled")
    before = chain.dollars(KNOWN.payer), chain.dollars(KNOWN.to)
    receipt = chain.receipt(chain.send(submitter, DOLLAR, data))
    assert receipt["status"] == "0x1"
    assert (chain.dollars(KNOWN.payer), chain.dollars(KNOWN.to)) == (before[0] - 10_000, before[1] + 10_000)
    used, moved = receipt["logs"]
    assert used["topics"][0] == "0x" + keccak(b"AuthorizationUsed(address,bytes32)").hex()
    assert used["topics"][2] == KNOWN.nonce
    assert moved["topics"][0] == "0x" + keccak(b"Transfer(address,address,uint256)").hex()
    assert int(moved["data"], 16) == 10_000
    assert int(moved["logIndex"], 16) == int(used["logIndex"], 16) + 1


@pytest.mark.parametrize("form", ["vrs", "bytes"])
def test_each_signature_form_transfers_once(chain: Rpc, form: str) -> None:
    """A nonce allows one transfer; the second, in either form, moves nothing."""
    payer, submitter = fresh(chain, dollars=30_000), fresh(chain, gas=True)
    signed = SignedAuthorization(payer.address, submitter.address).signed_by(payer)
    data = signed.by_vrs() if form == "vrs" else signed.by_bytes()
    assert chain.receipt(chain.send(submitter, DOLLAR, data))["status"] == "0x1"
    for again in (signed.by_vrs(), signed.by_bytes()):
        reverts(chain, again, "authorization is used or canceled")
        assert chain.receipt(chain.send(submitter, DOLLAR, again))["status"] == "0x0"
    assert chain.dollars(submitter.address) == 10_000
    assert chain.dollars(payer.address) == 20_000


@pytest.mark.parametrize("function", [CANCEL_BY_VRS, CANCEL_BY_BYTES])
def test_cancelled_nonce_pays_nothing(chain: Rpc, function: str) -> None:
    """A cancelled authorization looks used and cannot be settled; only the payer can cancel."""
    payer, other = fresh(chain, dollars=30_000), fresh(chain, gas=True)
    signed = SignedAuthorization(payer.address, other.address).signed_by(payer)
    for signer in (other, payer):
        _, nonce, signature = cancellation(signer, signed.nonce)
        split = (signature[64], signature[:32], signature[32:64])
        parts = split if function == CANCEL_BY_VRS else (signature,)
        data = calldata(function, payer.address, nonce, *parts)
        if signer is other:
            reverts(chain, data, "invalid signature")
            continue
        receipt = chain.receipt(chain.send(other, DOLLAR, data))
        names = [log["topics"][0] for log in receipt["logs"]]
        assert names == ["0x" + keccak(b"AuthorizationCanceled(address,bytes32)").hex()]
    assert chain.used(payer.address, signed.nonce)
    reverts(chain, signed.by_vrs(), "authorization is used or canceled")
    assert chain.dollars(payer.address) == 30_000


def twin(signature: str) -> str:
    """The other valid signature of the same key over the same bytes: s above half the order, v flipped."""
    raw = bytes.fromhex(signature[2:])
    high = (ORDER - int.from_bytes(raw[32:64], "big")).to_bytes(32, "big")
    return "0x" + (raw[:32] + high + bytes([55 - raw[64]])).hex()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda signed: replace(signed, signature=twin(signed.signature)),
        lambda signed: replace(signed, signature=signed.signature[:-2] + "1d"),
        lambda signed: replace(signed, signature="0x" + "00" * 65),
        lambda signed: replace(signed, value=signed.value + 1),
        lambda signed: replace(signed, to="0x" + "11" * 20),
        lambda signed: replace(signed, nonce="0x" + "77" * 32),
        lambda signed: replace(signed, valid_before=signed.valid_before + 1),
    ],
    ids=["high-s", "wrong v", "zeros", "value", "payee", "nonce", "end date"],
)
def test_corrupted_signature_is_refused(chain: Rpc, spoil: Any) -> None:
    """Any change after signing makes the signature invalid, and its malleable twin is refused too."""
    payer, payee = fresh(chain, dollars=30_000), Account.create()
    signed = spoil(SignedAuthorization(payer.address, payee.address).signed_by(payer))
    reverts(chain, signed.by_vrs(), "invalid signature")
    reverts(chain, signed.by_bytes(), "invalid signature")


def test_wrong_signature_length_is_refused(chain: Rpc) -> None:
    """An account without code signs with 65 bytes; 64, 66 and none are refused."""
    payer, payee = fresh(chain, dollars=30_000), Account.create()
    signed = SignedAuthorization(payer.address, payee.address).signed_by(payer)
    for signature in (signed.signature[:-2], signed.signature + "00", "0x"):
        reverts(chain, replace(signed, signature=signature).by_bytes(), "invalid signature")


def test_signature_for_another_domain_is_refused(chain: Rpc) -> None:
    """A signature for another chain, contract, name or version is refused."""
    payer, payee = fresh(chain, dollars=30_000), Account.create()
    plain = SignedAuthorization(payer.address, payee.address)
    for domain in (
        {"chainId": 8453},
        {"name": "USD Coin"},
        {"version": "1"},
        {"verifyingContract": payee.address},
    ):
        reverts(chain, plain.signed_by(payer, **domain).by_vrs(), "invalid signature")


def test_validity_window_is_enforced(chain: Rpc) -> None:
    """An authorization is valid strictly between its two times."""
    payer, payee, now = fresh(chain, dollars=30_000), Account.create(), int(time.time())
    early = SignedAuthorization(payer.address, payee.address, valid_after=now + 100).signed_by(payer)
    late = SignedAuthorization(payer.address, payee.address, valid_before=now - 1).signed_by(payer)
    reverts(chain, early.by_vrs(), "authorization is not yet valid")
    reverts(chain, late.by_vrs(), "authorization is expired")


def test_only_the_minter_mints(chain: Rpc) -> None:
    """Only the setup can mint dollars, and the supply is the sum minted."""
    thief = fresh(chain, gas=True)
    data = calldata("mint(address,uint256)", thief.address, 10**12)
    reverts(chain, data, "caller is not the minter", sender=thief.address)
    supply = int.from_bytes(chain.ask("totalSupply()"), "big")
    chain("test_mint", thief.address, 5)
    assert int.from_bytes(chain.ask("totalSupply()"), "big") == supply + 5
    assert chain.dollars(thief.address) == 5


def test_erc20_transfers_and_allowances(chain: Rpc) -> None:
    """Transfers and allowances keep the sum, refuse overdrafts, and use up the allowance."""
    owner, spender = fresh(chain, dollars=1_000, gas=True), fresh(chain, gas=True)
    chain.send(owner, DOLLAR, calldata("transfer(address,uint256)", spender.address, 400))
    chain.send(owner, DOLLAR, calldata("approve(address,uint256)", spender.address, 100))
    pull = "transferFrom(address,address,uint256)"
    reverts(chain, calldata(pull, owner.address, spender.address, 101), "exceeds allowance", spender.address)
    chain.send(spender, DOLLAR, calldata(pull, owner.address, spender.address, 100))
    reverts(chain, calldata(pull, owner.address, spender.address, 1), "exceeds allowance", spender.address)
    reverts(
        chain, calldata("transfer(address,uint256)", spender.address, 501), "exceeds balance", owner.address
    )
    assert (chain.dollars(owner.address), chain.dollars(spender.address)) == (500, 500)


def test_receive_with_authorization_requires_the_payee(chain: Rpc) -> None:
    """receiveWithAuthorization is refused from anyone but the payee."""
    payer, payee = fresh(chain, dollars=1_000), Account.create()
    signed = SignedAuthorization(payer.address, payee.address).signed_by(payer)
    function = "receiveWithAuthorization(address,address,uint256,uint256,uint256,bytes32,bytes)"
    data = calldata(function, *signed.six, bytes.fromhex(signed.signature[2:]))
    reverts(chain, data, "caller must be the payee")
    # the payee reaches the signature check, but the signature is for the other function
    reverts(chain, data, "invalid signature", sender=payee.address)


def test_contract_wallet_pays_with_eip_1271(chain: Rpc) -> None:
    """A payer with code verifies itself (EIP-1271): its owner's signature passes, a stranger's does not."""
    owner, stranger = fresh(chain, gas=True), Account.create()
    code = artifact("TestWallet")["bytecode"] + owner.address[2:].lower().rjust(64, "0")
    wallet = chain.receipt(chain.send(owner, None, code))["contractAddress"]
    chain("test_mint", wallet, 30_000)
    plain = SignedAuthorization(wallet, stranger.address)
    good = plain.signed_by(owner)
    long = replace(good, signature="0x01" + good.signature[2:])
    reverts(chain, good.by_vrs(), "invalid signature")
    forged = plain.signed_by(stranger)
    reverts(chain, replace(forged, signature="0x01" + forged.signature[2:]).by_bytes(), "invalid signature")
    assert chain.receipt(chain.send(owner, DOLLAR, long.by_bytes()))["status"] == "0x1"
    assert chain.dollars(stranger.address) == 10_000


# Node responses


def test_call_changes_nothing_and_gas_estimate_suffices(chain: Rpc) -> None:
    """A call changes nothing, and a transaction with exactly the estimated gas succeeds."""
    owner, payee = fresh(chain, dollars=1_000, gas=True), Account.create()
    data = calldata("transfer(address,uint256)", payee.address, 400)
    message = {"from": owner.address, "to": DOLLAR, "data": data}
    chain("eth_call", message, "latest")
    gas = int(chain("eth_estimateGas", message), 16)
    assert chain.dollars(payee.address) == 0
    receipt = chain.receipt(chain.send(owner, DOLLAR, data, gas=gas))
    assert receipt["status"] == "0x1"
    assert int(receipt["gasUsed"], 16) <= gas < 2 * int(receipt["gasUsed"], 16)
    plain = int(chain("eth_estimateGas", {"from": owner.address, "to": payee.address, "value": "0x1"}), 16)
    assert 21_000 <= plain < 25_000


def test_estimate_of_a_revert_gives_the_reason(chain: Rpc) -> None:
    """An estimate of a reverting call returns the contract's reason, as a call does."""
    poor = Account.create()
    data = calldata("transfer(address,uint256)", "0x" + "11" * 20, 1)
    with pytest.raises(RpcFailed, match="exceeds balance") as failed:
        chain("eth_estimateGas", {"from": poor.address, "to": DOLLAR, "data": data})
    assert failed.value.code == 3


def test_balance_at_an_old_block(chain: Rpc) -> None:
    """A balance at an old block is the balance at that time."""
    account = fresh(chain, dollars=100)
    then = chain("eth_blockNumber")
    chain("test_mint", account.address, 50)
    message = {"to": DOLLAR, "data": calldata("balanceOf(address)", account.address)}
    assert int(chain("eth_call", message, then), 16) == 100
    assert int(chain("eth_call", message, "latest"), 16) == 150
    with pytest.raises(RpcFailed, match="header not found"):
        chain("eth_call", message, hex(10**6))


def nested_lists(depth: int) -> bytes:
    """RLP of a list in a list in a list."""
    data = b"\xc0"
    for _ in range(depth):
        size = len(data)
        short = size.to_bytes((size.bit_length() + 7) // 8, "big")
        data = (bytes([0xC0 + size]) if size < 56 else bytes([0xF7 + len(short)]) + short) + data
    return data


def test_invalid_transactions_are_refused(chain: Rpc) -> None:
    """A transaction that a node would refuse is refused with the node's message and leaves no trace."""
    rich, poor = fresh(chain, gas=True), Account.create()
    sent = chain.send(rich, poor.address, "0x", value=1)
    raw = rich.sign_transaction(
        {
            "type": 2, "chainId": 84532, "nonce": 0, "gas": 21_000, "value": 1, "to": poor.address,
            "maxFeePerGas": 3 * 10**9, "maxPriorityFeePerGas": 1,
        }
    ).raw_transaction  # fmt: skip
    for words, attempt in {
        "nonce too low": lambda: chain.send(rich, poor.address, "0x", nonce=0, value=2),
        "invalid chain id": lambda: chain.send(rich, poor.address, "0x", chainId=1),
        "insufficient funds": lambda: chain.send(poor, rich.address, "0x"),
        "max fee per gas less": lambda: chain.send(
            rich, poor.address, "0x", maxFeePerGas=1, maxPriorityFeePerGas=1
        ),
        "intrinsic": lambda: chain.send(rich, poor.address, "0x", gas=20_000),
        "above the block": lambda: chain.send(rich, poor.address, "0x", gas=40_000_000),
        "decoded": lambda: chain("eth_sendRawTransaction", "0x02" + "00" * 40),
        "be decoded": lambda: chain("eth_sendRawTransaction", "0x" + nested_lists(20_000).hex()),
        "cannot be": lambda: chain("eth_sendRawTransaction", "0x"),
        "not supported": lambda: chain("eth_sendRawTransaction", "0x03" + bytes(raw).hex()[2:]),
    }.items():
        with pytest.raises(RpcFailed, match=words):
            attempt()
    with pytest.raises(RpcFailed, match="already known|nonce too low"):
        chain("eth_sendRawTransaction", "0x" + bytes(raw).hex())
    assert int(chain("eth_getTransactionCount", rich.address, "latest"), 16) == 1
    assert chain.receipt(sent)["status"] == "0x1"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b'{"a":' * 20_000 + b"1" + b"}" * 20_000, -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b'{"id":1,"method":7}', -32600),
        (b'{"id":1,"method":"eth_nothing"}', -32601),
        (b'{"id":1,"method":"eth_getBalance","params":{"a":1}}', -32602),
        (b'{"id":1,"method":"eth_getBalance","params":[]}', -32602),
        (b'{"id":1,"method":"eth_getBalance","params":["0x12","latest"]}', -32602),
        (b'{"id":1,"method":"eth_getBalance","params":[7,"latest"]}', -32602),
        (b'{"id":1,"method":"eth_call","params":[{"to":"nobody"},"latest"]}', -32602),
        (b'{"id":1,"method":"eth_getBlockByNumber","params":["-0x1",false]}', -32602),
        (
            b'{"id":1,"method":"test_mint","params":["0x1111111111111111111111111111111111111111",true]}',
            -32602,
        ),
        (b'{"id":1,"method":"eth_getLogs","params":[{"topics":[null,null,null,null,null]}]}', -32602),
    ],
)
def test_malformed_requests_get_json_rpc_errors(chain: Rpc, body: bytes, code: int) -> None:
    """Malformed requests get the JSON-RPC error code, and the node keeps running."""
    answer = requests.post(chain.url, data=body, timeout=5)
    assert answer.status_code == 200
    assert answer.json()["error"]["code"] == code
    assert chain("eth_chainId") == hex(84532)


def test_batch_requests_and_http_errors(chain: Rpc) -> None:
    """A batch is answered in order with its ids; other paths and sizes are refused."""
    batch = [
        {"jsonrpc": "2.0", "id": "a", "method": "eth_chainId", "params": []},
        {"jsonrpc": "2.0", "id": "b", "method": "eth_nothing", "params": []},
        {"jsonrpc": "2.0", "id": 3, "method": "net_version"},
    ]
    answers = requests.post(chain.url, json=batch, timeout=5).json()
    assert [each["id"] for each in answers] == ["a", "b", 3]
    assert answers[0]["result"] == hex(84532) and answers[1]["error"]["code"] == -32601
    assert requests.post(chain.url, json=batch * 200, timeout=5).json()["error"]["code"] == -32600
    assert requests.get(chain.url + "/health", timeout=5).json() == {"status": "ok"}
    assert requests.get(chain.url + "/elsewhere", timeout=5).status_code == 404
    assert requests.post(chain.url, data=b" " * 2_000_001, timeout=5).status_code == 413


def test_logs_are_filtered_by_address_topic_and_block(chain: Rpc) -> None:
    """Logs are found by address, topic, alternatives and block only."""
    account, submitter = fresh(chain, dollars=100_000), fresh(chain, gas=True)
    receipts = []
    for _ in range(2):
        signed = SignedAuthorization(account.address, submitter.address).signed_by(account)
        receipts.append(chain.receipt(chain.send(submitter, DOLLAR, signed.by_vrs())))
    payer_topic = "0x" + account.address[2:].lower().rjust(64, "0")
    span = {"fromBlock": "0x0", "toBlock": "latest", "address": DOLLAR}
    expected = [log for receipt in receipts for log in receipt["logs"]]
    assert chain("eth_getLogs", span | {"topics": [None, payer_topic]}) == expected
    used, moved = expected[0]["topics"][0], expected[1]["topics"][0]
    assert chain("eth_getLogs", span | {"topics": [used, payer_topic]}) == [expected[0], expected[2]]
    assert chain("eth_getLogs", span | {"topics": [[used, moved], payer_topic]}) == expected
    assert chain("eth_getLogs", span | {"address": "0x" + "11" * 20, "topics": [None, payer_topic]}) == []
    one = {"blockHash": receipts[1]["blockHash"]}
    assert chain("eth_getLogs", one) == receipts[1]["logs"]
    late = span | {"fromBlock": hex(int(receipts[1]["blockNumber"], 16)), "topics": [None, payer_topic]}
    assert chain("eth_getLogs", late) == expected[2:]


def test_blocks_follow_the_clock(chain: Rpc) -> None:
    """Many transactions in one second do not push the chain's time ahead of the clock."""
    account = fresh(chain, gas=True)
    for _ in range(12):
        chain.send(account, account.address, "0x")
    assert int(chain("eth_getBlockByNumber", "latest", False)["timestamp"], 16) <= time.time()


def test_bundled_calls_share_one_transaction(chain: Rpc) -> None:
    """Several calls in one transaction all take effect, or none if one fails."""
    payer, submitter = fresh(chain, dollars=30_000), fresh(chain, gas=True)
    first = SignedAuthorization(payer.address, submitter.address).signed_by(payer)
    second = SignedAuthorization(payer.address, submitter.address).signed_by(payer)
    twice = bundle((DOLLAR, first.by_vrs()), (DOLLAR, first.by_vrs()))
    assert chain.receipt(chain.send(submitter, None, twice))["status"] == "0x0"
    assert chain.dollars(payer.address) == 30_000
    both = bundle((DOLLAR, first.by_vrs()), (DOLLAR, second.by_bytes()))
    receipt = chain.receipt(chain.send(submitter, None, both))
    assert receipt["status"] == "0x1" and len(receipt["logs"]) == 4
    assert [int(log["logIndex"], 16) for log in receipt["logs"]] == [0, 1, 2, 3]


def test_parallel_transactions_are_all_mined(chain: Rpc) -> None:
    """Transactions sent concurrently are all mined, each with one effect."""
    payee = Account.create()
    accounts = [fresh(chain, dollars=100, gas=True) for _ in range(6)]
    data = calldata("transfer(address,uint256)", payee.address, 10)
    threads = [
        threading.Thread(target=lambda each=each: [chain.send(each, DOLLAR, data) for _ in range(3)])
        for each in accounts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chain.dollars(payee.address) == 6 * 3 * 10


# Time and restarts


def test_restart_keeps_everything(tmp_path: Path) -> None:
    """A restart preserves balances, hashes, nonces, receipts, logs and past state."""
    account = Account.create()
    start: dict[str, Any] = {"ether": {account.address: 10**18}, "dollars": {account.address: 70_000}}
    # No block but those of our transactions.
    start["idle_seconds"] = 3600.0

    def seen(chain: Rpc, sent: list[str]) -> list[Any]:
        head = int(chain("eth_blockNumber"), 16)
        return [
            [chain("eth_getBlockByNumber", hex(number), True) for number in range(head + 1)],
            [chain("eth_getTransactionReceipt", each) for each in sent],
            [chain("eth_getTransactionByHash", each) for each in sent],
            chain("eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest"}),
            chain("eth_getTransactionCount", account.address, "latest"),
            chain("eth_getBalance", account.address, "latest"),
            chain.dollars(account.address),
        ]

    with LocalChain(tmp_path, **start) as running:
        chain = Rpc(running.url)
        data = calldata("transfer(address,uint256)", "0x" + "11" * 20, 1_000)
        sent = [chain.send(account, DOLLAR, data) for _ in range(3)]
        before = seen(chain, sent)
        assert before[-1] == 67_000
    with LocalChain(tmp_path, **start) as running:
        chain = Rpc(running.url)
        assert seen(chain, sent) == before
        sent.append(chain.send(account, DOLLAR, data))
        assert chain.receipt(sent[-1])["status"] == "0x1"
        assert chain.dollars(account.address) == 66_000


def test_kill_loses_no_answered_transaction(tmp_path: Path) -> None:
    """A chain killed right after it answered still has the transaction when it restarts."""
    account = Account.create()
    for round_number in (1, 2, 3):
        command = [sys.executable, "-m", "worker.local.chain", "--state", str(tmp_path), "--port", "0"]
        command += ["--ether", f"{account.address}=1000000000000000000"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            chain = Rpc(process.stdout.readline().split()[-1])
            assert int(chain("eth_getTransactionCount", account.address, "latest"), 16) == round_number - 1
            sent = chain.send(account, account.address, "0x", value=1)
            os.kill(process.pid, signal.SIGKILL)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    with LocalChain(tmp_path) as running:
        assert Rpc(running.url).receipt(sent)["status"] == "0x1"


def test_terminated_chain_ends_cleanly(tmp_path: Path) -> None:
    """SIGTERM ends the process with status 0."""
    command = [sys.executable, "-m", "worker.local.chain", "--state", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "ready" in process.stdout.readline()
    process.terminate()
    assert process.wait(timeout=10) == 0
    process.stdout.close()


def test_second_chain_on_one_state_is_refused(tmp_path: Path) -> None:
    """A second chain on the same state is refused instead of writing to it."""
    with LocalChain(tmp_path) as running, pytest.raises(ChainInUse):
        assert running.url
        ChainStore(tmp_path / FILE)


def test_slow_chain_mines_later(tmp_path: Path) -> None:
    """With a block time a transaction is visible, counts as pending, and survives a restart."""
    account = Account.create()
    gifts = {account.address: 10**18}
    with LocalChain(tmp_path, block_time=3600, ether=gifts) as running:
        chain = Rpc(running.url)
        sent = [chain.send(account, account.address, "0x", value=each) for each in (1, 2)]
        assert chain("eth_getTransactionReceipt", sent[0]) is None
        assert chain("eth_getTransactionByHash", sent[0])["blockNumber"] is None
        assert chain("eth_getTransactionCount", account.address, "latest") == "0x0"
        assert chain("eth_getTransactionCount", account.address, "pending") == "0x2"
        with pytest.raises(RpcFailed, match="underpriced"):
            chain.send(account, account.address, "0x", nonce=1, value=9)
        minted = chain("test_mint", account.address, 5)
        assert chain.receipt(minted)["status"] == "0x1"
        assert chain("eth_getTransactionReceipt", sent[0]) is None
    with LocalChain(tmp_path, block_time=0.3, ether=gifts) as running:
        chain = Rpc(running.url)
        found = [chain.receipt(each, patience=5) for each in sent]
        assert found[0]["blockHash"] == found[1]["blockHash"]
        assert [each["transactionIndex"] for each in found] == ["0x0", "0x1"]
        assert chain("eth_getTransactionCount", account.address, "latest") == "0x2"
        chain("test_setBlockTime", 3600)
        waiting = chain.send(account, account.address, "0x", value=3)
        chain("test_setBlockTime", 0)
        assert chain.receipt(waiting, patience=0.1)["status"] == "0x1"


def test_transaction_with_a_nonce_gap_waits(tmp_path: Path) -> None:
    """A transaction with a nonce too far ahead waits until the gap is filled."""
    account = Account.create()
    with LocalChain(tmp_path, ether={account.address: 10**18}) as running:
        chain = Rpc(running.url)
        ahead = chain.send(account, account.address, "0x", nonce=1)
        assert chain("eth_getTransactionReceipt", ahead) is None
        chain.send(account, account.address, "0x", nonce=0)
        assert chain.receipt(ahead)["status"] == "0x1"


def test_time_jump_is_kept_across_restarts(tmp_path: Path) -> None:
    """After a jump authorizations expire, and the jump survives a restart."""
    with LocalChain(tmp_path) as running:
        chain = Rpc(running.url)
        payer, payee = fresh(chain, dollars=30_000), Account.create()
        signed = SignedAuthorization(payer.address, payee.address).signed_by(payer)
        chain("eth_call", {"to": DOLLAR, "data": signed.by_vrs()}, "latest")
        chain("test_jump", 1_000)
        reverts(chain, signed.by_vrs(), "authorization is expired")
    with LocalChain(tmp_path) as running:
        chain = Rpc(running.url)
        assert int(chain("eth_getBlockByNumber", "latest", False)["timestamp"], 16) >= time.time() + 990
        reverts(chain, signed.by_vrs(), "authorization is expired")


def test_idle_chain_mines_when_queried(tmp_path: Path) -> None:
    """An idle chain mines a block when its head is old, and calls see the present time."""
    now = [1_800_000_000.0]
    evm = Evm(ChainStore(tmp_path / FILE), clock=lambda: now[0])
    node = Node(evm)

    def head() -> int:
        return int(json.loads(node.answer(b'{"id":1,"method":"eth_blockNumber"}'))["result"], 16)

    assert head() == 0
    now[0] += IDLE_BLOCK_SECONDS - 1
    assert head() == 0
    now[0] += 1
    assert head() == 1
    assert int(evm.head()["timestamp"], 16) == now[0]
    now[0] -= 3600
    evm.mine()
    assert int(evm.head()["timestamp"], 16) == now[0] + 3600, "a clock set back must not turn blocks around"
    node.close()


def test_failing_block_does_not_stop_the_next(tmp_path: Path) -> None:
    """When a scheduled block cannot be written, the chain reports it and makes the next one."""
    store = ChainStore(tmp_path / FILE)
    evm = Evm(store, block_time=0.05)
    node, add_block, failed = Node(evm), store.add_block, threading.Event()

    def full_disk(*_args: Any) -> None:
        store.add_block = add_block  # type: ignore[method-assign]
        failed.set()
        raise OSError("no space left")

    store.add_block = full_disk  # type: ignore[method-assign]
    miner = threading.Thread(target=node.keep_mining, daemon=True)
    miner.start()
    assert failed.wait(5)
    deadline = time.monotonic() + 5
    request = b'{"id":1,"method":"eth_blockNumber"}'
    while json.loads(node.answer(request))["result"] == "0x0":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    node.close()
    miner.join(5)
    assert not miner.is_alive()


def test_failed_block_is_rolled_back(tmp_path: Path) -> None:
    """When writing a block fails, file and memory keep no part of it, and the next attempt works."""
    store = ChainStore(tmp_path / FILE)
    evm = Evm(store)
    account = Account.create()
    evm.faucet_send(bytes.fromhex(account.address[2:]), value=7)
    head, add_block = evm.head(), store.add_block

    def full_disk(*_args: Any) -> None:
        raise OSError("no space left")

    store.add_block = full_disk  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space"):
        evm.faucet_send(bytes.fromhex(account.address[2:]), value=7)
    store.add_block = add_block  # type: ignore[method-assign]
    assert evm.head() == head
    assert evm.balance(bytes.fromhex(account.address[2:])) == 7
    evm.faucet_send(bytes.fromhex(account.address[2:]), value=7)
    assert evm.balance(bytes.fromhex(account.address[2:])) == 14
    store.close()
