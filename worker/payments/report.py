"""Recomputes all money totals from the journal and checks them against the counters. Values only.

claimed = settled + refused + released + open, and settled = kept + fees + refunds. Fees and refunds
count from when they are owed. `kept` may be below zero where a delivered payment was refunded in full
and its fee is still owed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields

from worker.x402.payment_keys import PaymentKey

_ENDED = ("settled", "refused", "released")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One journal fact."""

    at: int
    fact: str
    id: str
    number: int
    amount: int
    detail: str


def read_line(text: str) -> JournalEntry:
    at, fact, id, number, amount, detail = text.split(" ", 5)
    return JournalEntry(int(at), fact, id, int(number), int(amount), detail)


@dataclass(slots=True)
class PaymentRow:
    """One payment according to the journal."""

    id: str
    number: int
    payer: str
    claimed_at: int
    amount: int
    state: str = "claimed"
    was_unknown: bool = False
    presumed: bool = False
    unproven: bool = False
    fee: int = 0
    refunds: int = 0
    refunds_paid: int = 0

    @property
    def outcome(self) -> str:
        return self.state if self.state in _ENDED else "open"


@dataclass(slots=True)
class Totals:
    """Sums over payments, in atomic units."""

    payments: int = 0
    claimed: int = 0
    settled: int = 0
    refused: int = 0
    released: int = 0
    open: int = 0
    fees: int = 0
    refunds: int = 0
    kept: int = 0

    def add(self, row: PaymentRow) -> None:
        self.payments += 1
        self.claimed += row.amount
        setattr(self, row.outcome, getattr(self, row.outcome) + row.amount)
        self.fees += row.fee
        self.refunds += row.refunds
        if row.outcome == "settled":
            self.kept += row.amount - row.fee - row.refunds

    @classmethod
    def names(cls) -> list[str]:
        return [each.name for each in fields(cls)]


@dataclass
class JournalReport:
    """The journal, read from its beginning."""

    rows: dict[tuple[str, int], PaymentRow] = field(default_factory=dict)
    fees_paid: int = 0
    fees_by_wallet: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    fixed_by_wallet: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    strays: list[JournalEntry] = field(default_factory=list)

    def read(self, lines: Iterable[str]) -> JournalReport:
        """Adds the facts of these lines."""
        for line in lines:
            self._take(read_line(line))
        return self

    def _take(self, line: JournalEntry) -> None:
        if line.fact == "claimed":
            payer = PaymentKey.parse(line.detail).payer
            self.rows[line.id, line.number] = PaymentRow(line.id, line.number, payer, line.at, line.amount)
        elif line.fact == "fee_fixed":
            self.fixed_by_wallet[line.id] += line.amount
        elif line.fact == "fee_settled":
            self.fees_paid += line.amount
        elif line.fact.endswith(("_unknown_payment", "_unknown_leg")):
            self.strays.append(line)
        elif (row := self.rows.get((line.id, line.number))) is not None:
            self._change(row, line)

    def _change(self, row: PaymentRow, line: JournalEntry) -> None:
        match line.fact:
            case "verified" | "settling" | "settled" | "refused" | "released":
                row.state = line.fact
            case "unknown":
                row.state, row.was_unknown = line.fact, True
            case "presumed":
                row.presumed = True
            case "unproven":
                row.unproven = True
            case "fee_due":
                row.fee += line.amount
                self.fees_by_wallet[line.detail] += line.amount
            case "refund_due":
                row.refunds += line.amount
            case "refund_settled":
                row.refunds_paid += line.amount

    def totals(self) -> Totals:
        return _sum(self.rows.values())

    def grouped(self, key: Callable[[PaymentRow], str]) -> dict[str, Totals]:
        """Totals grouped by `key` of each payment, in key order."""
        groups: dict[str, list[PaymentRow]] = defaultdict(list)
        for row in self.rows.values():
            groups[key(row)].append(row)
        return {name: _sum(groups[name]) for name in sorted(groups)}


def imbalances(books: JournalReport, counters: Mapping[str, int], gathered: Mapping[str, int]) -> list[str]:
    """Everything that does not add up; `counters` and `gathered` fees are from the same moment."""
    totals = books.totals()
    wrong = []
    if totals.claimed != totals.settled + totals.refused + totals.released + totals.open:
        wrong.append("claimed is not settled + refused + released + open")
    if totals.settled != totals.kept + totals.fees + totals.refunds:
        wrong.append("settled is not kept + fees + refunds")
    refunds_paid = sum(row.refunds_paid for row in books.rows.values())
    expected = {name: getattr(totals, name) for name in ("claimed", "settled", "refused", "released", "open")}
    expected |= {"refunds_due": totals.refunds - refunds_paid, "refunds_paid": refunds_paid}
    expected |= {"fees_due": totals.fees - books.fees_paid, "fees_paid": books.fees_paid}
    for name, amount in expected.items():
        if counters.get(name, 0) != amount:
            wrong.append(f"the counter {name} is {counters.get(name, 0)}, the journal says {amount}")
    for wallet in sorted({*books.fees_by_wallet, *books.fixed_by_wallet, *gathered}):
        owed = books.fees_by_wallet.get(wallet, 0) - books.fixed_by_wallet.get(wallet, 0)
        if owed != gathered.get(wallet, 0):
            wrong.append(f"{wallet} has {gathered.get(wallet, 0)} gathered, the journal says {owed}")
    for row in books.rows.values():
        if row.refunds > row.amount or row.refunds_paid > row.refunds:
            wrong.append(f"payment {row.id} {row.number} gave back more than it may")
    return wrong


def _sum(rows: Iterable[PaymentRow]) -> Totals:
    totals = Totals()
    for row in rows:
        totals.add(row)
    return totals
