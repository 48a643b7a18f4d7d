"""Chain evidence from a real node, and the same answers from its twin in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

import pytest
import requests
from eth_account import Account

from tests.fakes.chain import MemoryChain, NotAccepted
from tests.fakes.dollar import (
    CANCEL_BY_BYTES,
    CHAIN_ID,
    DOLLAR,
    Authorization,
    Rpc,
    bundle,
    calldata,
    cancellation,
    fresh,
)
from worker.local.chain import LocalChain
from worker.local.httpd import Answer, JsonServer
from worker.payments.chain import ChainEvidence, ChainUnavailable, Evidence, RpcChain

OTHER_ASSET = "0x" + "99" * 20
AMOUNT = 10_000


class Stage(Protocol):
    """A chain on which a test can act, and the evidence that it asks."""

    evidence: ChainEvidence

    def payer(self, dollars: int = 50_000) -> str: ...
    def payee(self) -> str: ...
    def settle(self, payer: str, to: str, amount: int, nonce: str) -> str: ...
    def transfer(self, payer: str, to: str, amount: int) -> str: ...
    def cancel(self, payer: str, nonce: str) -> str: ...
    def mine(self, blocks: int) -> None: ...


class RealStage:
    """The local chain over JSON-RPC."""

    def __init__(self, chain: Rpc, confirmations: int) -> None:
        self.chain = chain
        self.evidence: ChainEvidence = RpcChain(
            chain.url, DOLLAR, CHAIN_ID, confirmations=confirmations, chunk=7
        )
        self._keys: dict[str, Any] = {}
        self.submitter = fresh(chain, gas=True)

    def payer(self, dollars: int = 50_000) -> str:
        account = fresh(self.chain, dollars=dollars, gas=True)
        self._keys[account.address] = account
        return str(account.address)

    def payee(self) -> str:
        return str(Account.create().address)

    def signed(self, payer: str, to: str, amount: int, nonce: str) -> Authorization:
        return Authorization(payer, to, amount, nonce=nonce).signed_by(self._keys[payer])

    def _sent(self, account: Any, to: str | None, data: str) -> str:
        receipt = self.chain.receipt(self.chain.send(account, to, data))
        if receipt["status"] != "0x1":
            raise NotAccepted
        return str(receipt["transactionHash"])

    def settle(self, payer: str, to: str, amount: int, nonce: str) -> str:
        return self._sent(self.submitter, DOLLAR, self.signed(payer, to, amount, nonce).by_vrs())

    def bundle(self, *signed: Authorization) -> str:
        return self._sent(self.submitter, None, bundle(*((DOLLAR, each.by_vrs()) for each in signed)))

    def transfer(self, payer: str, to: str, amount: int) -> str:
        return self._sent(self._keys[payer], DOLLAR, calldata("transfer(address,uint256)", to, amount))

    def cancel(self, payer: str, nonce: str) -> str:
        data = calldata(CANCEL_BY_BYTES, *cancellation(self._keys[payer], nonce))
        return self._sent(self.submitter, DOLLAR, data)

    def mine(self, blocks: int) -> None:
        self.chain("test_mine", blocks)


class MemoryStage:
    """The twin."""

    def __init__(self, confirmations: int) -> None:
        self.chain = MemoryChain(confirmations=confirmations)
        self.evidence: ChainEvidence = self.chain
        self._accounts = 0

    def _address(self) -> str:
        self._accounts += 1
        return "0x" + f"{self._accounts:040X}"

    def payer(self, dollars: int = 50_000) -> str:
        address = self._address()
        self.chain.mint(address, dollars)
        return address

    def payee(self) -> str:
        return self._address()

    def settle(self, payer: str, to: str, amount: int, nonce: str) -> str:
        return self.chain.settle((payer, nonce), to, amount)

    def transfer(self, payer: str, to: str, amount: int) -> str:
        return self.chain.transfer(payer, to, amount)

    def cancel(self, payer: str, nonce: str) -> str:
        return self.chain.cancel((payer, nonce))

    def mine(self, blocks: int) -> None:
        self.chain.mine(blocks)


@pytest.fixture(name="chain", scope="module")
def _chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rpc]:
    with LocalChain(tmp_path_factory.mktemp("chain"), idle_seconds=60) as running:
        yield Rpc(running.url)


@pytest.fixture(name="stage", params=["node", "memory"])
def _stage(request: pytest.FixtureRequest, chain: Rpc) -> Stage:
    return RealStage(chain, 0) if request.param == "node" else MemoryStage(0)


@pytest.fixture(name="deep", params=["node", "memory"])
def _deep(request: pytest.FixtureRequest, chain: Rpc) -> Stage:
    return RealStage(chain, 3) if request.param == "node" else MemoryStage(3)


def nonce(number: int) -> str:
    return "0x" + f"{number:064x}"


def test_settled_payment_is_found(stage: Stage) -> None:
    """A settled authorization is found with its hash, block and time, whatever the case of its letters."""
    payer, payee = stage.payer(), stage.payee()
    stage.mine(20)
    start = stage.evidence.head().block
    assert stage.evidence.transfer_of((payer, nonce(0xAB)), payee, AMOUNT, DOLLAR, 0) is None
    sent = stage.settle(payer, payee, AMOUNT, nonce(0xAB))
    stage.mine(20)
    found = stage.evidence.transfer_of((payer, nonce(0xAB)), payee, AMOUNT, DOLLAR, start)
    assert isinstance(found, Evidence)
    assert found.tx_hash == sent.lower() and start < found.block <= stage.evidence.head().block
    assert found.time_us <= stage.evidence.head().time_us
    shouting = (payer.upper().replace("0X", "0x"), nonce(0xAB).upper().replace("0X", "0x"))
    assert stage.evidence.transfer_of(shouting, payee.lower(), AMOUNT, DOLLAR.lower(), 0) == found
    assert stage.evidence.confirm(sent, (payer, nonce(0xAB)), payee, AMOUNT, DOLLAR) == found
    assert stage.evidence.balance(payer) == 40_000 and stage.evidence.balance(payee) == AMOUNT


def test_any_difference_is_no_evidence(stage: Stage) -> None:
    """Another payer, nonce, payee, amount, asset or starting block is not this payment."""
    payer, payee, other = stage.payer(), stage.payee(), stage.payer()
    sent = stage.settle(payer, payee, AMOUNT, nonce(1))
    stage.settle(other, payee, AMOUNT, nonce(2))
    after = stage.evidence.head().block + 1
    right = ((payer, nonce(1)), payee, AMOUNT, DOLLAR)
    assert stage.evidence.transfer_of(*right, 0) is not None
    assert stage.evidence.transfer_of(*right, after) is None
    for wrong in (
        ((other, nonce(1)), payee, AMOUNT, DOLLAR),
        ((payer, nonce(2)), payee, AMOUNT, DOLLAR),
        ((payer, nonce(1)), other, AMOUNT, DOLLAR),
        ((payer, nonce(1)), payee, AMOUNT + 1, DOLLAR),
        ((payer, nonce(1)), payee, AMOUNT - 1, DOLLAR),
    ):
        assert stage.evidence.transfer_of(*wrong, 0) is None
        assert stage.evidence.confirm(sent, *wrong) is None
    assert stage.evidence.confirm("0x" + "00" * 32, *right) is None
    assert stage.evidence.confirm(sent, (payer, nonce(1)), payee, AMOUNT, OTHER_ASSET) is None


def test_plain_transfer_proves_no_authorization(stage: Stage) -> None:
    """The same sum sent by hand is not the authorization, even when that nonce is spent elsewhere."""
    payer, payee, elsewhere = stage.payer(), stage.payee(), stage.payee()
    stage.transfer(payer, payee, AMOUNT)
    wanted = ((payer, nonce(5)), payee, AMOUNT, DOLLAR, 0)
    assert stage.evidence.transfer_of(*wanted) is None
    stage.settle(payer, elsewhere, AMOUNT, nonce(5))
    assert stage.evidence.transfer_of(*wanted) is None
    assert stage.evidence.authorization_cancelled((payer, nonce(5)), 0) is None


def test_cancelled_nonce_is_cancelled_not_settled(stage: Stage) -> None:
    """A cancelled authorization is found as that, from its block on, and never as a payment."""
    payer, payee = stage.payer(), stage.payee()
    assert stage.evidence.authorization_cancelled((payer, nonce(6)), 0) is None
    sent = stage.cancel(payer, nonce(6))
    found = stage.evidence.authorization_cancelled((payer, nonce(6)), 0)
    assert found is not None and found.tx_hash == sent.lower()
    assert stage.evidence.authorization_cancelled((payer, nonce(6)), found.block + 1) is None
    assert stage.evidence.transfer_of((payer, nonce(6)), payee, AMOUNT, DOLLAR, 0) is None
    with pytest.raises(NotAccepted):
        stage.settle(payer, payee, AMOUNT, nonce(6))
    stage.settle(payer, payee, AMOUNT, nonce(7))
    assert stage.evidence.authorization_cancelled((payer, nonce(7)), 0) is None


def test_nothing_is_believed_before_it_is_deep(deep: Stage) -> None:
    """With three confirmations a payment, a cancellation and the head appear three blocks later."""
    payer, payee = deep.payer(), deep.payee()
    deep.mine(5)
    sent = deep.settle(payer, payee, AMOUNT, nonce(1))
    deep.cancel(payer, nonce(2))
    wanted = ((payer, nonce(1)), payee, AMOUNT, DOLLAR)
    for _ in range(2):
        assert deep.evidence.transfer_of(*wanted, 0) is None
        assert deep.evidence.confirm(sent, *wanted) is None
        assert deep.evidence.authorization_cancelled((payer, nonce(2)), 0) is None
        deep.mine(1)
    found = deep.evidence.transfer_of(*wanted, 0)
    assert found is not None and found.block == deep.evidence.head().block
    assert deep.evidence.confirm(sent, *wanted) == found
    assert deep.evidence.authorization_cancelled((payer, nonce(2)), 0) is None
    deep.mine(1)
    assert deep.evidence.authorization_cancelled((payer, nonce(2)), 0) is not None


def test_arrivals_are_listed_with_their_nonces(stage: Stage) -> None:
    """All money that arrived in a range of blocks is listed in order, signed transfers with their nonce."""
    first, second, payee = stage.payer(), stage.payer(), stage.payee()
    stage.mine(1)
    start = stage.evidence.head().block + 1
    hashes = [
        stage.settle(first, payee, 1_000, nonce(1)),
        stage.transfer(second, payee, 2_000),
        stage.settle(second, payee, 3_000, nonce(0xCD)),
    ]
    stage.settle(first, stage.payee(), 4_000, nonce(2))
    end = stage.evidence.head().block
    found = stage.evidence.transfers_to(payee, start, end)
    assert [each.tx_hash for each in found] == [each.lower() for each in hashes]
    assert [(each.payer, each.amount, each.nonce) for each in found] == [
        (first.lower(), 1_000, nonce(1)),
        (second.lower(), 2_000, None),
        (second.lower(), 3_000, nonce(0xCD)),
    ]
    assert {each.pay_to for each in found} == {payee.lower()}
    assert [each.time_us for each in found] == sorted(each.time_us for each in found)
    middle = found[1].block
    assert stage.evidence.transfers_to(payee, middle, middle) == [found[1]]
    assert stage.evidence.transfers_to(payee, end + 1, end) == []
    with pytest.raises(ChainUnavailable):
        stage.evidence.transfers_to(payee, start, end + 1_000)


def test_block_at_a_time(stage: Stage) -> None:
    """The first block not older than a time is found, also before the first and after the last."""
    payer, payee = stage.payer(), stage.payee()
    sent = stage.settle(payer, payee, AMOUNT, nonce(1))
    found = stage.evidence.confirm(sent, (payer, nonce(1)), payee, AMOUNT, DOLLAR)
    assert found is not None
    head = stage.evidence.head()
    assert stage.evidence.block_at(0) == 0
    at = stage.evidence.block_at(found.time_us)
    assert at <= found.block
    assert stage.evidence.transfer_of((payer, nonce(1)), payee, AMOUNT, DOLLAR, at) == found
    assert stage.evidence.block_at(found.time_us + 1) > found.block
    assert stage.evidence.block_at(head.time_us + 60_000_000) == stage.evidence.head().block + 1


# tricks that only a real chain allows


def test_one_transfer_does_not_prove_two_payments(chain: Rpc) -> None:
    """Beside a payment, its payer diverts another nonce to itself: only the payment is proven."""
    stage = RealStage(chain, 0)
    for honest_first in (True, False):
        payer, payee = stage.payer(), stage.payee()
        diverted = stage.signed(payer, payer, AMOUNT, nonce(1))
        honest = stage.signed(payer, payee, AMOUNT, nonce(2))
        sent = stage.bundle(*((honest, diverted) if honest_first else (diverted, honest)))
        assert stage.evidence.transfer_of((payer, nonce(2)), payee, AMOUNT, DOLLAR, 0) is not None
        assert stage.evidence.transfer_of((payer, nonce(1)), payee, AMOUNT, DOLLAR, 0) is None
        assert stage.evidence.confirm(sent, (payer, nonce(1)), payee, AMOUNT, DOLLAR) is None
        arrived = stage.evidence.transfers_to(payee, 0, stage.evidence.head().block)
        assert [(each.amount, each.nonce) for each in arrived] == [(AMOUNT, nonce(2))]


def test_two_payments_in_one_transaction_are_two(chain: Rpc) -> None:
    """Two authorizations settled in one transaction are each proven, and each listed with its own nonce."""
    stage = RealStage(chain, 0)
    payer, payee = stage.payer(), stage.payee()
    sent = stage.bundle(*(stage.signed(payer, payee, AMOUNT, nonce(each)) for each in (1, 2)))
    found = [stage.evidence.transfer_of((payer, nonce(each)), payee, AMOUNT, DOLLAR, 0) for each in (1, 2)]
    assert found[0] == found[1] and found[0] is not None and found[0].tx_hash == sent
    arrived = stage.evidence.transfers_to(payee, 0, stage.evidence.head().block)
    assert [each.nonce for each in arrived] == [nonce(1), nonce(2)]
    assert arrived[0].log_index < arrived[1].log_index


def test_cancel_and_pay_in_one_transaction(chain: Rpc) -> None:
    """A cancelled nonce beside a plain payment of the same sum in one transaction proves no payment."""
    stage = RealStage(chain, 0)
    payer, payee = stage.payer(), stage.payee()
    cancel = calldata(CANCEL_BY_BYTES, *cancellation(stage._keys[payer], nonce(1)))
    pay = stage.signed(payer, payee, AMOUNT, nonce(2)).by_vrs()
    stage._sent(stage.submitter, None, bundle((DOLLAR, cancel), (DOLLAR, pay)))
    assert stage.evidence.transfer_of((payer, nonce(1)), payee, AMOUNT, DOLLAR, 0) is None
    assert stage.evidence.authorization_cancelled((payer, nonce(1)), 0) is not None


def test_drained_balance_shows(chain: Rpc) -> None:
    """After the payer moved its money away its balance says so, and the failed settle left no evidence."""
    stage = RealStage(chain, 0)
    payer, payee = stage.payer(), stage.payee()
    stage.transfer(payer, stage.payee(), 45_000)
    assert stage.evidence.balance(payer) == 5_000
    failed = stage.chain.send(stage.submitter, DOLLAR, stage.signed(payer, payee, AMOUNT, nonce(1)).by_vrs())
    assert stage.chain.receipt(failed)["status"] == "0x0"
    assert stage.evidence.confirm(failed, (payer, nonce(1)), payee, AMOUNT, DOLLAR) is None


# nodes that cannot be believed


def all_questions(evidence: ChainEvidence) -> list[Any]:
    one, right = "0x" + "11" * 20, ("0x" + "11" * 20, nonce(1))
    return [
        lambda: evidence.head(),
        lambda: evidence.block_at(0),
        lambda: evidence.balance(one),
        lambda: evidence.transfer_of(right, one, 1, DOLLAR, 0),
        lambda: evidence.authorization_cancelled(right, 0),
        lambda: evidence.transfers_to(one, 0, 0),
        lambda: evidence.confirm("0x" + "00" * 32, right, one, 1, DOLLAR),
    ]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"oops"),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b'{"jsonrpc":"2.0","id":0}'),
        (200, b'{"jsonrpc":"2.0","id":0,"result":null}'),
        (200, b'{"jsonrpc":"2.0","id":0,"result":{}}'),
        (200, b'{"jsonrpc":"2.0","id":0,"error":{"code":-32005,"message":"limit exceeded"}}'),
        (429, b""),
    ],
)
def test_broken_node_is_unavailable_never_evidence(status: int, body: bytes) -> None:
    """Whatever a broken node answers, every question ends in ChainUnavailable and never in None."""
    server = JsonServer(lambda *_: (status, body))
    server.start()
    for ask in all_questions(RpcChain(server.url, DOLLAR, CHAIN_ID, timeout_s=2)):
        with pytest.raises(ChainUnavailable) as raised:
            ask()
        assert (raised.value.code, raised.value.status) == ("CHAIN_UNAVAILABLE", 503)
        assert body.decode() not in str(raised.value) or not body
    server.close()


def test_absent_and_silent_nodes_are_unavailable() -> None:
    """A port where nobody listens and a node that never answers are the same trouble, within the timeout."""
    silent = JsonServer(lambda *_: time.sleep(3) or (200, b"{}"))
    silent.start()
    started = time.monotonic()
    for url in ("http://127.0.0.1:1", silent.url):
        with pytest.raises(ChainUnavailable):
            RpcChain(url, DOLLAR, CHAIN_ID, timeout_s=0.3).head()
    assert time.monotonic() - started < 3
    silent.close()


def test_another_chain_is_refused(chain: Rpc) -> None:
    """A node of another network is no witness: on it nothing of ours was ever paid."""
    for ask in all_questions(RpcChain(chain.url, DOLLAR, 8453)):
        with pytest.raises(ChainUnavailable, match="another chain"):
            ask()


def test_asset_that_is_no_dollar_is_unavailable(chain: Rpc) -> None:
    """An asset without code answers nothing, and that is not an empty balance."""
    with pytest.raises(ChainUnavailable):
        RpcChain(chain.url, OTHER_ASSET, CHAIN_ID).balance("0x" + "11" * 20)


def test_recovers_when_the_node_is_back(chain: Rpc) -> None:
    """The same object answers again once its node does."""
    down = [True]

    def handle(_method: str, _path: str, body: bytes) -> Answer:
        if down[0]:
            return 502, b""
        return 200, requests.post(chain.url, data=body, timeout=5).content

    server = JsonServer(handle)
    server.start()
    evidence = RpcChain(server.url, DOLLAR, CHAIN_ID)
    with pytest.raises(ChainUnavailable):
        evidence.head()
    down[0] = False
    assert evidence.head().time_us > 0
    server.close()


def test_log_queries_are_chunked(chain: Rpc) -> None:
    """A long range is asked in pieces of the set size that touch and do not overlap."""
    ranges = []

    def handle(_method: str, _path: str, body: bytes) -> Answer:
        if b"eth_getLogs" in body:
            asked = json.loads(body)["params"][0]
            ranges.append((int(asked["fromBlock"], 16), int(asked["toBlock"], 16)))
        return 200, requests.post(chain.url, data=body, timeout=5).content

    chain("test_mine", 30)
    server = JsonServer(handle)
    server.start()
    RpcChain(server.url, DOLLAR, CHAIN_ID, chunk=10).transfers_to("0x" + "12" * 20, 3, 28)
    assert ranges == [(3, 12), (13, 22), (23, 28)]
    server.close()


def test_memory_twin_can_be_down() -> None:
    """The twin fails every question while it is down, and answers again afterwards."""
    twin = MemoryChain()
    twin.down = True
    for ask in all_questions(twin):
        with pytest.raises(ChainUnavailable):
            ask()
    twin.down = False
    assert twin.head().block == 0
    with pytest.raises(NotAccepted):
        twin.transfer("0x" + "11" * 20, "0x" + "12" * 20, 1)


def test_importing_does_not_import_web3() -> None:
    """The module and its object cost no web3; only a question does."""
    code = (
        "import sys, worker.payments.chain as c; c.RpcChain('http://127.0.0.1:1', '0x', 1); "
        "assert not {'web3', 'eth_account', 'requests'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
