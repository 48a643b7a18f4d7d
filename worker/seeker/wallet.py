"""The seeker's key: signs contracts and payments, and is never shown."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.contracts.signatures import address_of, key_bytes, sign_digest, sign_text
from worker.core.errors import BadRequest
from worker.seeker.demand import Demand
from worker.x402.headers import PAYMENT_SIGNATURE, X_PAYMENT, encode
from worker.x402.networks import Network
from worker.x402.typed_data import Authorization, transfer_digest
from worker.x402.wire import PAYMENT_IDENTIFIER


@dataclass(frozen=True, slots=True)
class SignedPayment:
    """One authorization as it is sent, identical every time."""

    header: str
    value: str
    amount: int
    nonce: str
    valid_before_s: int
    network: str
    pay_to: str
    resource_url: str


class Wallet:
    """A private key and the operations allowed with it."""

    def __init__(self, key: str) -> None:
        try:
            self._key = key_bytes(key.strip())
        except ValueError:
            raise BadRequest("the key is not a private key", expected="0x and 64 hex digits") from None
        self.address = address_of(self._key)

    def __repr__(self) -> str:
        return f"Wallet({self.address})"

    @classmethod
    def from_file(cls, path: Path) -> Wallet:
        """Read the key from a file: hex digits, or the `local.json` of a `worker local`."""
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            raise BadRequest(
                f"the key file {str(path)!r} cannot be read",
                field="--key",
                advice="Name a file that you can read; `worker keys new wallet --out FILE` makes one.",
            ) from None
        if text.lstrip().startswith("{"):
            try:
                text = str(json.loads(text)["seeker_key"])
            except (ValueError, LookupError):
                raise BadRequest(f"{str(path)!r} holds no seeker_key", field="--key") from None
        return cls(text)

    def sign_contract(self, contract_hash: str) -> str:
        """Sign the text of a contract's hash."""
        return sign_text(contract_hash, self._key)

    def sign_payment(self, demand: Demand, network: Network, now_s: int) -> SignedPayment:
        """Sign a payment for a demand that passed every check; `network` is our own entry for it."""
        authorization = Authorization(
            payer=self.address,
            to=demand.pay_to,
            value=demand.amount,
            valid_after=0,
            valid_before=now_s + demand.max_timeout_s,
            nonce="0x" + secrets.token_hex(32),
        )
        signature = sign_digest(transfer_digest(network.domain, authorization), self._key)
        payload = {"signature": "0x" + signature.hex(), "authorization": authorization.to_wire()}
        header, document = (_v1 if demand.version == 1 else _v2)(demand, payload)
        return SignedPayment(
            header=header,
            value=encode(document),
            amount=demand.amount,
            nonce=authorization.nonce,
            valid_before_s=authorization.valid_before,
            network=network.caip2,
            pay_to=demand.pay_to,
            resource_url=demand.resource_url,
        )


def _v1(demand: Demand, payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    document = {"x402Version": 1, "scheme": demand.scheme, "network": demand.network, "payload": payload}
    return X_PAYMENT, document


def _v2(demand: Demand, payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    document: dict[str, Any] = {"x402Version": 2, "payload": payload, "accepted": dict(demand.accepted)}
    if demand.resource is not None:
        document["resource"] = dict(demand.resource)
    if demand.extensions:
        document["extensions"] = _echoed(demand.extensions)
    return PAYMENT_SIGNATURE, document


def _echoed(extensions: Any) -> dict[str, Any]:
    """The server's extensions as received, plus at most an id that makes re-sends one purchase."""
    echoed = dict(extensions)
    entry = echoed.get(PAYMENT_IDENTIFIER)
    if isinstance(entry, dict) and isinstance(entry.get("info"), dict):
        info = {**entry["info"], "id": "pay_" + secrets.token_hex(16)}
        echoed[PAYMENT_IDENTIFIER] = {**entry, "info": info}
    return echoed
