"""What the chain says about our money: the last word when a settlement's outcome is unknown.

A payment is proven by one transaction that shows `AuthorizationUsed(payer, nonce)` directly followed
by the asset's `Transfer(payer, payTo, amount)`. Directly, because a payer may put several transfers
into one transaction, and one transfer must not prove two payments. `authorizationState` alone proves
nothing: a cancelled nonce looks used. Only the clock and the command line ask; web3 is imported when
they first do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from worker.errors import Unavailable

MICROSECONDS = 1_000_000
# keccak256 of the events' signatures
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
AUTHORIZATION_USED = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"
AUTHORIZATION_CANCELED = "0x1cdd46ff242716cdaa72d159d339a485b3438398348d68f09d7c8c0a59353d81"
# the first four bytes of the functions' hashes
AUTHORIZATION_STATE = "0xe94a0102"
BALANCE_OF = "0x70a08231"

Authorization = tuple[str, str]
"""A payer's address and the nonce of the authorization, both as hex."""


class ChainUnavailable(Unavailable):
    """The chain could not be asked, or its answer cannot be trusted."""

    code = "CHAIN_UNAVAILABLE"
    message = "the chain cannot be asked right now"
    advice = "Check RPC_URL; nothing was concluded from the missing answer."


@dataclass(frozen=True)
class Head:
    """The newest block that is deep enough to be believed."""

    block: int
    time_us: int


@dataclass(frozen=True)
class Evidence:
    """The transaction that proves something, and when it happened."""

    tx_hash: str
    block: int
    time_us: int


@dataclass(frozen=True)
class Transfer:
    """Money that arrived. `nonce` is that of the authorization that moved it, if one did."""

    tx_hash: str
    log_index: int
    block: int
    time_us: int
    payer: str
    pay_to: str
    amount: int
    nonce: str | None


class ChainEvidence(Protocol):
    """What is asked of a chain. Addresses and hashes come back in lower case; blocks are inclusive.

    Every method may raise ChainUnavailable. None means: not there up to `head()` as it was before
    the call. So a payment whose end date lies before `head().time_us` and that then is not found
    can never land.
    """

    def head(self) -> Head:
        """The newest block deep enough to be believed."""
        ...

    def block_at(self, time_us: int) -> int:
        """The first block that is not older than a time; the one after the head if none is."""
        ...

    def balance(self, address: str) -> int:
        """What an account holds now, in atomic units."""
        ...

    def transfer_of(
        self, authorization: Authorization, pay_to: str, amount: int, asset: str, from_block: int
    ) -> Evidence | None:
        """The transaction in which this authorization paid exactly this."""
        ...

    def authorization_cancelled(self, authorization: Authorization, from_block: int) -> Evidence | None:
        """The transaction in which the payer cancelled the authorization."""
        ...

    def transfers_to(self, pay_to: str, from_block: int, to_block: int) -> list[Transfer]:
        """All money that arrived at an address, oldest first."""
        ...

    def confirm(
        self, tx_hash: str, authorization: Authorization, pay_to: str, amount: int, asset: str
    ) -> Evidence | None:
        """The transaction with this hash, if it is deep enough and proves this payment."""
        ...


class RpcChain:
    """Evidence from a node. `confirmations` blocks must lie on top of what is believed."""

    def __init__(
        self,
        rpc_url: str,
        asset: str,
        chain_id: int,
        *,
        confirmations: int = 0,
        chunk: int = 2_000,
        timeout_s: float = 10.0,
    ) -> None:
        self._rpc_url = rpc_url
        self._asset = asset.lower()
        self._chain_id = chain_id
        self._confirmations = confirmations
        self._chunk = chunk
        self._timeout_s = timeout_s

    @cached_property
    def _eth(self) -> Any:
        """The node, once it has shown that it serves the chain that we mean."""
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
        return Head(number, self._time_us(number))

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

    def transfer_of(
        self, authorization: Authorization, pay_to: str, amount: int, asset: str, from_block: int
    ) -> Evidence | None:
        with _asking():
            head = self._head()
            if not self._spent(authorization, asset):
                return None
            for log in self._authorization_logs(
                AUTHORIZATION_USED, authorization, asset, from_block, head.block
            ):
                found = self._proof(_hex(log["transactionHash"]), authorization, pay_to, amount, asset)
                if found is not None:
                    return found
            return None

    def authorization_cancelled(self, authorization: Authorization, from_block: int) -> Evidence | None:
        with _asking():
            head = self._head()
            if not self._spent(authorization, self._asset):
                return None
            topic = AUTHORIZATION_CANCELED
            for log in self._authorization_logs(topic, authorization, self._asset, from_block, head.block):
                number = int(log["blockNumber"])
                return Evidence(_hex(log["transactionHash"]), number, self._time_us(number))
            return None

    def transfers_to(self, pay_to: str, from_block: int, to_block: int) -> list[Transfer]:
        with _asking():
            if to_block > self._head().block:
                raise ChainUnavailable("the node has not seen the last block asked for", received=to_block)
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
    ) -> Evidence | None:
        with _asking():
            return self._proof(tx_hash, authorization, pay_to, amount, asset)

    # what the answers are made of

    def _number(self, contract: str, selector: str, *words: str) -> int:
        data = selector + "".join(word[2:] for word in words)
        answer = bytes(self._eth.call({"to": _checksummed(contract), "data": data}))
        if len(answer) != 32:
            raise ChainUnavailable("the asset does not answer like a dollar with signed transfers")
        return int.from_bytes(answer, "big")

    def _spent(self, authorization: Authorization, asset: str) -> bool:
        """Cheap and without a range of blocks; when it says no there is nothing to search for."""
        payer, nonce = authorization
        return self._number(asset, AUTHORIZATION_STATE, _word(payer), nonce) != 0

    def _authorization_logs(
        self, topic: str, authorization: Authorization, asset: str, first: int, last: int
    ) -> Iterator[Any]:
        payer, nonce = authorization
        return self._logs(asset, [topic, _word(payer), nonce.lower()], first, last)

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
    ) -> Evidence | None:
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
        return Evidence(_hex(receipt["transactionHash"]), number, self._time_us(number))

    def _nonces(self, tx_hash: str) -> dict[int, str]:
        """For each transfer of a transaction that an authorization moved: its log's index and the nonce."""
        receipt = self._receipt(tx_hash)
        if receipt is None:
            raise ChainUnavailable("the node shows a log without its transaction")
        return {index: found[1] for index, found in signed_transfers(receipt["logs"], self._asset)}


def signed_transfers(logs: Any, asset: str) -> Iterator[tuple[int, tuple[str, str, str, int]]]:
    """Pairs each spent authorization with the transfer that directly follows it in the asset's log."""
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
    """Whatever a node, the network or the client library does wrong becomes ChainUnavailable."""
    from requests.exceptions import RequestException
    from web3.exceptions import Web3Exception

    try:
        yield
    except (Web3Exception, RequestException, ValueError, KeyError, TypeError, LookupError) as exc:
        raise ChainUnavailable from exc


def _hex(value: Any) -> str:
    """Hash, topic or data as lower-case hex, whether the client gave bytes or text."""
    return value.lower() if isinstance(value, str) else "0x" + bytes(value).hex()


def _word(address: str) -> str:
    return "0x" + address[2:].lower().rjust(64, "0")


def _address(topic: Any) -> str:
    return "0x" + _hex(topic)[-40:]


def _checksummed(address: str) -> Any:
    from eth_utils.address import to_checksum_address

    return to_checksum_address(address)
