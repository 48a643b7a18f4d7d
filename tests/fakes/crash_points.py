"""The named crash points of a payment, in the order in which a process passes them."""

from __future__ import annotations

POINTS = (
    "before_claim",
    "after_claim",
    "before_verify",
    "after_verify",
    "after_verified",
    "before_settle_begin",
    "after_settle_begin",
    "before_settle",
    "after_settle",
    "before_settled",
    "after_outcome",
)
