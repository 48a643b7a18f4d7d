"""Chain evidence about our money: decides when a settlement's outcome is unknown.

A payment is proven by one transaction in which `AuthorizationUsed(payer, nonce)` is directly followed
by the asset's `Transfer(payer, payTo, amount)`. Directly, because a payer may put several transfers
into one transaction, and one transfer must not prove two payments. `authorizationState` alone proves
nothing: a cancelled nonce looks used. Only the clock and the command line query the chain; web3 is
imported on their first query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from worker.core.errors import Unavailable
from worker.payments.standing import Round, Wanted

MICROSECONDS = 1_000_000
# keccak256 of the events' signatures
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
AUTHORIZATION_USED = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"
# the first four bytes of the functions' hashes
BALANCE_OF = "0x70a08231"

_HOUR_US = 3_600 * MICROSECONDS
_MOST_HOURS = 1_000

Authorization = tuple[str, str]
"""A payer's address and the nonce of the authorization, both as hex."""


class ChainUnavailable(Unavailable):
    """The chain could not be reached, or its answer cannot be trusted."""

    code = "CHAIN_UNAVAILABLE"
    message = "the chain is unavailable"
    advice = "Check RPC_URL. No payment was changed."


@dataclass(frozen=True)
class Head:
    """The newest block deep enough to be trusted."""

    block: int
    time_us: int


@dataclass(frozen=True)
class ChainProof:
    """The transaction that proves something, and its time."""

    tx_hash: str
    block: int
    time_us: int


@dataclass(frozen=True)
class Transfer:
    """An incoming transfer. `nonce` is that of the authorization that moved it, if any."""

    tx_hash: str
    log_index: int
    block: int
    time_us: int
    payer: str
    pay_to: str
    amount: int
    nonce: str | None


class ChainEvidence(Protocol):
    """Port for chain queries. Addresses and hashes are returned in lower case; block ranges are inclusive.

    Every method may raise ChainUnavailable. None means: not found up to `head()` as it was before
    the call. So a payment that ended before `head().time_us` and is not found afterwards can never
    land.
    """

    def head(self) -> Head:
        """The newest block deep enough to be trusted."""
        ...

    def block_at(self, time_us: int) -> int:
        """The first block at or after a time; the one after the head if there is none."""
        ...

    def balance(self, address: str) -> int:
        """Current balance of an account, in atomic units."""
        ...

    def transfers_to(self, pay_to: str, from_block: int, to_block: int) -> list[Transfer]:
        """All transfers to an address, oldest first."""
        ...

    def confirm(
        self, tx_hash: str, authorization: Authorization, pay_to: str, amount: int, asset: str
    ) -> ChainProof | None:
        """The transaction with this hash, if it is deep enough and proves this payment."""
        ...

    def standings(self, wanted: Sequence[Wanted]) -> Round:
        """Standings of all these payments, queried in one round."""
        ...


class RpcChain:
    """Chain evidence from a node. Blocks are trusted with `confirmations` blocks on top of them.

    With `proof_blocks` on top a block is final; None: use the network's own `safe` block, where the node
    knows one. With `mines_on_demand` a chain without new blocks counts as up to date as long as no
    transaction is pending: on a developer's chain the next block may never come.
    """

    def __init__(
        self,
        rpc_url: str,
        asset: str,
        chain_id: int,
        *,
        confirmations: int = 0,
        proof_blocks: int | None = None,
        mines_on_demand: bool = False,
        chunk: int = 2_000,
        timeout_s: float = 10.0,
    ) -> None:
        self._rpc_url = rpc_url
        self._asset = asset.lower()
        self._chain_id = chain_id
        self._confirmations = confirmations
        self._proof_blocks = proof_blocks
        self._mines_on_demand = mines_on_demand
        self._hours: dict[int, int] = {}
        self._chunk = chunk
        self._timeout_s = timeout_s

    @cached_property
    def _eth(self) -> Any:
        """The node, after checking that it serves the expected chain."""
        from web3 import HTTPProvider, Web3

        options = {"timeout": self._timeout_s}
        provider = HTTPProvider(self._rpc_url, request_kwargs=options, exception_retry_configuration=None)
        eth = Web3(provider).eth
        served = eth.chain_id
        if served != self._chain_id:
            raise ChainUnavailable(
                "the node serves another chain", expected=self._chain_id, received=int(served)
            )
        return eth

    def head(self) -> Head:
        with _asking():
            return self._head()

    def _head(self) -> Head:
        number = max(0, int(self._eth.block_number) - self._confirmations)
        return self._up_to_date(Head(number, self._time_us(number)))

    def _up_to_date(self, head: Head) -> Head:
        """The same block with the current time if the chain is idle: the next block is empty."""
        if not self._mines_on_demand:
            return head
        pending = self._eth.get_block("pending")
        if pending["transactions"] or int(pending.get("number") or 0) <= head.block:
            return head
        return Head(head.block, max(head.time_us, int(pending["timestamp"]) * MICROSECONDS))

    def _time_us(self, number: int) -> int:
        return int(self._eth.get_block(number)["timestamp"]) * MICROSECONDS

    def block_at(self, time_us: int) -> int:
        with _asking():
            low, high = 0, self._head().block + 1
            while low < high:
                middle = (low + high) // 2
                if self._time_us(middle) < time_us:
                    low = middle + 1
                else:
                    high = middle
            return low

    def balance(self, address: str) -> int:
        with _asking():
            return self._number(self._asset, BALANCE_OF, _word(address))

    def transfers_to(self, pay_to: str, from_block: int, to_block: int) -> list[Transfer]:
        with _asking():
            if to_block > self._head().block:
                raise ChainUnavailable("the node has not seen the last requested block", received=to_block)
            topics = [TRANSFER, None, _word(pay_to)]
            nonces: dict[str, dict[int, str]] = {}
            times: dict[int, int] = {}
            found = []
            for log in self._logs(self._asset, topics, from_block, to_block):
                tx_hash, number, index = (
                    _hex(log["transactionHash"]),
                    int(log["blockNumber"]),
                    log["logIndex"],
                )
                if tx_hash not in nonces:
                    nonces[tx_hash] = self._nonces(tx_hash)
                if number not in times:
                    times[number] = self._time_us(number)
                payer, amount = _address(log["topics"][1]), int(_hex(log["data"]), 16)
                nonce = nonces[tx_hash].get(index)
                place = (tx_hash, index, number, times[number])
                found.append(Transfer(*place, payer, pay_to.lower(), amount, nonce))
            return found

    def confirm(
        self, tx_hash: str, authorization: Authorization, pay_to: str, amount: int, asset: str
    ) -> ChainProof | None:
        with _asking():
            return self._proof(tx_hash, authorization, pay_to, amount, asset)

    def standings(self, wanted: Sequence[Wanted]) -> Round:
        # Imported here: lookup imports this module.
        from worker.payments.lookup import Lookup

        with _asking():
            return Lookup(self._eth, self._heads(), self._chunk).run(wanted, self._first_block)

    def _heads(self) -> tuple[Head, Head]:
        """The newest trusted block, and the newest final one."""
        from worker.payments.lookup import safe_block

        head = self._head()
        if self._proof_blocks is None:
            proven = min(safe_block(self._eth, head.block), head.block)
        else:
            proven = max(0, head.block - self._proof_blocks)
        return head, head if proven == head.block else Head(proven, self._time_us(proven))

    def _first_block(self, time_us: int) -> int:
        """`block_at` for the start of that hour, cached."""
        hour = min(time_us, self._head().time_us) // _HOUR_US
        if hour not in self._hours:
            found = self.block_at(hour * _HOUR_US)
            if len(self._hours) > _MOST_HOURS:
                self._hours.clear()
            self._hours[hour] = found
        return self._hours[hour]

    # Building blocks of the queries

    def _number(self, contract: str, selector: str, *words: str) -> int:
        data = selector + "".join(word[2:] for word in words)
        answer = bytes(self._eth.call({"to": _checksummed(contract), "data": data}))
        if len(answer) != 32:
            raise ChainUnavailable("the asset does not behave like USDC with EIP-3009 transfers")
        return int.from_bytes(answer, "big")

    def _logs(self, asset: str, topics: list[str | None], first: int, last: int) -> Iterator[Any]:
        for start in range(first, last + 1, self._chunk):
            wanted = {
                "address": _checksummed(asset),
                "topics": topics,
                "fromBlock": start,
                "toBlock": min(start + self._chunk - 1, last),
            }
            yield from self._eth.get_logs(wanted)

    def _receipt(self, tx_hash: str) -> Any | None:
        from web3.exceptions import TransactionNotFound

        try:
            return self._eth.get_transaction_receipt(tx_hash)
        except TransactionNotFound:
            return None

    def _proof(
        self, tx_hash: str, authorization: Authorization, pay_to: str, amount: int, asset: str
    ) -> ChainProof | None:
        receipt = self._receipt(tx_hash)
        if receipt is None or receipt["status"] != 1:
            return None
        number = int(receipt["blockNumber"])
        if number > self._head().block:
            return None
        payer, nonce = authorization[0].lower(), authorization[1].lower()
        wanted = (payer, nonce, pay_to.lower(), amount)
        if wanted not in [found for _, found in signed_transfers(receipt["logs"], asset)]:
            return None
        return ChainProof(_hex(receipt["transactionHash"]), number, self._time_us(number))

    def _nonces(self, tx_hash: str) -> dict[int, str]:
        """For each transfer in a transaction that an authorization moved: its log index and the nonce."""
        receipt = self._receipt(tx_hash)
        if receipt is None:
            raise ChainUnavailable("the node shows a log without its transaction")
        return {index: found[1] for index, found in signed_transfers(receipt["logs"], self._asset)}


def signed_transfers(logs: Any, asset: str) -> Iterator[tuple[int, tuple[str, str, str, int]]]:
    """Pairs each spent authorization with the transfer directly after it in the asset's log."""
    spent: tuple[str, str] | None = None
    for log in logs:
        topics = [_hex(topic) for topic in log["topics"]]
        ours = str(log["address"]).lower() == asset.lower() and len(topics) == 3
        if ours and topics[0] == TRANSFER and spent and spent[0] == _address(topics[1]):
            found = (*spent, _address(topics[2]), int(_hex(log["data"]), 16))
            yield int(log["logIndex"]), found
        used = ours and topics[0] == AUTHORIZATION_USED
        spent = (_address(topics[1]), topics[2]) if used else None


@contextmanager
def _asking() -> Iterator[None]:
    """Turns any failure of the node, the network or the client library into ChainUnavailable."""
    from requests.exceptions import RequestException
    from web3.exceptions import Web3Exception

    try:
        yield
    except (Web3Exception, RequestException, ValueError, KeyError, TypeError, LookupError) as exc:
        raise ChainUnavailable from exc


def _hex(value: Any) -> str:
    """Hash, topic or data as lower-case hex, from bytes or text."""
    return value.lower() if isinstance(value, str) else "0x" + bytes(value).hex()


def _word(address: str) -> str:
    return "0x" + address[2:].lower().rjust(64, "0")


def _address(topic: Any) -> str:
    return "0x" + _hex(topic)[-40:]


def _checksummed(address: str) -> Any:
    from eth_utils.address import to_checksum_address

    return to_checksum_address(address)
