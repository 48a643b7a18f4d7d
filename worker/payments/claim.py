"""A claim: everything that binds a payment to the work that it buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.engine.creation import NewExecution
from worker.payments.budget import Allowance
from worker.payments.payment import MOST_PAYMENTS, MOST_PAYMENTS_SEALED
from worker.payments.retry_delays import SECOND_US
from worker.store.scripts import Arg, Value

# The clock repeats a verification that was not finished in this time.
VERIFY_US = 20 * SECOND_US
FAR_US = 2**53
ANY_QUEUE = 2**53


@dataclass(frozen=True, slots=True)
class Claim:
    """Everything that a claim binds together. JSON as text, times in microseconds."""

    contract_ref: str
    payment_key: str
    identifier: str
    payer: str
    amount: int
    payload: str
    requirements: str
    valid_before_s: int
    mode: str
    fee: int
    fee_wallet: str
    deadline_us: int
    allowance: Allowance
    # When both parties had signed, and for how long after a claim its authorization may land.
    signed_us: int = FAR_US
    longest_us: int = 0
    # Of the contract as the caller knows it.
    document_hash: str = ""
    # For a purchase, which is stored with its claim: document and time.
    document: str = ""
    drafted_us: int = 0
    # Scope in which a payment-identifier is unique; by default the contract.
    identifier_scope: str = ""
    # How many executions may be ahead of it.
    most_ahead: int = ANY_QUEUE
    # The time of which the rest was assumed, if it was not read.
    assumed_us: int | None = None
    # Channel on which this process is told what its requests must do.
    asker: str = ""

    def values(
        self,
        new: NewExecution,
        fields: Mapping[str, Arg],
        created: bytes,
        *,
        indexes: Sequence[str],
        document: str,
        writer: str,
    ) -> dict[str, Value]:
        """What claim.lua is called with. `fields` of the record; `created`: payload of its first event."""
        replaceable: dict[str, Arg] = {"input": new.input, "input_ref": new.input_ref}
        if "context" in fields:
            replaceable["context"] = fields["context"]
        apart = {*replaceable, "hooks"}
        rest = {name: value for name, value in fields.items() if name not in apart}
        pairs: list[Arg] = [part for pair in [*replaceable.items(), *rest.items()] for part in pair]
        return {
            "id": new.id,
            "indexes": indexes,
            "key": self.payment_key,
            "payer": self.payer.lower(),
            "amount": self.amount,
            "payload": self.payload,
            "requirements": self.requirements,
            "valid_before": self.valid_before_s,
            "identifier": self.identifier,
            "identifier_scope": self.identifier_scope or self.contract_ref,
            "digest": new.digest,
            "lane": new.lane,
            "mode": self.mode,
            "fee": self.fee,
            "fee_wallet": self.fee_wallet,
            "contract": self.contract_ref,
            "deadline": self.deadline_us,
            "verify_by": VERIFY_US,
            "allowance": str(self.allowance),
            "created": created,
            "hooks": fields.get("hooks", b""),
            "changeable": len(replaceable),
            "most_payments": MOST_PAYMENTS,
            "most_payments_sealed": MOST_PAYMENTS_SEALED,
            "writer": writer,
            "signed": self.signed_us,
            "longest": self.longest_us,
            "document": document,
            "hash": self.document_hash,
            "drafted": self.drafted_us,
            "most_ahead": self.most_ahead,
            "assumed": "" if self.assumed_us is None else self.assumed_us,
            "asker": self.asker,
            "fields": pairs,
        }
