"""Evidence of an ended task: one file that a third party can check without us.

The worker signs a `Delivery`: terms, input, outputs, amount and times. The file also has the hashed data
(outputs and terms, never a credential), the payer's own authorization, and x402's receipt. `evidence_check`
verifies all of it offline.

The EIP-712 domain is {name "hire delivery", version "1", chainId 1}. Digests are sha256 of canonical JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.contracts.signatures import sign_text
from worker.core.canonical import digest as canonical_digest
from worker.core.errors import Conflict
from worker.core.states import State
from worker.delivery.deliverables import Deliverables
from worker.hiring.task import Task
from worker.payments.payment import Payment
from worker.x402.receipts import OFFER_RECEIPT, Sign, signed_statement
from worker.x402.typed_data import Domain, Struct
from worker.x402.wire import restore

KIND = "hire-evidence"
DELIVERY_DOMAIN = Domain("hire delivery", "1", 1)
DELIVERY = Struct(
    "Delivery",
    (
        ("version", "uint256"),
        ("execution", "string"),
        ("capability", "string"),
        ("outcome", "string"),
        ("terms", "string"),
        ("input", "string"),
        ("outputs", "string"),
        ("network", "string"),
        ("asset", "string"),
        ("payer", "string"),
        ("payTo", "string"),
        ("amount", "string"),
        ("transaction", "string"),
        ("attempts", "uint256"),
        ("createdAt", "uint256"),
        ("startedAt", "uint256"),
        ("endedAt", "uint256"),
        ("settledAt", "uint256"),
    ),
)
# Replaces the id in a document, because the id grants access to the result.
_TERMS = ("version", "created_at", "parties", "task", "terms", "sla")


class EvidenceNotReady(Conflict):
    code = "EVIDENCE_NOT_READY"
    message = "the task has not ended"
    advice = "Poll the task; there is evidence of it once it has ended."


@dataclass(frozen=True)
class Signer:
    """The key that signs statements, and the wallet's endorsement if it is another key."""

    address: str
    sign: Sign
    authorization: str = ""

    @classmethod
    def of(cls, address: str, sign: Sign, wallet: str, wallet_key: str | None) -> Signer:
        if wallet_key is None or address == wallet:
            return cls(address, sign)
        return cls(address, sign, sign_text(authorization_text(address, wallet), wallet_key))


def authorization_text(address: str, wallet: str) -> str:
    """What a wallet signs (EIP-191) to let another key sign statements for it."""
    return f"{address} signs offers, receipts and evidence for {wallet}"


@dataclass(frozen=True)
class Evidence:
    """Collects the evidence of a task from its record and its payment."""

    signer: Signer
    deliverables: Deliverables
    payload: Callable[[str, int], tuple[str, str]]

    def of(self, task: Task) -> dict[str, Any]:
        if not task.execution.state.terminal:
            raise EvidenceNotReady(charge_known=False)
        outputs = self._outputs(task)
        terms = _terms(task)
        paid = task.money.payment(task.money.paid)
        money = _Money.of(paid, *self.payload(task.execution.id, paid.number)) if paid else _Money()
        statement = _delivery(task, outputs, terms, money)
        document: dict[str, Any] = {
            "type": KIND,
            "version": 1,
            "delivery": signed_statement(DELIVERY_DOMAIN, DELIVERY, statement, self.signer.sign),
            "signer": {"address": self.signer.address},
            "terms": terms,
            "outputs": outputs,
        }
        if self.signer.authorization:
            document["signer"]["authorization"] = self.signer.authorization
        if money.authorization:
            document["payment"] = {
                "network": money.requirements["network"],
                "asset": money.requirements["asset"],
                "authorization": money.authorization,
                "signature": money.signature,
            }
        if paid is not None and (receipt := _receipt(paid)):
            document["receipt"] = receipt
        return document

    def _outputs(self, task: Task) -> list[dict[str, Any]]:
        if task.execution.state is not State.COMPLETED:
            return []
        listed = self.deliverables.parts(task.execution)
        return [{name: each[name] for name in ("name", "mime", "size", "checksum")} for each in listed]


@dataclass(frozen=True)
class _Money:
    """The transfer of the settled payment; empty without one."""

    requirements: Mapping[str, Any] = field(default_factory=dict)
    authorization: Mapping[str, Any] = field(default_factory=dict)
    signature: str = ""
    transaction: str = ""
    settled_s: int = 0

    @classmethod
    def of(cls, paid: Payment, payload: str, requirements: str) -> _Money:
        payment = restore(payload)
        return cls(
            json.loads(requirements),
            payment.authorization.to_wire(),
            payment.signature,
            paid.transaction,
            paid.settled // 1_000_000,
        )

    def statement(self) -> dict[str, Any]:
        terms, authorization = self.requirements, self.authorization
        return {
            "network": terms.get("network", ""),
            "asset": terms.get("asset", ""),
            "payer": authorization.get("from", ""),
            "payTo": authorization.get("to", ""),
            "amount": authorization.get("value", "0"),
            "transaction": self.transaction,
            "settledAt": self.settled_s,
        }


def _delivery(task: Task, outputs: Any, terms: Any, money: _Money) -> dict[str, Any]:
    execution = task.execution
    return {
        "version": 1,
        "execution": execution.id,
        "capability": execution.agent,
        "outcome": str(execution.state),
        "terms": canonical_digest(terms),
        "input": f"sha256:{execution.digest}",
        "outputs": canonical_digest(outputs),
        **money.statement(),
        "attempts": execution.attempt,
        "createdAt": execution.created // 1_000_000,
        "startedAt": execution.first_started // 1_000_000,
        "endedAt": execution.ended // 1_000_000,
    }


def _terms(task: Task) -> dict[str, Any]:
    """The contract or offer without its id, which is a credential; signatures of both prove its hash."""
    document = task.contract.document
    terms = {name: document[name] for name in _TERMS if name in document}
    terms["hash"] = task.contract.hash
    if "signatures" in document:
        terms["signatures"] = document["signatures"]
    return terms


def _receipt(paid: Payment) -> dict[str, Any] | None:
    if not paid.response:
        return None
    extensions = json.loads(paid.response).get("extensions", {})
    receipt: dict[str, Any] | None = extensions.get(OFFER_RECEIPT, {}).get("info", {}).get("receipt")
    return receipt
