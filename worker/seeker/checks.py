"""Everything a seeker checks before it signs and after delivery. Pure functions over values.

A worker may be wrong, hostile or replaced on the way, so nothing it says is trusted as the agreement. What is
signed is built from the contract and from our own table of networks.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.contracts.signatures import Eip191Verifier, SignatureInvalid, decode_signature, recover_digest
from worker.core.amounts import to_text
from worker.core.canonical import contract_hash, digest
from worker.core.errors import BadRequest, Forbidden
from worker.core.evm import is_bytes32, same_address
from worker.seeker.demand import Demand
from worker.seeker.http import host_of
from worker.seeker.problems import (
    ChecksumMismatch,
    ContractRefused,
    OfferRefused,
    ReceiptInvalid,
    SpendCapReached,
    plain,
)
from worker.x402.networks import Network, find_network
from worker.x402.offer import SCHEME
from worker.x402.typed_data import receipt_digest

_CHECKSUM = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class SigningLimits:
    """What may be signed. Without a contract, price and payee are open and only the cap applies."""

    host: str
    most: int
    longest_s: int
    network: Network | None = None
    pay_to: str | None = None
    amount: int | None = None


@dataclass(frozen=True, slots=True)
class ChosenDemand:
    """A demand that passed all checks, with our own entry for its network."""

    demand: Demand
    network: Network


def choose(demands: Sequence[Demand], agreed: SigningLimits) -> ChosenDemand:
    """Choose the first demand that matches the agreement; if none does, raise the first one's fault."""
    first: OfferRefused | SpendCapReached | None = None
    for demand in demands:
        try:
            return ChosenDemand(demand, check_demand(demand, agreed))
        except (OfferRefused, SpendCapReached) as refusal:
            first = first or refusal
    raise first or OfferRefused("the 402 offers no way to pay", field="accepts")


def check_demand(demand: Demand, agreed: SigningLimits) -> Network:
    """Refuse a demand that differs from the agreement in anything a signature would bind."""
    network = find_network(demand.network)
    if demand.scheme != SCHEME:
        raise _differs("scheme", SCHEME, demand.scheme)
    if network is None or (agreed.network is not None and network != agreed.network):
        wanted = agreed.network.caip2 if agreed.network else "a network that is known here"
        raise _differs("network", wanted, demand.network)
    if demand.asset.lower() != network.asset.lower():
        raise _differs("asset", network.asset, demand.asset)
    for key, ours in (("name", network.asset_name), ("version", network.asset_version)):
        if demand.extra.get(key, ours) != ours:
            raise _differs(f"extra.{key}", ours, demand.extra[key])
    for key, only in (("assetTransferMethod", "eip3009"), ("paymentFlow", "authorization")):
        if demand.extra.get(key, only) != only:
            raise _differs(f"extra.{key}", only, demand.extra[key])
    if agreed.amount is not None and demand.amount != agreed.amount:
        raise _differs("amount", to_text(agreed.amount), to_text(demand.amount))
    if demand.amount <= 0:
        raise _differs("amount", "more than nothing", "0")
    if agreed.pay_to is None:
        if not same_address(demand.pay_to, demand.pay_to):
            raise _differs("payTo", "an address", demand.pay_to)
    elif not same_address(demand.pay_to, agreed.pay_to):
        raise _differs("payTo", agreed.pay_to, demand.pay_to)
    # Older and simpler servers omit the resource; then only the connection identifies it.
    if demand.resource_url and host_of(demand.resource_url) != agreed.host:
        raise _differs("resource.url", f"an address at {agreed.host}", demand.resource_url)
    if not 0 < demand.max_timeout_s <= agreed.longest_s:
        raise _differs("maxTimeoutSeconds", f"1 to {agreed.longest_s}", demand.max_timeout_s)
    if demand.amount > agreed.most:
        raise cap_reached(demand.amount, agreed.most)
    return network


def cap_reached(amount: int, most: int) -> SpendCapReached:
    return SpendCapReached(
        f"{to_text(amount)} USDC would exceed the spending cap, which has {to_text(max(0, most))} USDC left",
        field="amount",
        expected=f"at most {to_text(max(0, most))}",
        received=to_text(amount),
    )


def check_countersigned(draft: Mapping[str, Any], received: Any, worker_wallet: str) -> dict[str, Any]:
    """Accept the worker's document only if it is our draft plus a hash and the worker's own signature."""
    if not isinstance(received, dict) or not isinstance(received.get("signatures"), dict):
        raise ContractRefused("the worker sent no signed contract", field="signatures")
    body = {name: value for name, value in received.items() if name not in ("signatures", "hash")}
    try:
        changed = digest(body) != digest(dict(draft))
        found = contract_hash(received)
    except BadRequest as fault:
        raise ContractRefused("the worker's document has no canonical form") from fault
    if changed:
        raise ContractRefused("the worker changed the contract", field=_first_difference(draft, body))
    if received.get("hash") != found:
        raise ContractRefused("the worker's hash is not that of the contract", field="hash")
    _check_signature(found, received["signatures"].get("worker"), worker_wallet, "signatures.worker")
    return received


def check_contract_signatures(contract: Mapping[str, Any]) -> None:
    """Refuse a contract whose hash or either signature is invalid."""
    found = contract_hash(contract)
    if contract.get("hash") != found:
        raise ContractRefused("the hash is not that of the contract", field="hash", expected=found)
    for party in ("worker", "seeker"):
        wallet = contract["parties"][party]["wallet"]
        signature = contract.get("signatures", {}).get(party)
        _check_signature(found, signature, wallet, f"signatures.{party}")


def check_receipt(
    receipt: Any,
    *,
    signer: str,
    payer: str,
    network: Network,
    resource_url: str,
    transaction: str,
    named_keys: Callable[[], Collection[str]] = tuple,
) -> None:
    """Refuse a receipt that does not prove our payment to that wallet.

    `named_keys` returns the keys that the worker publishes; called only if a key other than `signer` signed.
    """
    if not isinstance(receipt, dict) or not isinstance(receipt.get("payload"), dict):
        raise ReceiptInvalid("there is no receipt")
    payload = receipt["payload"]
    if receipt.get("format") != "eip712":
        raise ReceiptInvalid(field="format", expected="eip712", received=plain(receipt.get("format")))
    try:
        signed = receipt_digest(payload)
        found = recover_digest(signed, decode_signature(receipt.get("signature")))
    except (ValueError, Forbidden) as fault:
        raise ReceiptInvalid("the receipt's signature cannot be read", field="signature") from fault
    if not same_address(found, signer) and not any(same_address(found, key) for key in named_keys()):
        raise ReceiptInvalid(
            "somebody else signed the receipt", field="signature", expected=signer, received=found
        )
    for field, expected in (("network", network.caip2), ("resourceUrl", resource_url)):
        if expected and payload.get(field) != expected:
            raise ReceiptInvalid(field=field, expected=expected, received=plain(payload.get(field)))
    if not same_address(str(payload.get("payer")), payer):
        raise ReceiptInvalid(field="payer", expected=payer, received=plain(payload.get("payer")))
    if not is_bytes32(payload.get("transaction")) or (
        transaction and payload["transaction"].lower() != transaction.lower()
    ):
        raise ReceiptInvalid(
            field="transaction",
            expected=transaction or "a transaction hash",
            received=plain(payload.get("transaction")),
        )


def check_bytes(data: bytes, *, name: str, checksum: Any, size: Any) -> None:
    """Refuse bytes that do not match the worker's description; without a checksum nothing can be checked."""
    match = _CHECKSUM.fullmatch(checksum) if isinstance(checksum, str) else None
    if match is None:
        raise ChecksumMismatch(
            f"{plain(name, 80)} has no checksum", expected="sha256:<64 hex>", received=plain(checksum, 80)
        )
    found = hashlib.sha256(data).hexdigest()
    if not hmac.compare_digest(found, match[1]):
        raise ChecksumMismatch(
            f"{plain(name, 80)} is not what was announced", expected=checksum, received=f"sha256:{found}"
        )
    if size is not None and size != len(data):
        raise ChecksumMismatch(
            f"{plain(name, 80)} has another size", expected=plain(size, 20), received=len(data)
        )


def _check_signature(found: str, signature: Any, wallet: str, field: str) -> None:
    try:
        Eip191Verifier().verify(found, signature, wallet, field=field)
    except SignatureInvalid as fault:
        raise ContractRefused(
            "a signature on the contract is not right", field=field, expected=plain(wallet, 60)
        ) from fault


def _first_difference(ours: Any, theirs: Any, path: str = "") -> str:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in sorted({*ours, *theirs}):
            if key not in ours or key not in theirs or ours[key] != theirs[key]:
                inner = f"{path}.{key}" if path else str(key)
                return _first_difference(ours.get(key), theirs.get(key), inner)
    return plain(path or "$", 200)


def _differs(field: str, expected: Any, received: Any) -> OfferRefused:
    return OfferRefused(field=field, expected=expected, received=plain(received, 120))
