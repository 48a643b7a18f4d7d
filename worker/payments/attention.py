"""Lists items that need the operator's attention, one line each: for readiness, doctor and `worker money`."""

from __future__ import annotations

from worker.payments.audit import AuditBook
from worker.payments.leg_ledger import LegLedger
from worker.payments.listings import ListingBook


def attention(legs: LegLedger, audits: AuditBook, listings: ListingBook) -> dict[str, str]:
    """Lines by subject; empty when all is well. None of them stops the worker."""
    found = {}
    failing = legs.failing()
    if failing:
        worst = failing[0]
        why = worst.code or worst.cause or "no answer"
        found["legs"] = f"{len(failing)} keep failing, such as {worst.name.member}: {worst.state}, {why}"
    unproven = audits.counts()[1]
    if unproven:
        found["unproven"] = f"{unproven} settlements are not on the chain; see `worker money unknown`"
    warnings = listings.warnings()
    if warnings:
        more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
        found["listing"] = f"{warnings[0]}{more}; see `worker listing`"
    return found
