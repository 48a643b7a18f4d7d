"""Verifies a file of evidence offline: every signature and every digest in it.

Without a network it cannot verify that the transaction is on the chain; the findings name the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.contracts.signatures import (
    Eip191Verifier,
    decode_signature,
    recover_digest,
    recover_text,
)
from worker.core.canonical import digest as canonical_digest
from worker.core.errors import BadRequest, Forbidden, Problem
from worker.core.evm import same_address
from worker.hiring.evidence import DELIVERY, DELIVERY_DOMAIN, KIND, authorization_text
from worker.x402.networks import find_network
from worker.x402.typed_data import Authorization, digest, receipt_digest, transfer_digest


class EvidenceInvalid(Problem):
    code, status = "EVIDENCE_INVALID", 422
    message = "the evidence does not hold"
    advice = "Fetch the file again from the worker; if it stays wrong, do not rely on it."


def check_evidence(document: Any) -> list[str]:
    """Return what the file proves, one sentence each; raises `EvidenceInvalid` at the first error."""
    try:
        return _findings(document)
    except (KeyError, TypeError, ValueError, AttributeError, BadRequest, Forbidden) as fault:
        raise EvidenceInvalid("a part of the evidence is missing or malformed") from fault


def check_input(document: Mapping[str, Any], task_input: Any) -> None:
    """Refuse an input other than the one in the evidence."""
    expected = document["delivery"]["payload"]["input"]
    _same("input", expected, canonical_digest(task_input))


def _findings(document: Any) -> list[str]:
    if not isinstance(document, dict) or (document.get("type"), document.get("version")) != (KIND, 1):
        raise EvidenceInvalid(field="type", expected=f"{KIND}, version 1")
    delivery = document["delivery"]["payload"]
    terms = document["terms"]
    wallet = terms["parties"]["worker"]["wallet"]
    signer = document["signer"]["address"]
    statement = digest(DELIVERY_DOMAIN, DELIVERY, delivery)
    _signed_by("delivery.signature", signer, statement, document["delivery"]["signature"])
    found = [f"{signer} signed the delivery of {delivery['execution']} ({delivery['outcome']})"]
    if not same_address(signer, wallet):
        allowed = recover_text(authorization_text(signer, wallet), document["signer"]["authorization"])
        _same_wallet("signer.authorization", wallet, allowed)
        found.append(f"the worker's wallet {wallet} lets that key sign")
    _same("outputs", delivery["outputs"], canonical_digest(document["outputs"]))
    _same("terms", delivery["terms"], canonical_digest(terms))
    found.append(f"{len(document['outputs'])} outputs and the terms are those that it names")
    found += _contract(terms)
    if "payment" in document:
        found += _payment(document["payment"], delivery, wallet)
    elif delivery["transaction"] or delivery["amount"] != "0":
        raise EvidenceInvalid(field="payment", expected="the payer's authorization", received="nothing")
    if "receipt" in document:
        found += _receipt(document["receipt"], delivery, (signer, wallet))
    return found


def _contract(terms: Mapping[str, Any]) -> list[str]:
    if "signatures" not in terms:
        return []
    for party in ("worker", "seeker"):
        wallet = terms["parties"][party]["wallet"]
        Eip191Verifier().verify(terms["hash"], terms["signatures"][party], wallet, field=f"terms.{party}")
    return [f"both parties signed the contract with the hash {terms['hash']}"]


def _payment(payment: Mapping[str, Any], delivery: Mapping[str, Any], wallet: str) -> list[str]:
    wire = payment["authorization"]
    authorization = Authorization(
        payer=wire["from"],
        to=wire["to"],
        value=int(wire["value"]),
        valid_after=int(wire["validAfter"]),
        valid_before=int(wire["validBefore"]),
        nonce=wire["nonce"],
    )
    network = find_network(payment["network"])
    if network is None:
        raise EvidenceInvalid(field="payment.network", received=str(payment["network"])[:60])
    _same_wallet("payment.authorization.to", wallet, authorization.to)
    _same_wallet("payment.asset", network.asset, payment["asset"])
    for field, stated, shown in (
        ("payer", delivery["payer"], authorization.payer),
        ("payTo", delivery["payTo"], authorization.to),
        ("amount", delivery["amount"], str(authorization.value)),
        ("network", delivery["network"], payment["network"]),
        ("asset", delivery["asset"], payment["asset"]),
    ):
        _same(f"delivery.{field}", stated, shown)
    text = payment["signature"]
    if len(text) != 132:
        return ["the payer's signature is a smart wallet's, which only the chain can check"]
    _signed_by("payment.signature", authorization.payer, transfer_digest(network.domain, authorization), text)
    moved = f"{authorization.value} atomic units from {authorization.payer} to {authorization.to}"
    return [
        f"the payer authorized {moved}",
        f"the worker names the transaction {delivery['transaction']}; look it up on {network.caip2}",
    ]


def _receipt(receipt: Mapping[str, Any], delivery: Mapping[str, Any], signers: tuple[str, str]) -> list[str]:
    payload = receipt["payload"]
    found = recover_digest(receipt_digest(payload), decode_signature(receipt["signature"]))
    if not any(same_address(found, each) for each in signers):
        raise EvidenceInvalid(field="receipt.signature", expected=signers[0], received=found)
    _same("receipt.transaction", delivery["transaction"], payload["transaction"])
    _same_wallet("receipt.payer", delivery["payer"], payload["payer"])
    return ["the x402 receipt is signed and names the same payment"]


def _signed_by(field: str, signer: str, signed: bytes, signature: Any) -> None:
    _same_wallet(field, signer, recover_digest(signed, decode_signature(signature)))


def _same_wallet(field: str, expected: str, received: str) -> None:
    if not same_address(expected, received):
        raise EvidenceInvalid(field=field, expected=expected, received=received)


def _same(field: str, expected: str, received: str) -> None:
    if expected != received:
        raise EvidenceInvalid(field=field, expected=str(expected)[:100], received=str(received)[:100])
