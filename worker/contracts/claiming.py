"""What a claim binds together: payment, contract and input, and the execution that they make."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from worker.agents.declare import Capability
from worker.agents.output import encode
from worker.contracts.book import Contract
from worker.contracts.task import Body
from worker.contracts.terms import BEFORE_WORK
from worker.delivery.files import Files
from worker.delivery.webhooks import Hook
from worker.errors import Problem
from worker.executions.service import lane_of
from worker.executions.states import Phase
from worker.executions.store import New
from worker.ids import new_id
from worker.payments.ledger import Claim, Ledger
from worker.payments.legs import split_fee
from worker.payments.offer import Offer
from worker.payments.windows import Rules
from worker.payments.wire import Payment, payment_key

INLINE_BYTES = 32 * 1024


@dataclass(frozen=True)
class Budget:
    """Unpaid work is bounded: what one wallet may have open, of all places too, and what it did not pay."""

    most_open: int = 20
    share: float = 0.25
    most_refused: int = 5


@dataclass(frozen=True)
class Claims:
    """Makes claims; what came of one is the script's answer."""

    ledger: Ledger
    files: Files
    rules: Rules
    budget: Budget
    queue_limit: int

    def make(
        self,
        contract: Contract,
        capability: Capability,
        body: Body,
        offer: Offer,
        payment: Payment,
        hooks: Sequence[Hook] = (),
    ) -> tuple[str, list[bytes]]:
        """The id that the execution has if the claim succeeds, and the answer of claim.lua."""
        before = self.ledger.input_ref(contract.execution) if contract.execution else b""
        input, input_ref = self.pack(body.value)
        new = New(
            id=contract.execution or new_id(),
            agent=capability.name,
            door="hire",
            lane=lane_of(capability),
            input=input,
            input_ref=input_ref,
            labels={"door": "hire", "contract_ref": contract.ref},
            timeout_us=0,
            run_limit_us=int(capability.time_limit * 1e6),
            attempts=capability.attempts,
            phase=Phase.VERIFYING,
            digest=body.digest,
        )
        fields = self._record(new, capability, contract)
        if hooks:
            fields["hooks"] = encode([hook.stored() for hook in hooks])
        labels = encode(dict(new.labels))
        created = b'{"agent_id":%s,"input":%s,"labels":%s}' % (encode(new.agent), new.input, labels)
        reply = self.ledger.claim(new, self._claim(contract, offer, payment), fields, created)
        self.drop_unused(new.id, before, input_ref)
        return new.id, reply

    def pack(self, value: Any) -> tuple[bytes, bytes]:
        """An input as the record holds it: itself, or a reference to the file that it was put into."""
        blob = encode(value)
        if len(blob) <= INLINE_BYTES:
            return blob, b""
        ref = self.files.put(blob, name="input.json", mime="application/json")
        return b"null", encode(asdict(ref))

    def drop_unused(self, id: str, *refs: bytes) -> None:
        """Deletes those of an execution's input files that its record does not name: nobody else would."""
        if not any(refs):
            return
        kept = self.ledger.input_ref(id)
        for ref in refs:
            if ref and ref != kept:
                # A claim stands, whatever becomes of a file.
                with suppress(Problem):
                    self.files.delete(json.loads(ref)["key"])

    def _claim(self, contract: Contract, offer: Offer, payment: Payment) -> Claim:
        terms = contract.terms
        return Claim(
            contract_ref=contract.ref,
            payment_key=payment_key(payment),
            identifier=payment.identifier or "",
            payer=payment.authorization.payer,
            amount=offer.amount,
            payload=payment.stored(),
            requirements=json.dumps(offer.requirements(), separators=(",", ":")),
            valid_before_s=payment.authorization.valid_before,
            mode=terms.settlement,
            fee=split_fee(offer.amount, Decimal(terms.fee_percentage)).fee,
            fee_wallet=terms.fee_wallet.lower(),
            deadline_us=terms.deadline,
            latency_us=None if terms.max_latency_ms is None else terms.max_latency_ms * 1000,
            most_open=min(self.budget.most_open, max(1, int(self.budget.share * self.queue_limit))),
            most_refused=self.budget.most_refused,
        )

    def _record(self, new: New, capability: Capability, contract: Contract) -> dict[str, Any]:
        terms = contract.terms
        context = {
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
        fields: dict[str, Any] = {
            "input": new.input,
            "input_ref": new.input_ref,
            "agent": new.agent,
            "door": new.door,
            "labels": encode(dict(new.labels)),
            "attempts": new.attempts,
            "run_limit": new.run_limit_us,
            "context": encode(context),
            "version": capability.version,
            "retries": terms.retries,
            "before_work": "1" if terms.settlement == BEFORE_WORK else "",
            "settle_margin": self.rules.settle_margin_s * 1_000_000,
            "contract_created": terms.created_at,
        }
        if terms.max_latency_ms is not None:
            fields["latency"] = terms.max_latency_ms * 1000
        return fields
