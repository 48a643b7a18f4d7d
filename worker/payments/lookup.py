"""Looks up many payments at a node in a few batches of calls, however many payments there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from worker.payments.chain import (
    AUTHORIZATION_USED,
    MICROSECONDS,
    ChainProof,
    ChainUnavailable,
    Head,
    signed_transfers,
)
from worker.payments.standing import Round, Standing, Wanted

# keccak256 of an event's signature, the first four bytes of a function's
AUTHORIZATION_CANCELED = "0x1cdd46ff242716cdaa72d159d339a485b3438398348d68f09d7c8c0a59353d81"
AUTHORIZATION_STATE = "0xe94a0102"
# Calls per request; public nodes accept this many.
BATCH = 50
# Errors by which nodes say that their network has no such block; any other is a fault of the node.
_NO_SAFE_BLOCK = (-32000, -32601, -32602, -39001)

Call = tuple[str, list[Any]]


class Lookup:
    """One round; `first_block` finds the first block at or after a time."""

    def __init__(self, eth: Any, heads: tuple[Head, Head], chunk: int) -> None:
        self._provider = eth.w3.provider
        self._head, self._proven = heads
        self._chunk = chunk

    def run(self, wanted: Sequence[Wanted], first_block: Callable[[int], int]) -> Round:
        used, named = self._states(wanted), self._named(wanted)
        receipts = {tx: receipt for tx, (_, receipt) in named.items() if receipt is not None}
        proofs = self._proofs(receipts, wanted)
        open_ = [each for n, each in enumerate(wanted) if used[n] and _who(each) not in proofs]
        cancelled: dict[tuple[str, str], tuple[str, int]] = {}
        if open_:
            first = first_block(min(each.since_us for each in open_))
            logs = self._logs(open_, first)
            spent = {log["transactionHash"] for log in logs if log["topics"][0] == AUTHORIZATION_USED}
            proofs |= self._proofs(self._receipts(sorted(spent - set(receipts))), open_)
            cancelled = {
                (_address(log["topics"][1]), log["topics"][2]): _place(log)
                for log in logs
                if log["topics"][0] == AUTHORIZATION_CANCELED
            }
        times = self._times({block for _, block in (*proofs.values(), *cancelled.values())})
        return Round(
            self._head,
            self._proven,
            [
                Standing(
                    landed=_evidence(proofs.get(_who(each)), times),
                    cancelled=_evidence(cancelled.get(_who(each)), times),
                    used=used[n],
                    known=any(named.get(each.named, (None, None))),
                )
                for n, each in enumerate(wanted)
            ],
        )

    def _ask(self, calls: Sequence[Call]) -> list[Any]:
        """The results, None where the node has nothing; calls one by one if the node rejects batches."""
        results: list[Any] = []
        for start in range(0, len(calls), BATCH):
            part = list(calls[start : start + BATCH])
            answers = self._provider.make_batch_request(part) if len(part) > 1 else None
            if not isinstance(answers, list):
                answers = [self._provider.make_request(method, params) for method, params in part]
            if len(answers) != len(part) or any("result" not in answer for answer in answers):
                raise ChainUnavailable("the node left a part of the request unanswered")
            results += [answer["result"] for answer in answers]
        return results

    def _states(self, wanted: Sequence[Wanted]) -> list[bool]:
        """Whether each nonce is used, as of the head: a node that lacks that block yet says so."""
        at = hex(self._head.block)
        calls: list[Call] = []
        for each in wanted:
            data = AUTHORIZATION_STATE + _word(each.payer)[2:] + each.nonce.lower()[2:]
            calls.append(("eth_call", [{"to": each.asset, "data": data}, at]))
        answers = self._ask(calls)
        if any(not isinstance(each, str) or len(each) != 66 for each in answers):
            raise ChainUnavailable("the asset does not behave like USDC with EIP-3009 transfers")
        return [int(each, 16) != 0 for each in answers]

    def _named(self, wanted: Sequence[Wanted]) -> dict[str, tuple[Any, Any]]:
        """By hash: the transaction and its receipt, as far as the node has them."""
        names = sorted({each.named for each in wanted if each.named})
        transactions = self._ask([("eth_getTransactionByHash", [name]) for name in names])
        receipts = self._ask([("eth_getTransactionReceipt", [name]) for name in names])
        return {name: (transactions[n], receipts[n]) for n, name in enumerate(names)}

    def _receipts(self, names: Sequence[str]) -> dict[str, Any]:
        found = self._ask([("eth_getTransactionReceipt", [name]) for name in names])
        if any(receipt is None for receipt in found):
            raise ChainUnavailable("the node shows a log without its transaction")
        return dict(zip(names, found, strict=True))

    def _proofs(
        self, receipts: Mapping[str, Any], wanted: Sequence[Wanted]
    ) -> dict[tuple[str, str], tuple[str, int]]:
        """By payer and nonce: the transaction and block in which exactly this payment landed.

        Each transfer in a log belongs to the one authorization directly before it, so no log proves two
        payments, however many a transaction holds.
        """
        asked = {(*_who(each), each.pay_to.lower(), each.amount): each.asset for each in wanted}
        proofs = {}
        for receipt in receipts.values():
            place = _place(receipt)
            if int(receipt["status"], 16) != 1 or place[1] > self._head.block:
                continue
            for asset in {asset.lower() for asset in asked.values()}:
                for _, found in signed_transfers(_numbered(receipt["logs"]), asset):
                    if asked.get(found, "").lower() == asset:
                        proofs[found[:2]] = place
        return proofs

    def _logs(self, wanted: Sequence[Wanted], first: int) -> list[Any]:
        """Every use and cancellation of these nonces from a block on."""
        topics = [
            [AUTHORIZATION_USED, AUTHORIZATION_CANCELED],
            sorted({_word(each.payer) for each in wanted}),
            sorted({each.nonce.lower() for each in wanted}),
        ]
        assets = sorted({each.asset for each in wanted})
        calls: list[Call] = []
        for start in range(first, self._head.block + 1, self._chunk):
            last = min(start + self._chunk - 1, self._head.block)
            blocks = {"fromBlock": hex(start), "toBlock": hex(last)}
            calls.append(("eth_getLogs", [{"address": assets, "topics": topics, **blocks}]))
        return [log for logs in self._ask(calls) for log in logs]

    def _times(self, blocks: set[int]) -> dict[int, int]:
        numbers = sorted(blocks)
        found = self._ask([("eth_getBlockByNumber", [hex(number), False]) for number in numbers])
        return {
            number: int(block["timestamp"], 16) * MICROSECONDS
            for number, block in zip(numbers, found, strict=True)
        }


def safe_block(eth: Any, otherwise: int) -> int:
    """The block number that the network itself calls safe; `otherwise` where it names none."""
    from web3.exceptions import BlockNotFound, Web3RPCError

    try:
        return int(eth.get_block("safe")["number"])
    except BlockNotFound:
        return otherwise
    except Web3RPCError as error:
        reply: Any = error.rpc_response or {}
        if (reply.get("error") or {}).get("code") not in _NO_SAFE_BLOCK:
            raise
        return otherwise


def _who(wanted: Wanted) -> tuple[str, str]:
    return wanted.payer.lower(), wanted.nonce.lower()


def _evidence(place: tuple[str, int] | None, times: Mapping[int, int]) -> ChainProof | None:
    return None if place is None else ChainProof(place[0], place[1], times[place[1]])


def _place(found: Mapping[str, Any]) -> tuple[str, int]:
    return found["transactionHash"].lower(), int(found["blockNumber"], 16)


def _numbered(logs: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for log in logs:
        yield {**log, "logIndex": int(log["logIndex"], 16)}


def _word(address: str) -> str:
    return "0x" + address[2:].lower().rjust(64, "0")


def _address(topic: str) -> str:
    return "0x" + topic.lower()[-40:]
