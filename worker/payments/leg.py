"""Legs as the leg ledger stores them: refunds and platform fees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# From this many failures on, a leg is reported to the operator.
KEEPS_FAILING = 5
STORED_FIELDS = (
    "state",
    "amount",
    "ordinal",
    "reason",
    "code",
    "cause",
    "tx",
    "how",
    "receipt",
    "payload",
    "valid_before",
    "calls",
    "settled",
    "failures",
)


class LegKind(StrEnum):
    """Purpose of a leg."""

    FEE = "fee"
    REFUND = "refund"


class LegState(StrEnum):
    """State of a leg. A leg that a facilitator refused for good stays due and is listed."""

    DUE = "due"
    SETTLING = "settling"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class LegKey:
    """Identifies a leg: a refund of an execution's payment, or a fee leg of a wallet (its `id`)."""

    kind: LegKind
    id: str
    number: int

    @property
    def member(self) -> str:
        return f"{self.kind} {self.id} {self.number}"

    @classmethod
    def parse(cls, member: str) -> LegKey | None:
        """None for fees that are still accumulating."""
        parts = member.split(" ")
        return cls(LegKind(parts[0]), parts[1], int(parts[2])) if len(parts) == 3 else None


@dataclass(frozen=True, slots=True)
class Leg:
    """One leg in the ledger; amounts in atomic units, `settled` in microseconds."""

    name: LegKey
    state: LegState
    amount: int
    ordinal: int
    reason: str = ""
    code: str = ""
    cause: str = ""
    transaction: str = ""
    how: str = ""
    receipt: str = ""
    payload: str = ""
    valid_before_s: int = 0
    calls: int = 0
    settled: int = 0
    failures: int = 0

    @classmethod
    def read(cls, name: LegKey, raw: Mapping[str, str]) -> Leg:
        """Parses `STORED_FIELDS`."""
        return cls(
            name=name,
            state=LegState(raw["state"]),
            amount=int(raw.get("amount", "0")),
            ordinal=int(raw.get("ordinal", "0")),
            reason=raw.get("reason", ""),
            code=raw.get("code", ""),
            cause=raw.get("cause", ""),
            transaction=raw.get("tx", ""),
            how=raw.get("how", ""),
            receipt=raw.get("receipt", ""),
            payload=raw.get("payload", ""),
            valid_before_s=int(raw.get("valid_before", "0")),
            calls=int(raw.get("calls", "0")),
            settled=int(raw.get("settled", "0")),
            failures=int(raw.get("failures", "0")),
        )

    @property
    def keeps_failing(self) -> bool:
        """Whether it needs the operator's attention: refused, or failed repeatedly."""
        return self.state is LegState.REFUSED or (
            self.state is not LegState.SETTLED and self.failures >= KEEPS_FAILING
        )


@dataclass(frozen=True, slots=True)
class RefundFacts:
    """The source of a refund leg: the payment to refund, and its contract."""

    payer: str
    payment_key: str
    payment: str
    network: str
    asset: str
    reason: str
    contract_hash: str


@dataclass(frozen=True, slots=True)
class LegLease:
    """Lease to settle one leg. Without a payload nothing was sent yet and the leg must be signed."""

    at: int
    ordinal: int
    amount: int
    valid_before_s: int
    payload: bytes = b""
    requirements: bytes = b""
    earlier_unknown: bool = False


@dataclass(frozen=True, slots=True)
class RefundRecord:
    """One paid refund, with our signed statement about it if both hashes are known."""

    ordinal: int
    amount: int
    transaction: str
    how: str
    signed: str
