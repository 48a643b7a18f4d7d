"""Chain evidence from a real node, and the same results from the in-memory chain."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
import requests
from eth_account import Account

from tests.fakes.chain import MemoryChain, NotAccepted
from tests.fakes.dollar import (
    CANCEL_BY_BYTES,
    CHAIN_ID,
    DOLLAR,
    Rpc,
    SignedAuthorization,
    bundle,
    calldata,
    cancellation,
    fresh,
)
from tests.waiting import eventually
from worker.local.chain import LocalChain
from worker.local.httpd import Answer, JsonServer
from worker.payments.chain import ChainEvidence, ChainProof, ChainUnavailable, RpcChain
from worker.payments.standing import Standing, Wanted

OTHER_ASSET = "0x" + "99" * 20
AMOUNT = 10_000


class ChainSetup(Protocol):
    """A chain that a test controls, and the evidence object that queries it."""

    evidence: ChainEvidence

    def payer(self, dollars: int = 50_000) -> str: ...
    def payee(self) -> str: ...
    def settle(self, payer: str, to: str, amount: int, nonce: str) -> str: ...
    def transfer(self, payer: str, to: str, amount: int) -> str: ...
    def cancel(self, payer: str, nonce: str) -> str: ...
    def mine(self, blocks: int) -> None: ...


class RealChainSetup:
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

    def signed(self, payer: str, to: str, amount: int, nonce: str) -> SignedAuthorization:
        return SignedAuthorization(payer, to, amount, nonce=nonce).signed_by(self._keys[payer])

    def _sent(self, account: Any, to: str | None, data: str) -> str:
        receipt = self.chain.receipt(self.chain.send(account, to, data))
        if receipt["status"] != "0x1":
            raise NotAccepted
        return str(receipt["transactionHash"])

    def settle(self, payer: str, to: str, amount: int, nonce: str) -> str:
        return self._sent(self.submitter, DOLLAR, self.signed(payer, to, amount, nonce).by_vrs())

    def bundle(self, *signed: SignedAuthorization) -> str:
        return self._sent(self.submitter, None, bundle(*((DOLLAR, each.by_vrs()) for each in signed)))

    def transfer(self, payer: str, to: str, amount: int) -> str:
        return self._sent(self._keys[payer], DOLLAR, calldata("transfer(address,uint256)", to, amount))

    def cancel(self, payer: str, nonce: str) -> str:
        data = calldata(CANCEL_BY_BYTES, *cancellation(self._keys[payer], nonce))
        return self._sent(self.submitter, DOLLAR, data)

    def mine(self, blocks: int) -> None:
        self.chain("test_mine", blocks)


class MemoryChainSetup:
    """The in-memory chain."""

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


@pytest.fixture(name="chain_setup", params=["node", "memory"])
def _chain_setup(request: pytest.FixtureRequest, chain: Rpc) -> ChainSetup:
    return RealChainSetup(chain, 0) if request.param == "node" else MemoryChainSetup(0)


@pytest.fixture(name="deep", params=["node", "memory"])
def _deep(request: pytest.FixtureRequest, chain: Rpc) -> ChainSetup:
    return RealChainSetup(chain, 3) if request.param == "node" else MemoryChainSetup(3)


def standing(evidence: ChainEvidence, authorization: tuple[str, str], *rest: Any) -> Standing:
    payee, amount, asset = rest
    wanted = Wanted(*authorization, payee, amount, asset, since_us=0)
    return evidence.standings([wanted]).standings[0]


def transfer_of(evidence: ChainEvidence, authorization: tuple[str, str], *rest: Any) -> ChainProof | None:
    """A transfer of exactly this payment by this authorization."""
    return standing(evidence, authorization, *rest).landed


def cancellation_of(evidence: ChainEvidence, authorization: tuple[str, str]) -> ChainProof | None:
    return standing(evidence, authorization, authorization[0], 1, DOLLAR).cancelled


def nonce(number: int) -> str:
    return "0x" + f"{number:064x}"


def test_settled_payment_is_found(chain_setup: ChainSetup) -> None:
    """A settled authorization is found with its hash, block and time, regardless of letter case."""
    payer, payee = chain_setup.payer(), chain_setup.payee()
    chain_setup.mine(20)
    start = chain_setup.evidence.head().block
    assert transfer_of(chain_setup.evidence, (payer, nonce(0xAB)), payee, AMOUNT, DOLLAR) is None
    sent = chain_setup.settle(payer, payee, AMOUNT, nonce(0xAB))
    chain_setup.mine(20)
    found = transfer_of(chain_setup.evidence, (payer, nonce(0xAB)), payee, AMOUNT, DOLLAR)
    assert isinstance(found, ChainProof)
    assert found.tx_hash == sent.lower() and start < found.block <= chain_setup.evidence.head().block
    assert found.time_us <= chain_setup.evidence.head().time_us
    shouting = (payer.upper().replace("0X", "0x"), nonce(0xAB).upper().replace("0X", "0x"))
    assert transfer_of(chain_setup.evidence, shouting, payee.lower(), AMOUNT, DOLLAR.lower()) == found
    assert chain_setup.evidence.confirm(sent, (payer, nonce(0xAB)), payee, AMOUNT, DOLLAR) == found
    assert chain_setup.evidence.balance(payer) == 40_000 and chain_setup.evidence.balance(payee) == AMOUNT


def test_any_mismatch_is_no_evidence(chain_setup: ChainSetup) -> None:
    """A different payer, nonce, payee, amount, asset or starting block is not this payment."""
    payer, payee, other = chain_setup.payer(), chain_setup.payee(), chain_setup.payer()
    sent = chain_setup.settle(payer, payee, AMOUNT, nonce(1))
    chain_setup.settle(other, payee, AMOUNT, nonce(2))
    right = ((payer, nonce(1)), payee, AMOUNT, DOLLAR)
    assert transfer_of(chain_setup.evidence, *right) is not None
    for wrong in (
        ((other, nonce(1)), payee, AMOUNT, DOLLAR),
        ((payer, nonce(2)), payee, AMOUNT, DOLLAR),
        ((payer, nonce(1)), other, AMOUNT, DOLLAR),
        ((payer, nonce(1)), payee, AMOUNT + 1, DOLLAR),
        ((payer, nonce(1)), payee, AMOUNT - 1, DOLLAR),
    ):
        assert transfer_of(chain_setup.evidence, *wrong) is None
        assert chain_setup.evidence.confirm(sent, *wrong) is None
    assert chain_setup.evidence.confirm("0x" + "00" * 32, *right) is None
    assert chain_setup.evidence.confirm(sent, (payer, nonce(1)), payee, AMOUNT, OTHER_ASSET) is None


def test_plain_transfer_proves_no_authorization(chain_setup: ChainSetup) -> None:
    """A plain transfer of the same amount is not the authorization, even if its nonce is used elsewhere."""
    payer, payee, elsewhere = chain_setup.payer(), chain_setup.payee(), chain_setup.payee()
    chain_setup.transfer(payer, payee, AMOUNT)
    wanted = ((payer, nonce(5)), payee, AMOUNT, DOLLAR)
    assert transfer_of(chain_setup.evidence, *wanted) is None
    chain_setup.settle(payer, elsewhere, AMOUNT, nonce(5))
    assert transfer_of(chain_setup.evidence, *wanted) is None
    assert cancellation_of(chain_setup.evidence, (payer, nonce(5))) is None


def test_cancelled_nonce_is_cancelled_not_settled(chain_setup: ChainSetup) -> None:
    """A cancelled authorization is found as cancelled, from its block on, and never as a payment."""
    payer, payee = chain_setup.payer(), chain_setup.payee()
    assert cancellation_of(chain_setup.evidence, (payer, nonce(6))) is None
    sent = chain_setup.cancel(payer, nonce(6))
    found = cancellation_of(chain_setup.evidence, (payer, nonce(6)))
    assert found is not None and found.tx_hash == sent.lower()
    assert transfer_of(chain_setup.evidence, (payer, nonce(6)), payee, AMOUNT, DOLLAR) is None
    with pytest.raises(NotAccepted):
        chain_setup.settle(payer, payee, AMOUNT, nonce(6))
    chain_setup.settle(payer, payee, AMOUNT, nonce(7))
    assert cancellation_of(chain_setup.evidence, (payer, nonce(7))) is None


def test_nothing_counts_before_enough_confirmations(deep: ChainSetup) -> None:
    """With three confirmations a payment, a cancellation and the head appear three blocks later."""
    payer, payee = deep.payer(), deep.payee()
    deep.mine(5)
    sent = deep.settle(payer, payee, AMOUNT, nonce(1))
    deep.cancel(payer, nonce(2))
    wanted = ((payer, nonce(1)), payee, AMOUNT, DOLLAR)
    for _ in range(2):
        assert transfer_of(deep.evidence, *wanted) is None
        assert deep.evidence.confirm(sent, *wanted) is None
        assert cancellation_of(deep.evidence, (payer, nonce(2))) is None
        deep.mine(1)
    found = transfer_of(deep.evidence, *wanted)
    assert found is not None and found.block == deep.evidence.head().block
    assert deep.evidence.confirm(sent, *wanted) == found
    assert cancellation_of(deep.evidence, (payer, nonce(2))) is None
    deep.mine(1)
    assert cancellation_of(deep.evidence, (payer, nonce(2))) is not None


def test_incoming_transfers_are_listed_with_their_nonces(chain_setup: ChainSetup) -> None:
    """All money received in a range of blocks is listed in order, signed transfers with their nonce."""
    first, second, payee = chain_setup.payer(), chain_setup.payer(), chain_setup.payee()
    chain_setup.mine(1)
    start = chain_setup.evidence.head().block + 1
    hashes = [
        chain_setup.settle(first, payee, 1_000, nonce(1)),
        chain_setup.transfer(second, payee, 2_000),
        chain_setup.settle(second, payee, 3_000, nonce(0xCD)),
    ]
    chain_setup.settle(first, chain_setup.payee(), 4_000, nonce(2))
    end = chain_setup.evidence.head().block
    found = chain_setup.evidence.transfers_to(payee, start, end)
    assert [each.tx_hash for each in found] == [each.lower() for each in hashes]
    assert [(each.payer, each.amount, each.nonce) for each in found] == [
        (first.lower(), 1_000, nonce(1)),
        (second.lower(), 2_000, None),
        (second.lower(), 3_000, nonce(0xCD)),
    ]
    assert {each.pay_to for each in found} == {payee.lower()}
    assert [each.time_us for each in found] == sorted(each.time_us for each in found)
    middle = found[1].block
    assert chain_setup.evidence.transfers_to(payee, middle, middle) == [found[1]]
    assert chain_setup.evidence.transfers_to(payee, end + 1, end) == []
    with pytest.raises(ChainUnavailable):
        chain_setup.evidence.transfers_to(payee, start, end + 1_000)


def test_block_at_a_time_is_found(chain_setup: ChainSetup) -> None:
    """The first block not older than a time is found, also before the first and after the last."""
    payer, payee = chain_setup.payer(), chain_setup.payee()
    sent = chain_setup.settle(payer, payee, AMOUNT, nonce(1))
    found = chain_setup.evidence.confirm(sent, (payer, nonce(1)), payee, AMOUNT, DOLLAR)
    assert found is not None
    head = chain_setup.evidence.head()
    assert chain_setup.evidence.block_at(0) == 0
    at = chain_setup.evidence.block_at(found.time_us)
    assert at <= found.block
    assert transfer_of(chain_setup.evidence, (payer, nonce(1)), payee, AMOUNT, DOLLAR) == found
    assert chain_setup.evidence.block_at(found.time_us + 1) > found.block
    assert chain_setup.evidence.block_at(head.time_us + 60_000_000) == chain_setup.evidence.head().block + 1


# attacks that need a real chain


def test_one_transfer_does_not_prove_two_payments(chain: Rpc) -> None:
    """In its payment's transaction the payer diverts another nonce to itself: only the payment is proven."""
    chain_setup = RealChainSetup(chain, 0)
    for honest_first in (True, False):
        payer, payee = chain_setup.payer(), chain_setup.payee()
        diverted = chain_setup.signed(payer, payer, AMOUNT, nonce(1))
        honest = chain_setup.signed(payer, payee, AMOUNT, nonce(2))
        sent = chain_setup.bundle(*((honest, diverted) if honest_first else (diverted, honest)))
        assert transfer_of(chain_setup.evidence, (payer, nonce(2)), payee, AMOUNT, DOLLAR) is not None
        assert transfer_of(chain_setup.evidence, (payer, nonce(1)), payee, AMOUNT, DOLLAR) is None
        assert chain_setup.evidence.confirm(sent, (payer, nonce(1)), payee, AMOUNT, DOLLAR) is None
        arrived = chain_setup.evidence.transfers_to(payee, 0, chain_setup.evidence.head().block)
        assert [(each.amount, each.nonce) for each in arrived] == [(AMOUNT, nonce(2))]


def test_two_payments_in_one_transaction_are_two(chain: Rpc) -> None:
    """Two authorizations settled in one transaction are each proven, and each listed with its own nonce."""
    chain_setup = RealChainSetup(chain, 0)
    payer, payee = chain_setup.payer(), chain_setup.payee()
    sent = chain_setup.bundle(*(chain_setup.signed(payer, payee, AMOUNT, nonce(each)) for each in (1, 2)))
    found = [
        transfer_of(chain_setup.evidence, (payer, nonce(each)), payee, AMOUNT, DOLLAR) for each in (1, 2)
    ]
    assert found[0] == found[1] and found[0] is not None and found[0].tx_hash == sent
    arrived = chain_setup.evidence.transfers_to(payee, 0, chain_setup.evidence.head().block)
    assert [each.nonce for each in arrived] == [nonce(1), nonce(2)]
    assert arrived[0].log_index < arrived[1].log_index


def test_many_payments_are_checked_in_one_query(chain: Rpc) -> None:
    """Paid, cancelled, unused, several in one transaction: three requests answer for all of them."""
    chain_setup = RealChainSetup(chain, 0)
    payer, payee = chain_setup.payer(), chain_setup.payee()
    chain_setup.bundle(*(chain_setup.signed(payer, payee, AMOUNT, nonce(each)) for each in (1, 2)))
    sent = chain_setup.settle(payer, payee, AMOUNT, nonce(3))
    chain_setup.cancel(payer, nonce(4))
    bodies: list[Any] = []

    def handle(_method: str, _path: str, body: bytes) -> Answer:
        bodies.append(json.loads(body))
        return 200, requests.post(chain.url, data=body, timeout=5).content

    server = JsonServer(handle)
    server.start()
    evidence = RpcChain(server.url, DOLLAR, CHAIN_ID)
    hours = [Wanted(payer, nonce(each), payee, AMOUNT, DOLLAR, 0) for each in range(1, 6)]
    evidence.standings(hours)  # finds the first block of the hour, which is looked up once
    bodies.clear()
    named = [*hours[:2], replace(hours[2], named=sent), *hours[3:]]
    found = evidence.standings([*named, replace(hours[4], named="0x" + "77" * 32)]).standings
    server.close()
    assert len(bodies) <= 12 and sum(isinstance(each, list) for each in bodies) >= 2
    assert [each.landed is not None for each in found] == [True, True, True, False, False, False]
    assert found[3].cancelled is not None
    assert [each.used for each in found] == [True, True, True, True, False, False]
    assert [each.known for each in found] == [False, False, True, False, False, False]


def test_proof_needs_enough_confirmations(chain: Rpc) -> None:
    """A given number means blocks below the head; without one, the network's own safe block counts."""
    chain("test_mine", 10)
    for blocks, below in ((4, 4), (None, 0)):
        evidence = RpcChain(chain.url, DOLLAR, CHAIN_ID, proof_blocks=blocks)
        found = evidence.standings([Wanted("0x" + "11" * 20, nonce(1), "0x" + "12" * 20, 1, DOLLAR, 0)])
        assert found.head.block - found.proven.block == below and found.proven.time_us <= found.head.time_us


def test_idle_chain_is_up_to_date(tmp_path: Path) -> None:
    """On-demand mining with nothing pending: the newest block counts as current, if so configured."""
    with LocalChain(tmp_path, idle_seconds=10**9) as running:
        rpc = Rpc(running.url)
        account = fresh(rpc, gas=True)
        rests = RpcChain(running.url, DOLLAR, CHAIN_ID, mines_on_demand=True)
        public = RpcChain(running.url, DOLLAR, CHAIN_ID)
        old = public.head()
        eventually(lambda: rests.head().time_us > old.time_us, description="a head of now")
        assert public.head() == old and rests.head().block == old.block
        rpc("test_setBlockTime", 3600)
        rpc.send(account, account.address, "0x", value=1)
        assert rests.head() == old, "something waits to be mined"


def test_cancel_and_pay_in_one_transaction(chain: Rpc) -> None:
    """A cancelled nonce and a plain payment of the same amount in one transaction prove no payment."""
    chain_setup = RealChainSetup(chain, 0)
    payer, payee = chain_setup.payer(), chain_setup.payee()
    cancel = calldata(CANCEL_BY_BYTES, *cancellation(chain_setup._keys[payer], nonce(1)))
    pay = chain_setup.signed(payer, payee, AMOUNT, nonce(2)).by_vrs()
    chain_setup._sent(chain_setup.submitter, None, bundle((DOLLAR, cancel), (DOLLAR, pay)))
    assert transfer_of(chain_setup.evidence, (payer, nonce(1)), payee, AMOUNT, DOLLAR) is None
    assert cancellation_of(chain_setup.evidence, (payer, nonce(1))) is not None


def test_drained_balance_is_seen(chain: Rpc) -> None:
    """After the payer moved its money its balance shows it, and the failed settle left no evidence."""
    chain_setup = RealChainSetup(chain, 0)
    payer, payee = chain_setup.payer(), chain_setup.payee()
    chain_setup.transfer(payer, chain_setup.payee(), 45_000)
    assert chain_setup.evidence.balance(payer) == 5_000
    failed = chain_setup.chain.send(
        chain_setup.submitter, DOLLAR, chain_setup.signed(payer, payee, AMOUNT, nonce(1)).by_vrs()
    )
    assert chain_setup.chain.receipt(failed)["status"] == "0x0"
    assert chain_setup.evidence.confirm(failed, (payer, nonce(1)), payee, AMOUNT, DOLLAR) is None


# unreliable nodes


def all_questions(evidence: ChainEvidence) -> list[Any]:
    one, right = "0x" + "11" * 20, ("0x" + "11" * 20, nonce(1))
    return [
        lambda: evidence.head(),
        lambda: evidence.block_at(0),
        lambda: evidence.balance(one),
        lambda: transfer_of(evidence, right, one, 1, DOLLAR),
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
    """Whatever a broken node returns, every query raises ChainUnavailable and never returns None."""
    server = JsonServer(lambda *_: (status, body))
    server.start()
    for ask in all_questions(RpcChain(server.url, DOLLAR, CHAIN_ID, timeout_s=2)):
        with pytest.raises(ChainUnavailable) as raised:
            ask()
        assert (raised.value.code, raised.value.status) == ("CHAIN_UNAVAILABLE", 503)
        assert body.decode() not in str(raised.value) or not body
    server.close()


def test_absent_and_silent_nodes_are_unavailable() -> None:
    """A closed port and a node that never answers raise the same error, within the timeout."""
    silent = JsonServer(lambda *_: time.sleep(3) or (200, b"{}"))
    silent.start()
    started = time.monotonic()
    for url in ("http://127.0.0.1:1", silent.url):
        with pytest.raises(ChainUnavailable):
            RpcChain(url, DOLLAR, CHAIN_ID, timeout_s=0.3).head()
    assert time.monotonic() - started < 3
    silent.close()


def test_node_of_another_chain_is_refused(chain: Rpc) -> None:
    """A node of another network is refused as evidence: none of our payments are on it."""
    for ask in all_questions(RpcChain(chain.url, DOLLAR, 8453)):
        with pytest.raises(ChainUnavailable, match="another chain"):
            ask()


def test_wrong_asset_is_unavailable(chain: Rpc) -> None:
    """An asset without code returns nothing, which is not a zero balance."""
    with pytest.raises(ChainUnavailable):
        RpcChain(chain.url, OTHER_ASSET, CHAIN_ID).balance("0x" + "11" * 20)


def test_recovers_when_the_node_is_back(chain: Rpc) -> None:
    """The same object works again once its node does."""
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
    """A long range is queried in chunks of the set size, without gaps or overlaps."""
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


def test_memory_chain_can_be_down() -> None:
    """The in-memory chain fails every query while down, and works again afterwards."""
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
    """Importing the module and creating its object do not import web3; only a query does."""
    code = (
        "import sys, worker.payments.chain as c; c.RpcChain('http://127.0.0.1:1', '0x', 1); "
        "assert not {'web3', 'eth_account', 'requests'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
