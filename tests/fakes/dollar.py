"""Signed transfers of the test dollar, and a plain client for the local chain."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import requests
from eth_account import Account
from eth_utils import keccak, to_checksum_address

CHAIN_ID = 84532
DOLLAR = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
NETWORK = "eip155:84532"
CONTRACTS = Path(__file__).resolve().parents[2] / "contracts" / "chain"
DOMAIN = {"name": "USDC", "version": "2", "chainId": CHAIN_ID, "verifyingContract": DOLLAR}
TRANSFER_FIELDS = [
    {"name": "from", "type": "address"},
    {"name": "to", "type": "address"},
    {"name": "value", "type": "uint256"},
    {"name": "validAfter", "type": "uint256"},
    {"name": "validBefore", "type": "uint256"},
    {"name": "nonce", "type": "bytes32"},
]
CANCEL_FIELDS = [{"name": "authorizer", "type": "address"}, {"name": "nonce", "type": "bytes32"}]
SIX = "address,address,uint256,uint256,uint256,bytes32"
BY_VRS = f"transferWithAuthorization({SIX},uint8,bytes32,bytes32)"
BY_BYTES = f"transferWithAuthorization({SIX},bytes)"
CANCEL_BY_VRS = "cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)"
CANCEL_BY_BYTES = "cancelAuthorization(address,bytes32,bytes)"


class RpcFailed(Exception):
    """The node answered with an error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: str | None = error.get("data")


class Rpc:
    """Plain JSON-RPC, so that tests see the raw messages."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, method: str, *params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        answer = requests.post(self.url, json=body, timeout=20).json()
        if "error" in answer:
            raise RpcFailed(answer["error"])
        return answer["result"]

    def ask(self, function: str, *arguments: Any, to: str = DOLLAR, sender: str | None = None) -> bytes:
        message = {"to": to, "data": calldata(function, *arguments)}
        if sender is not None:
            message["from"] = sender
        return bytes.fromhex(self("eth_call", message, "latest")[2:])

    def dollars(self, address: str) -> int:
        return int.from_bytes(self.ask("balanceOf(address)", address), "big")

    def transferred(self, sender: str, receiver: str) -> int:
        """The sum of all transfers from one wallet to another."""
        topics = ["0x" + keccak(b"Transfer(address,address,uint256)").hex()]
        topics += ["0x" + address[2:].lower().rjust(64, "0") for address in (sender, receiver)]
        logs = self(
            "eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest", "address": DOLLAR, "topics": topics}
        )
        return sum(int(log["data"], 16) for log in logs)

    def used(self, payer: str, nonce: str) -> bool:
        return any(self.ask("authorizationState(address,bytes32)", payer, bytes.fromhex(nonce[2:])))

    def send(self, account: Any, to: str | None, data: str, **overrides: Any) -> str:
        """Signs and sends a transaction, by default with enough gas for any test."""
        transaction = {
            "type": 2,
            "chainId": CHAIN_ID,
            "nonce": int(self("eth_getTransactionCount", account.address, "pending"), 16),
            "gas": 1_500_000,
            "maxFeePerGas": 3 * 10**9,
            "maxPriorityFeePerGas": 1,
            "value": 0,
            "data": data,
        }
        if to is not None:
            transaction["to"] = to_checksum_address(to)
        signed = account.sign_transaction(transaction | overrides)
        result: str = self("eth_sendRawTransaction", "0x" + bytes(signed.raw_transaction).hex())
        return result

    def receipt(self, tx_hash: str, patience: float = 10.0) -> dict[str, Any]:
        deadline = time.monotonic() + patience
        while (found := self("eth_getTransactionReceipt", tx_hash)) is None:
            assert time.monotonic() < deadline, "the transaction was not mined"
            time.sleep(0.05)
        answer: dict[str, Any] = found
        return answer


def artifact(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CONTRACTS / f"{name}.json").read_text())
    return loaded


def calldata(function: str, *arguments: Any) -> str:
    """Encodes a call as hex; supports only the types that these tests need."""
    from eth_abi import encode

    types = [each for each in function[function.index("(") + 1 : -1].split(",") if each]
    return "0x" + (keccak(function.encode())[:4] + encode(types, arguments)).hex()


@dataclass(frozen=True)
class SignedAuthorization:
    """An EIP-3009 transfer, signed by a key that the test chooses."""

    payer: str
    to: str
    value: int = 10_000
    valid_after: int = 0
    valid_before: int = field(default_factory=lambda: int(time.time()) + 300)
    nonce: str = field(default_factory=lambda: "0x" + secrets.token_hex(32))
    signature: str = ""

    @property
    def six(self) -> tuple[Any, ...]:
        nonce = bytes.fromhex(self.nonce[2:])
        return (self.payer, self.to, self.value, self.valid_after, self.valid_before, nonce)

    def signed_by(self, account: Any, **domain: Any) -> SignedAuthorization:
        names = ("from", "to", "value", "validAfter", "validBefore", "nonce")
        signed = account.sign_typed_data(
            DOMAIN | domain,
            {"TransferWithAuthorization": TRANSFER_FIELDS},
            dict(zip(names, self.six, strict=True)),
        )
        return replace(self, signature="0x" + bytes(signed.signature).hex())

    def by_vrs(self) -> str:
        raw = bytes.fromhex(self.signature[2:])
        return calldata(BY_VRS, *self.six, raw[64], raw[:32], raw[32:64])

    def by_bytes(self) -> str:
        return calldata(BY_BYTES, *self.six, bytes.fromhex(self.signature[2:]))

    def payload(self) -> dict[str, Any]:
        return {
            "signature": self.signature,
            "authorization": {
                "from": self.payer,
                "to": self.to,
                "value": str(self.value),
                "validAfter": str(self.valid_after),
                "validBefore": str(self.valid_before),
                "nonce": self.nonce,
            },
        }


def cancellation(account: Any, nonce: str) -> tuple[str, bytes, bytes]:
    """The arguments of cancelAuthorization: authorizer, nonce, signature."""
    raw = bytes.fromhex(nonce[2:])
    message = {"authorizer": account.address, "nonce": raw}
    signed = account.sign_typed_data(DOMAIN, {"CancelAuthorization": CANCEL_FIELDS}, message)
    return account.address, raw, bytes(signed.signature)


def requirements(pay_to: str, amount: int = 10_000, **overrides: Any) -> dict[str, Any]:
    return {
        "scheme": "exact",
        "network": NETWORK,
        "amount": str(amount),
        "asset": DOLLAR,
        "payTo": pay_to,
        "maxTimeoutSeconds": 300,
        "extra": {"name": "USDC", "version": "2"},
    } | overrides


def request_v2(authorization: SignedAuthorization, wanted: dict[str, Any]) -> dict[str, Any]:
    """The body that a resource server sends to a facilitator."""
    payload = {
        "x402Version": 2,
        "payload": authorization.payload(),
        "accepted": wanted,
        "resource": {"url": "https://worker.example/execute"},
    }
    return {"x402Version": 2, "paymentPayload": payload, "paymentRequirements": wanted}


def request_v1(authorization: SignedAuthorization, wanted: dict[str, Any]) -> dict[str, Any]:
    shape = {name: value for name, value in wanted.items() if name not in ("amount", "network")}
    shape |= {
        "network": "base-sepolia",
        "maxAmountRequired": wanted["amount"],
        "resource": "https://worker.example/execute",
        "description": "run",
        "mimeType": "application/json",
    }
    payload = {"x402Version": 1, "scheme": "exact", "network": "base-sepolia"}
    payload |= {"payload": authorization.payload()}
    return {"x402Version": 1, "paymentPayload": payload, "paymentRequirements": shape}


def bundle(*calls: tuple[str, str]) -> str:
    """Creation code that makes several calls in one transaction and reverts if one of them fails."""
    bodies = [(bytes.fromhex(to[2:]), bytes.fromhex(data[2:])) for to, data in calls]
    step = 3 + 3 + 2 + 1 + 2 + 2 + 3 + 2 + 2 + 21 + 1 + 1 + 1 + 3 + 1
    total = step * len(bodies) + 1
    # ...each: copy its data to memory, call, and on failure jump to the end of the code (no jump target)
    code, offset = b"", total
    for to, data in bodies:
        size = len(data).to_bytes(2, "big")
        code += b"\x61" + size + b"\x61" + offset.to_bytes(2, "big") + b"\x60\x00" + b"\x39"
        code += b"\x60\x00" + b"\x60\x00" + b"\x61" + size + b"\x60\x00" + b"\x60\x00"
        code += b"\x73" + to + b"\x5a" + b"\xf1"
        code += b"\x15" + b"\x61" + total.to_bytes(2, "big") + b"\x57"
        offset += len(data)
    assert len(code) + 1 == total
    return "0x" + (code + b"\x00" + b"".join(data for _, data in bodies)).hex()


def fresh(chain: Rpc, *, dollars: int = 0, gas: bool = False) -> Any:
    """A new funded account, so that tests do not affect each other."""
    account = Account.create()
    if dollars:
        chain("test_mint", account.address, dollars)
    if gas:
        chain("test_fund", account.address, 10**18)
    return account
