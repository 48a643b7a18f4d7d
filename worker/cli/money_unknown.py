"""`worker money unknown`: a line for each payment, leg and transfer that is not resolved."""

from __future__ import annotations

from collections.abc import Iterator

from worker.cli.money_found import found_lines
from worker.core.amounts import to_text
from worker.engine.events import iso
from worker.payments.leg import Leg
from worker.payments.report import JournalReport
from worker.payments.unresolved import UnresolvedMoney, UnresolvedPayment

_SETTLED = {
    "unproven": "settled, but unproven: the chain never had it",
    "presumed": "settled, but only presumed",
}


def unknown_lines(unresolved: UnresolvedMoney, books: JournalReport) -> Iterator[str]:
    """One line per item that waits for a response or for the operator."""
    yield from map(_payment, unresolved.payments(books))
    for leg in unresolved.legs():
        why = " ".join(filter(None, (leg.code or leg.cause, _failures(leg))))
        yield f"leg  {leg.name.member}  {to_text(leg.amount)}  {leg.state}  {why}".rstrip()
    yield from found_lines(unresolved)


def _payment(each: UnresolvedPayment) -> str:
    row = each.row
    standing = _SETTLED.get(each.standing, f"{each.standing}  since {iso(row.claimed_at)}")
    return f"payment  {row.id} {row.number}  {to_text(row.amount)}  {standing}"


def _failures(leg: Leg) -> str:
    return f"(failed {leg.failures} times)" if leg.keeps_failing and leg.failures else ""
