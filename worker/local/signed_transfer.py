"""The bytes of a signed transfer: the contract's input, signature recovery, and the logs."""

from __future__ import annotations

from typing import Any

from eth_abi.abi import decode
from eth_keys.datatypes import Signature
from eth_utils.crypto import keccak

from worker.local.exact import ExactPayment, PaymentRejected, word

TRANSFER = keccak(b"Transfer(address,address,uint256)")
AUTHORIZATION_USED = keccak(b"AuthorizationUsed(address,bytes32)")
# Both the selector of the wallet call and its return value for yes (EIP-1271).
IS_VALID_SIGNATURE = keccak(b"isValidSignature(bytes32,bytes)")[:4]
# Suffix of a signature made before the wallet was deployed (EIP-6492).
WRAPPED = bytes.fromhex("6492" * 16)


def calldata(payment: ExactPayment, signature: bytes) -> bytes:
    arguments = "address,address,uint256,uint256,uint256,bytes32"
    if len(signature) == 65:
        selector = keccak(f"transferWithAuthorization({arguments},uint8,bytes32,bytes32)".encode())[:4]
        return selector + payment.arguments + word(signature[64]) + signature[:64]
    selector = keccak(f"transferWithAuthorization({arguments},bytes)".encode())[:4]
    return selector + payment.arguments + word(7 * 32) + tail(signature)


def hexed(value: bytes) -> str:
    return "0x" + value.hex()


def tail(value: bytes) -> bytes:
    """Bytes in ABI encoding: length, content, zeros to a full word."""
    return word(len(value)) + value + b"\x00" * (-len(value) % 32)


def unwrapped(signature: bytes, payer: str) -> bytes:
    """The inner signature of a wallet that was not deployed when it signed (EIP-6492)."""
    try:
        _factory, _deploy, inner = decode(["address", "bytes", "bytes"], signature[:-32])
    except Exception as exc:  # malformed bytes make the decoder raise arbitrary exceptions
        raise PaymentRejected("invalid_exact_evm_payload_signature", payer) from exc
    return bytes(inner)


def recovered(digest: bytes, signature: bytes) -> str | None:
    try:
        plain = Signature(signature[:64] + bytes([signature[64] - 27]))
        return str(plain.recover_public_key_from_msg_hash(digest).to_address())
    except Exception:  # bytes that are not a signature
        return None


def moved(payment: ExactPayment, logs: Any) -> bool:
    """Whether the logs of one transaction show that the nonce was spent and the payee got the money."""
    payer = word(payment.payer)
    spent = (AUTHORIZATION_USED, payer, payment.nonce)
    paid = (TRANSFER, payer, word(payment.to))
    found = set()
    for entry in logs:
        if str(entry["address"]).lower() != payment.asset:
            continue
        topics = tuple(bytes(topic) for topic in entry["topics"])
        if topics == spent or (topics == paid and bytes(entry["data"]) == word(payment.value)):
            found.add(topics)
    return found == {spent, paid}
