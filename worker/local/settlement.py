"""The part of the local facilitator that talks to the chain: verify, simulate, send, wait, look up.

A transaction's hash is computed and stored before it is sent, so that no failure of ours can lose it. One
lock per payment: two settlements of one authorization never run at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from eth_account import Account
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from requests.exceptions import RequestException
from web3 import HTTPProvider, Web3
from web3.exceptions import (
    ContractLogicError,
    RequestTimedOut,
    TransactionNotFound,
    Web3Exception,
    Web3RPCError,
)

from worker.local.exact import ExactPayment, PaymentRejected, check, word
from worker.local.signed_transfer import (
    IS_VALID_SIGNATURE,
    WRAPPED,
    calldata,
    hexed,
    moved,
    recovered,
    tail,
    unwrapped,
)

log = structlog.get_logger("worker.local.facilitator")

RPC_TIMEOUT = 10
# What the client library raises when a node refuses, does not respond, or responds unreadably.
NODE_TROUBLE = (Web3Exception, RequestException, ValueError)
# How long it is remembered after the authorization ended: from then on the transaction can only fail.
PENDING_MARGIN = 600
MOST_GAS = 1_000_000
FAILED_CALL = ("out of gas", "invalid opcode", "execution failed")
REVERTS = (
    ("not yet valid", "invalid_exact_evm_payload_authorization_valid_after"),
    ("expired", "invalid_exact_evm_payload_authorization_valid_before"),
    ("used or canceled", "invalid_exact_evm_nonce_already_used"),
    ("exceeds balance", "invalid_exact_evm_insufficient_balance"),
    ("invalid signature", "invalid_exact_evm_payload_signature"),
)


class NodeUnavailable(Exception):
    """The chain did not respond; nothing is known and nothing was sent because of this."""


@dataclass(frozen=True)
class LocalSettlement:
    """The outcome of a settlement; without success a hash means that money may still move."""

    success: bool
    transaction: str = ""
    reason: str | None = None


@dataclass(frozen=True)
class _Pending:
    fingerprint: str
    transaction: str
    raw: bytes
    ends: int


class LocalSettler:
    """Verifies and settles payments on the chain behind one RPC address, paying gas with its key."""

    def __init__(
        self, rpc_url: str, gas_key: str, *, wait_s: float = 30.0, clock: Callable[[], float] = time.time
    ) -> None:
        provider = HTTPProvider(
            rpc_url, request_kwargs={"timeout": RPC_TIMEOUT}, exception_retry_configuration=None
        )
        self._web3 = Web3(provider)
        self._account = Account.from_key(gas_key)
        self._wait_s = wait_s
        self._clock = clock
        self._chain_id: int | None = None
        self._pending: dict[tuple[str, str, bytes], _Pending] = {}
        self._locks = _Locks()
        self._sending = threading.Lock()

    @property
    def address(self) -> str:
        return str(self._account.address)

    @property
    def chain_id(self) -> int:
        if self._chain_id is None:
            with _node():
                self._chain_id = self._web3.eth.chain_id
        return self._chain_id

    # verify

    def verify(self, payment: ExactPayment) -> None:
        """Raise PaymentRejected unless a settlement would succeed now."""
        check(payment, self.chain_id, int(self._clock()))
        with _node():
            signature = self._judge_signature(payment)
            if not self._web3.eth.get_code(to_checksum_address(payment.asset)):
                raise PaymentRejected("asset_not_deployed_contract", payment.payer)
            try:
                self._call(self._message(payment, signature))
            except ContractLogicError as exc:
                raise PaymentRejected(self._reason(payment, exc), payment.payer) from exc

    def _judge_signature(self, payment: ExactPayment) -> bytes:
        """The signature bytes to send. A payer with code judges for itself, whatever the length."""
        signature = payment.signature or b""
        has_code = bool(self._web3.eth.get_code(to_checksum_address(payment.payer)))
        if signature.endswith(WRAPPED):
            if not has_code:
                raise PaymentRejected("eip6492_factory_not_allowed", payment.payer)
            signature = unwrapped(signature, payment.payer)
        if len(signature) == 65 and signature[64] in (0, 1):
            signature = signature[:64] + bytes([signature[64] + 27])
        digest = payment.digest(self.chain_id)
        if has_code:
            good = self._wallet_accepts(payment.payer, digest, signature)
        elif len(signature) == 65:
            good = recovered(digest, signature) == payment.payer
        else:
            raise PaymentRejected("invalid_exact_evm_payload_undeployed_smart_wallet", payment.payer)
        if not good:
            raise PaymentRejected("invalid_exact_evm_payload_signature", payment.payer)
        return signature

    def _wallet_accepts(self, wallet: str, digest: bytes, signature: bytes) -> bool:
        data = IS_VALID_SIGNATURE + digest + word(64) + tail(signature)
        try:
            answer = self._ask(wallet, data)
        except ContractLogicError:
            return False
        return answer == IS_VALID_SIGNATURE.ljust(32, b"\x00")

    def _message(self, payment: ExactPayment, signature: bytes) -> Any:
        return {
            "from": self._account.address,
            "to": to_checksum_address(payment.asset),
            "data": hexed(calldata(payment, signature)),
        }

    def _reason(self, payment: ExactPayment, error: ContractLogicError) -> str:
        """Why the simulation failed: the contract's message if known, else its nonce and balance."""
        words = str(error).lower()
        for part, reason in REVERTS:
            if part in words:
                return reason
        try:
            used = self._read(
                payment.asset, "authorizationState(address,bytes32)", payment.payer, payment.nonce
            )
        except ContractLogicError:
            return "invalid_exact_evm_eip3009_not_supported"
        if used:
            return "invalid_exact_evm_nonce_already_used"
        if self._read(payment.asset, "balanceOf(address)", payment.payer) < payment.value:
            return "invalid_exact_evm_insufficient_balance"
        return "invalid_exact_evm_transaction_simulation_failed"

    def _read(self, asset: str, function: str, *arguments: str | bytes) -> int:
        data = keccak(function.encode())[:4]
        data += b"".join(each if isinstance(each, bytes) else word(each) for each in arguments)
        return int.from_bytes(self._ask(asset, data)[:32], "big")

    def _ask(self, contract: str, data: bytes) -> bytes:
        return self._call({"to": to_checksum_address(contract), "data": hexed(data)})

    def _call(self, message: Any) -> bytes:
        """Run a call with bounded gas: the payer's wallet may be anything. A failed call is a result."""
        try:
            return bytes(self._web3.eth.call(message | {"gas": MOST_GAS}))
        except Web3RPCError as exc:
            if any(words in str(exc).lower() for words in FAILED_CALL):
                raise ContractLogicError("execution failed") from exc
            raise

    # settle

    def settle(self, payment: ExactPayment) -> LocalSettlement:
        """Move the money, or continue with the transaction already in flight for it."""
        with self._locks.hold(payment.key):
            self._forget_ended()
            pending = self._pending.get(payment.key)
            if pending is not None:
                if pending.fingerprint != payment.fingerprint:
                    return LocalSettlement(False, reason="invalid_transaction_state")
                if self._still_sent(pending):
                    return self._wait(payment, pending)
                self._pending.pop(payment.key, None)
            try:
                self.verify(payment)
                pending = self._send(payment)
            except PaymentRejected as exc:
                return LocalSettlement(False, reason=exc.reason)
            return self._wait(payment, pending)

    def _send(self, payment: ExactPayment) -> _Pending:
        with self._sending:
            with _node():
                message = self._message(payment, self._judge_signature(payment))
                try:
                    gas = self._web3.eth.estimate_gas(message)
                except ContractLogicError as exc:
                    raise PaymentRejected(self._reason(payment, exc), payment.payer) from exc
                tip = self._web3.eth.max_priority_fee
                base = self._web3.eth.get_block("latest").get("baseFeePerGas", 0)
                nonce = self._web3.eth.get_transaction_count(self._account.address, "pending")
            fees = {"maxFeePerGas": 2 * base + tip, "maxPriorityFeePerGas": tip}
            place = {"nonce": nonce, "gas": gas + gas // 5, "value": 0, "chainId": self.chain_id, "type": 2}
            signed = self._account.sign_transaction(message | fees | place)
            transaction = hexed(bytes(signed.hash))
            ends = payment.valid_before + PENDING_MARGIN
            raw = bytes(signed.raw_transaction)
            pending = _Pending(payment.fingerprint, transaction, raw, ends)
            self._pending[payment.key] = pending
            log.info("facilitator.sending", transaction=transaction)
            if not self._broadcast(pending):
                self._pending.pop(payment.key, None)
                raise PaymentRejected("transaction_failed", payment.payer)
            return pending

    def _broadcast(self, pending: _Pending) -> bool:
        """False only if the node refused; without a response the transaction counts as in flight."""
        try:
            self._web3.eth.send_raw_transaction(pending.raw)
        except NODE_TROUBLE as exc:
            if isinstance(exc, Web3RPCError) and not isinstance(exc, RequestTimedOut):
                return "already known" in str(exc).lower()
            log.warning("facilitator.node_unanswered", transaction=pending.transaction)
        return True

    def _still_sent(self, pending: _Pending) -> bool:
        """Whether the transaction can still be mined; one that the node lost is sent again."""
        try:
            self._web3.eth.get_transaction(pending.transaction)  # type: ignore[arg-type]
        except TransactionNotFound:
            return self._broadcast(pending) or self._receipt(pending) is not None
        except NODE_TROUBLE:
            return True
        return True

    def _wait(self, payment: ExactPayment, pending: _Pending) -> LocalSettlement:
        deadline = time.monotonic() + self._wait_s
        pause = 0.02
        receipt = self._receipt(pending)
        while receipt is None:
            left = deadline - time.monotonic()
            if left <= 0:
                log.info("facilitator.pending", transaction=pending.transaction)
                return LocalSettlement(False, pending.transaction, "settlement_pending")
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.5)
            receipt = self._receipt(pending)
        money = receipt["status"] == 1 and moved(payment, receipt["logs"])
        self._pending.pop(payment.key, None)
        if receipt["status"] != 1:
            return LocalSettlement(False, pending.transaction, "transaction_failed")
        if not money:
            return LocalSettlement(False, pending.transaction, "invalid_exact_evm_transfer_event_mismatch")
        log.info("facilitator.settled", transaction=pending.transaction)
        return LocalSettlement(True, pending.transaction)

    def _receipt(self, pending: _Pending) -> Any:
        try:
            return self._web3.eth.get_transaction_receipt(pending.transaction)  # type: ignore[arg-type]
        except NODE_TROUBLE:
            return None

    def _forget_ended(self) -> None:
        now = self._clock()
        for key, pending in list(self._pending.items()):
            if pending.ends < now and self._pending.get(key) is pending:
                self._pending.pop(key, None)


class _Locks:
    """Per-key locks, kept only while a thread holds or waits for them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[Any, tuple[threading.Lock, int]] = {}

    @contextmanager
    def hold(self, key: Any) -> Iterator[None]:
        with self._guard:
            lock, users = self._held.get(key, (threading.Lock(), 0))
            self._held[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._held[key]
                if users == 1:
                    del self._held[key]
                else:
                    self._held[key] = (lock, users - 1)


@contextmanager
def _node() -> Iterator[None]:
    """Map whatever the client library raises about the node to one error; let contract errors pass."""
    try:
        yield
    except ContractLogicError:
        raise
    except NODE_TROUBLE as exc:
        raise NodeUnavailable(type(exc).__name__) from exc
