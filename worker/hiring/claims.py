"""Builds claims: a claim binds payment, contract and input to a new execution."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from worker.capabilities.declare import Capability
from worker.contracts.book import CLOCKS_DIFFER_US, Contract
from worker.contracts.terms import BEFORE_WORK
from worker.core.errors import Problem
from worker.core.ids import new_id
from worker.core.json import encode
from worker.core.states import Lane, Phase
from worker.engine.creation import NewExecution
from worker.files.store import Files
from worker.hiring.order import Order
from worker.payments.answers import ClaimAnswer
from worker.payments.budget import Allowance
from worker.payments.claim import ANY_QUEUE, Claim
from worker.payments.fees import split_fee
from worker.payments.ledger import Ledger
from worker.store.data_model import CONTRACT_LABEL, HIRE_LABELS
from worker.store.scripts import Reply, Value
from worker.x402.windows import WindowRules, longest_validity

INLINE_BYTES = 32 * 1024
# Longer inputs go to the record only, because the log keeps what a refused payment put there.
LOGGED_INPUT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim to make, and the input files that the record refers to then, and refers to now."""

    id: str
    values: Mapping[str, Value]
    input_ref: bytes
    before: bytes


@dataclass(frozen=True, slots=True)
class MadeClaim:
    """The answer of claim.lua."""

    id: str
    reply: Reply[ClaimAnswer]

    @property
    def begun(self) -> bool:
        """Whether it is recorded, too, that the payment is verified: the work has begun."""
        return self.reply.text(2) == "1"


@dataclass(frozen=True)
class Claims:
    """Makes claims; claim.lua decides the result."""

    ledger: Ledger
    files: Files
    rules: WindowRules
    allowance: Allowance
    asker: str

    def prepare(
        self,
        order: Order,
        *,
        most_ahead: int = ANY_QUEUE,
        assumed_us: int | None = None,
    ) -> PreparedClaim:
        """Everything that the claim stores; a long input is stored already."""
        contract, capability, body = order.contract, order.capability, order.body
        before = self.ledger.input_ref(contract.execution) if contract.execution else b""
        input, input_ref = self.pack(body.value)
        new = NewExecution(
            id=contract.execution or new_id(),
            agent=capability.name,
            door=contract.door,
            lane=order.lane,
            input=input,
            input_ref=input_ref,
            labels=_labels(order),
            timeout_us=0,
            run_limit_us=int(capability.time_limit * 1e6),
            attempts=capability.attempts,
            phase=Phase.VERIFYING,
            digest=body.digest,
        )
        fields = self._record(new, capability, contract)
        fields["body"] = body.mark
        if order.hooks:
            fields["hooks"] = encode([hook.stored() for hook in order.hooks])
        labels = encode(dict(new.labels))
        if not self._named_already(new):
            fields["labels"] = labels
        logged = new.input if len(new.input) <= LOGGED_INPUT_BYTES else b"null"
        created = b'{"agent_id":%s,"input":%s,"labels":%s}' % (encode(new.agent), logged, labels)
        claim = self._claim(order, most_ahead, assumed_us)
        values = self.ledger.claim_values(new, claim, fields, created)
        return PreparedClaim(new.id, values, input_ref, before)

    def make(self, prepared: PreparedClaim, *, verified: bool = False, waits: bool = False) -> MadeClaim:
        """Makes the claim; the execution's id is valid if it succeeds.

        `verified`: its first payment is, and a request `waits` for it in this process.
        """
        reply = self.ledger.claim(prepared.values, verified=verified, waits=waits)
        self.drop_unused(prepared.id, prepared.before, prepared.input_ref)
        return MadeClaim(prepared.id, reply)

    def pack(self, value: Any) -> tuple[bytes, bytes]:
        """Returns an input as the record stores it: inline, or as a reference to a file."""
        blob = encode(value)
        if len(blob) <= INLINE_BYTES:
            return blob, b""
        ref = self.files.put(blob, name="input.json", mime="application/json")
        return b"null", encode(asdict(ref))

    def drop_unused(self, id: str, *refs: bytes) -> None:
        """Deletes input files that the execution's record does not reference; nothing else does."""
        if not any(refs):
            return
        current = self.ledger.input_ref(id)
        for ref in refs:
            if ref and ref != current:
                # The claim is valid even if the file cannot be deleted.
                with suppress(Problem):
                    self.files.delete(json.loads(ref)["key"])

    def _claim(self, order: Order, most_ahead: int, assumed_us: int | None) -> Claim:
        contract, offer, sent = order.contract, order.offer, order.sent
        terms = contract.terms
        return Claim(
            contract_ref=contract.ref,
            payment_key=sent.key,
            identifier=order.payment.identifier or "",
            payer=order.payer,
            amount=offer.amount,
            payload=sent.payload,
            requirements=sent.requirements,
            valid_before_s=order.payment.authorization.valid_before,
            mode=terms.settlement,
            fee=split_fee(offer.amount, Decimal(terms.fee_percentage)).fee,
            fee_wallet=terms.fee_wallet.lower(),
            deadline_us=terms.deadline,
            allowance=self._allowance(order),
            signed_us=contract.signed_us,
            longest_us=longest_validity(offer.max_timeout_s) * 1_000_000 + CLOCKS_DIFFER_US,
            most_ahead=most_ahead,
            assumed_us=assumed_us,
            asker=self.asker,
            document_hash=contract.hash,
            **(_with_document(order) if contract.is_purchase else {}),
        )

    def _allowance(self, order: Order) -> Allowance:
        if order.contract.is_purchase and not order.proves_payer:
            return self.allowance.of_unproven_payer()
        return self.allowance

    def _named_already(self, new: NewExecution) -> bool:
        """Whether door and contract are its labels; a remote agent's session reads only labels."""
        return tuple(new.labels) == HIRE_LABELS and new.lane is not Lane.REMOTE and self.ledger.packs

    def _record(self, new: NewExecution, capability: Capability, contract: Contract) -> dict[str, Any]:
        terms = contract.terms
        fields: dict[str, Any] = {
            "input": new.input,
            "input_ref": new.input_ref,
            "agent": new.agent,
            "door": new.door,
            "attempts": new.attempts,
            "run_limit": new.run_limit_us,
            "context": context_of(contract),
            "version": capability.version,
            "retries": terms.retries,
            "settle_margin": self.rules.settle_margin_s * 1_000_000,
            "contract_created": terms.created_at,
        }
        if terms.settlement == BEFORE_WORK:
            fields["before_work"] = "1"
        if terms.max_latency_ms is not None:
            fields["latency"] = terms.max_latency_ms * 1000
        return fields


def context_of(contract: Contract) -> bytes:
    """The parts of the contract that an agent sees."""
    terms = contract.terms
    return encode(
        {
            "terms": {
                "deadline": terms.deadline,
                "price": terms.price_text,
                "retries": terms.retries,
                "settlement": terms.settlement,
                "max_latency_ms": terms.max_latency_ms,
            },
            "output_schema": terms.output_schema,
            "input_schema": terms.input_schema,
        }
    )


def _labels(order: Order) -> dict[str, str]:
    contract = order.contract
    labels = {"door": contract.door, CONTRACT_LABEL: contract.ref}
    if contract.is_purchase and order.proves_payer:
        # Only a wallet with a key can sign in for its list; nobody else may add entries.
        labels["payer"] = order.payer
    return labels


def _with_document(order: Order) -> dict[str, Any]:
    """The purchase's own data, which the claim is the first to store."""
    # Under a signature that we cannot check, a stranger may name any wallet but not take its identifiers.
    named = "payer" if order.proves_payer else "unproven"
    return {
        "document": order.contract.text,
        "drafted_us": order.contract.terms.created_at,
        "identifier_scope": f"{named}:{order.payer}",
    }
