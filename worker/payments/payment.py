"""Payments as the ledger stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from worker.core.states import State
from worker.payments.packed_payment import unpack_response
from worker.store.money_fields import payment_field

# A refused payment's record is permanent, and signing an authorization without funds costs nothing. Sealed
# work waits for its pay, so that more tries are worth their bytes.
MOST_PAYMENTS, MOST_PAYMENTS_SEALED = 20, 100


class PaymentState(StrEnum):
    CLAIMED = "claimed"
    VERIFIED = "verified"
    SETTLING = "settling"
    UNKNOWN = "unknown"
    SETTLED = "settled"
    REFUSED = "refused"
    RELEASED = "released"

    @property
    def ended(self) -> bool:
        return self in (PaymentState.SETTLED, PaymentState.REFUSED, PaymentState.RELEASED)


@dataclass(frozen=True, slots=True)
class Payment:
    """One payment in the ledger; `pending` is a hash named before its outcome was known.

    `proof`, once the chain was asked about a settlement, is 'proven' or 'unproven'; `sent_again` is the hash
    named when the chain did not have the first.
    """

    number: int
    state: PaymentState
    payer: str
    amount: int
    valid_before_s: int
    transaction: str = ""
    pending: str = ""
    response: str = ""
    code: str = ""
    how: str = ""
    calls: int = 0
    # Who holds the lease of its settlement call, or held the last one.
    holder: str = ""
    claimed: int = 0
    settled: int = 0
    proof: str = ""
    sent_again: str = ""
    cause: str = ""
    refund: str = ""
    refund_amount: int = 0

    @classmethod
    def read(cls, raw: Mapping[str, str], number: int) -> Payment:
        """From the money hash of an execution."""

        own = payment_field(number, "")

        def get(name: str, default: str = "") -> str:
            return raw.get(own + name, default)

        return cls(
            number=number,
            state=PaymentState(get("state")),
            payer=get("payer"),
            amount=int(get("amount", "0")),
            valid_before_s=int(get("valid_before", "0")),
            transaction=get("tx"),
            pending=get("hash"),
            response=unpack_response(get("response"), get("key"), get("tx")),
            code=get("code"),
            how=get("how"),
            calls=int(get("calls", "0")),
            holder=get("token"),
            claimed=int(get("claimed", "0")),
            settled=int(get("settled", "0")),
            proof=get("proof"),
            sent_again=get("sent_again"),
            cause=get("cause"),
            refund=get("refund state"),
            refund_amount=int(get("refund amount", "0")),
        )


@dataclass(frozen=True, slots=True)
class ExecutionMoney:
    """All payments of one execution; `current` is the one that counts now."""

    contract_ref: str
    mode: str
    payments: tuple[Payment, ...] = ()
    current: int = 0
    paid: int = 0

    @classmethod
    def read(cls, raw: Mapping[str, str]) -> ExecutionMoney:
        """From the money hash of an execution."""
        count = int(raw.get("count", 0))
        return cls(
            contract_ref=raw["contract"],
            mode=raw["mode"],
            payments=tuple(Payment.read(raw, number) for number in range(1, count + 1)),
            current=int(raw.get("current", 0)),
            paid=int(raw.get("paid", 0)),
        )

    def payment(self, number: int | None = None) -> Payment | None:
        number = self.current if number is None else number
        return self.payments[number - 1] if 0 < number <= len(self.payments) else None


@dataclass(frozen=True, slots=True)
class Bought:
    """The permanent record of a payment whose execution was removed. Times in us."""

    contract_ref: str
    state: PaymentState
    settled: int
    transaction: str
    ended: int
    outcome: State
    refunded: bool

    @classmethod
    def read(cls, binding: Sequence[str]) -> Bought | None:
        """Parses the value of a payment key; None while the execution is kept, or for an unknown key."""
        if len(binding) < 9:
            return None
        _, _, ref, state, settled, transaction, ended, outcome, refund = binding[:9]
        return cls(
            contract_ref=ref,
            state=PaymentState(state),
            settled=int(settled),
            transaction="" if transaction == "-" else transaction,
            ended=int(ended),
            outcome=State(outcome),
            refunded=refund == "settled",
        )
