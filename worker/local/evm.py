"""A real EVM in one process: pending transactions, blocks, calls.

It runs py-evm's mining chain. Nothing here is thread-safe; the node that serves it holds a lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from eth.db.atomic import AtomicDB
from eth.exceptions import PyEVMError, Revert
from eth.vm.spoof import SpoofTransaction
from eth_keys.datatypes import PrivateKey
from eth_typing import BlockNumber
from eth_utils.address import to_canonical_address
from eth_utils.crypto import keccak
from eth_utils.exceptions import ValidationError

from worker.local import rpc_format
from worker.local.chain_rules import (
    CHAIN_ID,
    DOLLAR,
    FAUCET_KEY,
    GAS_LIMIT,
    ZERO_ADDRESS,
    Chain,
    LocalRules,
    StateDatabase,
    genesis,
)
from worker.local.chain_store import ChainStore

BLOB_TYPE = 3


class TransactionRefused(Exception):
    """The chain refuses a transaction or a call; `data` is what a revert returned."""

    def __init__(self, message: str, *, code: int = -32000, data: bytes | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data = data


@dataclass(frozen=True)
class EvmCall:
    """A message that is executed without changing state."""

    sender: bytes = ZERO_ADDRESS
    to: bytes = b""
    data: bytes = b""
    value: int = 0
    gas: int = GAS_LIMIT


class Evm:
    """The chain: mined blocks, pending transactions, and the result of calls."""

    def __init__(
        self, store: ChainStore, *, block_time: float = 0, clock: Callable[[], float] = time.time
    ) -> None:
        self.store = store
        self.block_time = block_time
        self._clock = clock
        self._db = AtomicDB(StateDatabase(store))
        self._builder: Any = LocalRules.get_transaction_builder()
        self.faucet = PrivateKey(FAUCET_KEY)
        self.faucet_address: bytes = self.faucet.public_key.to_canonical_address()
        if store.head() is None:
            block = genesis(self._db, minter=self.faucet_address, timestamp=int(clock()))
            store.add_block(rpc_format.block(block), [], [])
            store.commit()
        self._chain = Chain(self._db)

    # time

    def now(self) -> int:
        return int(self._clock()) + int(self.store.meta("jump") or 0)

    def jump(self, seconds: int) -> None:
        """Move the chain's clock, for tests of expiry."""
        self.store.set_meta("jump", int(self.store.meta("jump") or 0) + seconds)
        self.store.commit()

    def head(self) -> dict[str, Any]:
        head = self.store.head()
        if head is None:
            raise RuntimeError("the chain has no block, not even its first")
        return head

    def head_number(self) -> int:
        return int(self.head()["number"], 16)

    # state

    def _vm(self, number: int | None = None, **header: Any) -> Any:
        """A machine on the state after block `number`, or on the pending block."""
        if number is not None and number < self.head_number():
            at = self._chain.get_canonical_block_header_by_number(BlockNumber(number))
        else:
            timestamp = max(self.now(), self._chain.get_canonical_head().timestamp)
            at = self._chain.header.copy(timestamp=timestamp)
        return self._chain.get_vm(at.copy(**header) if header else at)

    def balance(self, address: bytes, number: int | None = None) -> int:
        return int(self._vm(number).state.get_balance(address))

    def nonce(self, address: bytes, number: int | None = None) -> int:
        return int(self._vm(number).state.get_nonce(address))

    def code(self, address: bytes, number: int | None = None) -> bytes:
        return bytes(self._vm(number).state.get_code(address))

    def storage(self, address: bytes, slot: int, number: int | None = None) -> int:
        return int(self._vm(number).state.get_storage(address, slot))

    def base_fee(self) -> int:
        return int(self._chain.header.base_fee_per_gas or 0)

    def pending_nonce(self, address: bytes) -> int:
        nonce = self.nonce(address)
        waiting = {tx.nonce for _, tx in self._pool() if tx.sender == address}
        while nonce in waiting:
            nonce += 1
        return nonce

    # calls

    def _execute(self, call: EvmCall, gas: int, number: int | None) -> Any:
        state = self._vm(number, base_fee_per_gas=0).state
        unsigned = self._builder.new_unsigned_dynamic_fee_transaction(
            chain_id=CHAIN_ID,
            nonce=state.get_nonce(call.sender),
            max_priority_fee_per_gas=0,
            max_fee_per_gas=0,
            gas=gas,
            to=call.to,
            value=call.value,
            data=call.data,
            access_list=(),
        )
        try:
            return state.apply_transaction(SpoofTransaction(unsigned, from_=call.sender))
        except (ValidationError, PyEVMError) as exc:
            raise TransactionRefused("the call is not valid: too little gas or too small a balance") from exc

    def call(self, call: EvmCall, number: int | None = None) -> bytes:
        computation = self._execute(call, min(call.gas, GAS_LIMIT), number)
        if computation.is_error:
            raise reverted(computation)
        return bytes(computation.output)

    def estimate(self, call: EvmCall, number: int | None = None) -> int:
        """Sufficient gas: what the call used plus the 64th that inner calls hold back; verified by a run."""
        most = min(call.gas, GAS_LIMIT)
        computation = self._execute(call, most, number)
        if computation.is_error:
            raise reverted(computation)
        used = most - int(computation.get_gas_remaining()) + int(computation.data_floor_gas)
        guess = min(most, used + used // 63 + 2300)
        if not self._execute(call, guess, number).is_error:
            return guess
        low, high = guess, most
        while high - low > 1000:
            middle = (low + high) // 2
            low, high = (middle, high) if self._execute(call, middle, number).is_error else (low, middle)
        return high

    # transactions

    def _pool(self) -> list[tuple[str, Any]]:
        return [(digest, self._builder.decode(raw)) for digest, raw in self.store.pool()]

    def waiting(self, digest: str) -> dict[str, Any] | None:
        found = next((raw for name, raw in self.store.pool() if name == digest), None)
        return None if found is None else rpc_format.transaction(self._builder.decode(found), None, 0)

    def submit(self, raw: bytes) -> str:
        """Submit a signed transaction; with no block time it is mined before this returns."""
        transaction = self._checked(raw)
        digest = rpc_format.octets(transaction.hash)
        self.store.pool_add(digest, raw)
        self.store.commit()
        if self.block_time == 0:
            self.mine()
        return digest

    def _checked(self, raw: bytes) -> Any:
        try:
            if raw[:1] == bytes([BLOB_TYPE]):
                raise TransactionRefused("transaction type not supported")
            transaction = self._builder.decode(raw)
            transaction.validate()
            transaction.check_signature_validity()
            sender = transaction.sender
        except TransactionRefused:
            raise
        except Exception as exc:  # malformed bytes make the decoders raise arbitrary exceptions
            raise TransactionRefused("the transaction cannot be decoded", code=-32602) from exc
        if transaction.chain_id != CHAIN_ID:
            raise TransactionRefused("invalid chain id for signer")
        digest = rpc_format.octets(transaction.hash)
        waiting = self._pool()
        if self.store.transaction(digest) is not None or any(name == digest for name, _ in waiting):
            raise TransactionRefused("already known")
        if transaction.nonce < self.nonce(sender):
            raise TransactionRefused("nonce too low")
        if any(tx.sender == sender and tx.nonce == transaction.nonce for _, tx in waiting):
            raise TransactionRefused("replacement transaction underpriced")
        if transaction.gas > GAS_LIMIT or transaction.gas < transaction.intrinsic_gas:
            raise TransactionRefused("intrinsic gas too low, or gas limit above the block's")
        if transaction.max_fee_per_gas < self.base_fee():
            raise TransactionRefused("max fee per gas less than block base fee")
        if self.balance(sender) < transaction.gas * transaction.max_fee_per_gas + transaction.value:
            raise TransactionRefused("insufficient funds for gas * price + value")
        return transaction

    # blocks

    def mine(self, only: str | None = None) -> dict[str, Any]:
        """Mine a block of the pending transactions (or of one); it is durable when this returns."""
        with self._whole():
            timestamp = max(self.now(), self._chain.get_canonical_head().timestamp)
            self._chain.set_header_timestamp(timestamp)
            waiting = [(name, tx) for name, tx in self._pool() if only in (None, name)]
            progress = True
            while waiting and progress:
                left = [(name, tx) for name, tx in waiting if not self._include(name, tx)]
                progress, waiting = len(left) < len(waiting), left
            mixed = keccak(self._chain.header.parent_hash)
            block = self._chain.mine_block(mix_hash=mixed, coinbase=ZERO_ADDRESS)
            body = rpc_format.block(block)
            receipts = block.get_receipts(self._chain.chaindb)
            included = [
                rpc_format.transaction(tx, block, place) for place, tx in enumerate(block.transactions)
            ]
            self.store.add_block(body, included, rpc_format.receipts(block, receipts))
        return body

    def _include(self, name: str, transaction: Any) -> bool:
        """True if the transaction left the pool: into the block, or for good."""
        nonce = self._chain.get_vm(self._chain.header).state.get_nonce(transaction.sender)
        if transaction.nonce > nonce:
            return False
        try:
            self._chain.apply_transaction(transaction)
        except ValidationError:
            if transaction.nonce < nonce:
                self.store.pool_drop(name)
                return True
            return False
        return True

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """All of a block or none of it, also in memory."""
        try:
            yield
            self.store.commit()
        except BaseException:
            self.store.rollback()
            self._chain = Chain(self._db)
            raise

    # set-up with the faucet's key

    def faucet_send(self, to: bytes, *, value: int = 0, data: bytes = b"") -> str:
        """Send a transaction from the faucet in a block of its own, without hurrying any other."""
        unsigned = self._builder.new_unsigned_dynamic_fee_transaction(
            chain_id=CHAIN_ID,
            nonce=self.pending_nonce(self.faucet_address),
            max_priority_fee_per_gas=1,
            max_fee_per_gas=2 * self.base_fee() + 1,
            gas=200_000,
            to=to,
            value=value,
            data=data,
            access_list=(),
        )
        raw = unsigned.as_signed_transaction(self.faucet).encode()
        digest = rpc_format.octets(self._checked(raw).hash)
        self.store.pool_add(digest, raw)
        self.mine(only=digest)
        return digest

    def endow(self, ether: Mapping[str, int], dollars: Mapping[str, int]) -> None:
        """Give each account its initial balance, once in the life of the chain."""
        endowed: list[str] = self.store.meta("endowed") or []
        for kind, amounts in (("ether", ether), ("dollar", dollars)):
            for address, amount in amounts.items():
                mark = f"{kind}:{address.lower()}"
                if mark in endowed:
                    continue
                endowed.append(mark)
                self.store.set_meta("endowed", endowed)
                if kind == "ether":
                    self.faucet_send(to_canonical_address(address), value=amount)
                else:
                    self.mint(address, amount)

    def mint(self, address: str, amount: int) -> str:
        data = keccak(b"mint(address,uint256)")[:4] + to_canonical_address(address).rjust(32, b"\x00")
        return self.faucet_send(to_canonical_address(DOLLAR), data=data + amount.to_bytes(32, "big"))


def reverted(computation: Any) -> TransactionRefused:
    """What nodes return for a failed call, including the contract's own message."""
    error = computation.error
    if not isinstance(error, Revert):
        return TransactionRefused(f"execution failed: {type(error).__name__}")
    data = bytes(computation.output)
    reason = "execution reverted"
    if data[:4] == bytes.fromhex("08c379a0") and len(data) >= 68:
        length = int.from_bytes(data[36:68], "big")
        reason += ": " + data[68 : 68 + min(length, 1024)].decode("utf-8", "replace")
    return TransactionRefused(reason, code=3, data=data)
