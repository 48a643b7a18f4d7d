"""JSON-RPC over the local EVM, with the responses and error messages that clients expect of nodes.

Beside the `eth_` calls, a few `test_` calls mint, move the clock and set the block time: this chain runs on a
laptop and its money is worth nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from worker.local.chain_rules import CHAIN_ID, GAS_LIMIT
from worker.local.evm import Evm, EvmCall, TransactionRefused
from worker.local.httpd import read_json
from worker.local.rpc_format import octets, quantity

log = structlog.get_logger("worker.local.chain")

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
MOST_IN_A_BATCH = 500
# A chain without transactions still gets a block now and then when a client asks for its head, as
# public chains do: a payment can only expire on a chain whose time advances.
IDLE_BLOCK_SECONDS = 1
TIP = 1_000_000


class Node:
    """Handles requests one at a time, and mines when a block is due."""

    def __init__(self, evm: Evm, idle_seconds: float = IDLE_BLOCK_SECONDS) -> None:
        self.evm = evm
        self._idle_seconds = idle_seconds
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    def answer(self, body: bytes) -> bytes:
        """The response to a request or a batch, as bytes; never raises."""
        try:
            request = read_json(body)
        except ValueError:
            return _dump(_failed(None, PARSE_ERROR, "parse error"))
        if isinstance(request, list):
            if not request or len(request) > MOST_IN_A_BATCH:
                return _dump(_failed(None, INVALID_REQUEST, "a batch has 1 to 500 requests"))
            return _dump([self._one(each) for each in request])
        return _dump(self._one(request))

    def _one(self, request: Any) -> dict[str, Any]:
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            return _failed(None, INVALID_REQUEST, "invalid request")
        name, params = request["method"], request.get("params", [])
        method = METHODS.get(name)
        if method is None:
            return _failed(request.get("id"), NO_METHOD, f"the method {name[:64]} does not exist")
        if not isinstance(params, list):
            return _failed(request.get("id"), INVALID_PARAMS, "params must be a list")
        try:
            with self._changed:
                result = method(self, *params)
        except TransactionRefused as exc:
            return _failed(request.get("id"), exc.code, exc.message, exc.data)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError):
            return _failed(request.get("id"), INVALID_PARAMS, "invalid params")
        except Exception as exc:
            kind = type(exc).__name__
            return _failed(request.get("id"), INTERNAL, f"internal error: {kind}")
        return {"jsonrpc": "2.0", "id": request.get("id"), "result": result}

    # blocks by the clock

    def keep_mining(self) -> None:
        """Mine a block whenever the block time has passed, until closed; run it in a thread."""
        last = time.monotonic()
        with self._changed:
            while not self._closed:
                pace = self.evm.block_time
                due = last + pace - time.monotonic()
                if pace and due <= 0:
                    self._mine_on_time()
                    last = time.monotonic()
                else:
                    if not pace:
                        last = time.monotonic()
                    self._changed.wait(due if pace else None)

    def _mine_on_time(self) -> None:
        try:
            self.evm.mine()
        except Exception as exc:  # e.g. a full disk: nothing was stored, and the next block may succeed
            log.error("chain.block_failed", error=type(exc).__name__)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self.evm.store.close()
            self._changed.notify_all()

    def _fresh(self) -> None:
        head = int(self.evm.head()["timestamp"], 16)
        if not self.evm.block_time and self.evm.now() - head >= self._idle_seconds:
            self.evm.mine()

    # requests

    def _number(self, tag: Any) -> int:
        if tag in (None, "latest", "pending", "safe", "finalized"):
            return self.evm.head_number()
        number = 0 if tag == "earliest" else _integer(tag)
        if number > self.evm.head_number():
            raise TransactionRefused("header not found")
        return number

    def block_number(self) -> str:
        self._fresh()
        return quantity(self.evm.head_number())

    def block_by_number(self, tag: Any, full: bool = False) -> dict[str, Any] | None:
        self._fresh()
        if tag == "pending":
            return self._pending_block()
        if isinstance(tag, str) and tag.startswith("0x") and _integer(tag) > self.evm.head_number():
            return None
        return self._block(self.evm.store.block(self._number(tag)), full)

    def _pending_block(self) -> dict[str, Any]:
        """The pending block as it would be now: it is not mined, so it has no hash."""
        head, now = self.evm.head(), self.evm.now()
        return {
            **head,
            "number": quantity(int(head["number"], 16) + 1),
            "parentHash": head["hash"],
            "hash": None,
            "timestamp": quantity(max(now, int(head["timestamp"], 16))),
            "baseFeePerGas": quantity(self.evm.base_fee()),
            "transactions": [name for name, _ in self.evm.store.pool()],
        }

    def block_by_hash(self, digest: str, full: bool = False) -> dict[str, Any] | None:
        return self._block(self.evm.store.block_by_hash(digest), full)

    def _block(self, block: dict[str, Any] | None, full: bool) -> dict[str, Any] | None:
        if block is not None and full:
            block["transactions"] = [self.evm.store.transaction(each) for each in block["transactions"]]
        return block

    def transaction(self, digest: str) -> dict[str, Any] | None:
        return self.evm.store.transaction(digest) or self.evm.waiting(digest.lower())

    def receipt(self, digest: str) -> dict[str, Any] | None:
        return self.evm.store.receipt(digest)

    def transaction_count(self, address: str, tag: Any = "latest") -> str:
        if tag == "pending":
            return quantity(self.evm.pending_nonce(_address(address)))
        return quantity(self.evm.nonce(_address(address), self._number(tag)))

    def balance(self, address: str, tag: Any = "latest") -> str:
        return quantity(self.evm.balance(_address(address), self._number(tag)))

    def code(self, address: str, tag: Any = "latest") -> str:
        return octets(self.evm.code(_address(address), self._number(tag)))

    def storage(self, address: str, slot: Any, tag: Any = "latest") -> str:
        value = self.evm.storage(_address(address), _integer(slot), self._number(tag))
        return octets(value.to_bytes(32, "big"))

    def call(self, message: dict[str, Any], tag: Any = "latest") -> str:
        return octets(self.evm.call(_call(message), self._number(tag)))

    def estimate(self, message: dict[str, Any], tag: Any = "latest") -> str:
        return quantity(self.evm.estimate(_call(message), self._number(tag)))

    def send_raw(self, raw: str) -> str:
        return self.evm.submit(_octets(raw))

    def logs(self, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        if "blockHash" in wanted:
            block = self.evm.store.block_by_hash(wanted["blockHash"])
            if block is None:
                raise TransactionRefused("unknown block")
            first = last = int(block["number"], 16)
        else:
            first = self._number(wanted.get("fromBlock"))
            last = min(self._upto(wanted.get("toBlock")), self.evm.head_number())
        topics = [_several(topic) for topic in wanted.get("topics") or []]
        if len(topics) > 4:
            raise ValueError(topics)
        return self.evm.store.logs(first, last, _several(wanted.get("address")), topics)

    def _upto(self, tag: Any) -> int:
        return _integer(tag) if isinstance(tag, str) and tag.startswith("0x") else self._number(tag)

    def fee_history(self, count: Any, newest: Any = "latest", rewards: Any = None) -> dict[str, Any]:
        last = self._number(newest)
        first = max(0, last - min(max(_integer(count), 1), 1024) + 1)
        blocks = [block for number in range(first, last + 1) if (block := self.evm.store.block(number))]
        answer: dict[str, Any] = {
            "oldestBlock": quantity(first),
            "baseFeePerGas": [block["baseFeePerGas"] for block in blocks] + [quantity(self.evm.base_fee())],
            "gasUsedRatio": [int(block["gasUsed"], 16) / GAS_LIMIT for block in blocks],
        }
        if rewards:
            answer["reward"] = [[quantity(TIP) for _ in rewards] for _ in blocks]
        return answer

    # set-up and tests

    def set_block_time(self, seconds: float) -> bool:
        if not 0 <= seconds <= 3600:
            raise ValueError(seconds)
        self.evm.block_time = seconds
        if seconds == 0 and self.evm.store.pool():
            self.evm.mine()
        self._changed.notify_all()
        return True

    def mine(self, count: Any = 1) -> str:
        for _ in range(min(_integer(count), 1000)):
            self.evm.mine()
        return quantity(self.evm.head_number())

    def jump(self, seconds: Any) -> str:
        self.evm.jump(_integer(seconds))
        self.evm.mine()
        return quantity(self.evm.now())

    def mint(self, address: str, amount: Any) -> str:
        _address(address)
        return self.evm.mint(address, _integer(amount))

    def fund(self, address: str, amount: Any) -> str:
        return self.evm.faucet_send(_address(address), value=_integer(amount))


METHODS: dict[str, Callable[..., Any]] = {
    "web3_clientVersion": lambda _node: "local-chain",
    "net_version": lambda _node: str(CHAIN_ID),
    "net_listening": lambda _node: True,
    "eth_chainId": lambda _node: quantity(CHAIN_ID),
    "eth_syncing": lambda _node: False,
    "eth_accounts": lambda _node: [],
    "eth_gasPrice": lambda node: quantity(node.evm.base_fee() + TIP),
    "eth_maxPriorityFeePerGas": lambda _node: quantity(TIP),
    "eth_feeHistory": Node.fee_history,
    "eth_blockNumber": Node.block_number,
    "eth_getBlockByNumber": Node.block_by_number,
    "eth_getBlockByHash": Node.block_by_hash,
    "eth_getTransactionByHash": Node.transaction,
    "eth_getTransactionReceipt": Node.receipt,
    "eth_getTransactionCount": Node.transaction_count,
    "eth_getBalance": Node.balance,
    "eth_getCode": Node.code,
    "eth_getStorageAt": Node.storage,
    "eth_getLogs": Node.logs,
    "eth_call": Node.call,
    "eth_estimateGas": Node.estimate,
    "eth_sendRawTransaction": Node.send_raw,
    "test_mint": Node.mint,
    "test_fund": Node.fund,
    "test_mine": Node.mine,
    "test_jump": Node.jump,
    "test_setBlockTime": Node.set_block_time,
}


def _dump(answer: Any) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


def _failed(request_id: Any, code: int, message: str, data: bytes | None = None) -> dict[str, Any]:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = octets(data)
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def _integer(value: Any) -> int:
    """A count: a number, or a string in either base. Never negative, never a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(value)
    number = int(value, 16 if value.lower().startswith("0x") else 10) if isinstance(value, str) else value
    if not 0 <= number < 2**256:
        raise ValueError(value)
    return number


def _octets(value: str) -> bytes:
    if not value.startswith("0x"):
        raise ValueError(value)
    return bytes.fromhex(value[2:])


def _address(value: str) -> bytes:
    address = _octets(value)
    if len(address) != 20:
        raise ValueError(value)
    return address


def _several(value: Any) -> list[str]:
    """One value, several, or none for any, as in filters."""
    found = [] if value is None else value if isinstance(value, list) else [value]
    return [octets(_octets(each)) for each in found]


def _call(message: dict[str, Any]) -> EvmCall:
    data = message.get("input", message.get("data")) or "0x"
    gas = _integer(message["gas"]) if message.get("gas") is not None else GAS_LIMIT
    return EvmCall(
        sender=_address(message["from"]) if message.get("from") else EvmCall.sender,
        to=_address(message["to"]) if message.get("to") else b"",
        data=_octets(data),
        value=_integer(message.get("value") or 0),
        gas=gas,
    )
