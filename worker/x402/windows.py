"""The one calculation of payment windows: what must fit before work is offered.

The time needed is queue estimate + run limit + settle margin. It must fit into the payment window and
before the deadline; the same sum, without the queue, is checked again at the start of every attempt
(`may_begin` in `executions/lua/_common.lua`, where that is decided). Durations are whole seconds,
instants are microseconds of the store's clock, authorizations end in Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SECOND_US = 1_000_000
# Maximum wait for a process without a promised latency, unless the work itself is long.
PATIENCE_US = 120 * SECOND_US


class WindowReason(StrEnum):
    """Why work is not offered; callers see the names as codes."""

    DEADLINE_MISSED = "DEADLINE_MISSED"
    DEADLINE_TOO_SOON = "DEADLINE_TOO_SOON"
    WINDOW_TOO_SHORT = "WINDOW_TOO_SHORT"
    SLA_UNREACHABLE = "SLA_UNREACHABLE"
    AUTHORIZATION_TOO_SHORT = "AUTHORIZATION_TOO_SHORT"
    AUTHORIZATION_TOO_LONG = "AUTHORIZATION_TOO_LONG"


@dataclass(frozen=True, slots=True)
class WindowRules:
    """Limits from the operator's settings: the longest payment window and the reserves inside it.

    `settle_margin_s` is kept free after a run so that its settlement can land, `signing_s` is the time a
    payment may take from signing until it reaches us, `waiting_s` is the longest wait for a place.
    """

    max_window_s: int = 3_600
    settle_margin_s: int = 60
    signing_s: int = 30
    waiting_s: int = 900


@dataclass(frozen=True, slots=True)
class TimeTerms:
    """Time limits of a contract and its capability; None means no limit."""

    run_s: int
    deadline_us: int | None = None
    max_latency_ms: int | None = None


@dataclass(frozen=True, slots=True)
class OfferWindow:
    """Whether work can be offered now, the window to ask for and how much of it is really needed."""

    needed_s: int
    max_timeout_s: int
    reason: WindowReason | None = None


def payment_window(terms: TimeTerms, rules: WindowRules) -> int:
    """Return maxTimeoutSeconds.

    It depends on terms and settings only: a payment must name the number of an earlier 402, so
    a number that varied with the queue would refuse every honest payer.
    """
    run_s = _run_limit(terms)
    return min(rules.max_window_s, rules.signing_s + rules.waiting_s + run_s + rules.settle_margin_s)


def offer_window(now_us: int, queue_s: int, terms: TimeTerms, rules: WindowRules) -> OfferWindow:
    """Decide whether paid work that first waits `queue_s` can be finished and settled in time."""
    needed_s = queue_s + _run_limit(terms) + rules.settle_margin_s
    window_s = payment_window(terms, rules)
    usable_s = window_s - rules.signing_s
    return OfferWindow(needed_s, window_s, _offer_reason(now_us, queue_s, needed_s, usable_s, terms))


def _offer_reason(
    now_us: int, queue_s: int, needed_s: int, usable_s: int, terms: TimeTerms
) -> WindowReason | None:
    if terms.deadline_us is not None and now_us >= terms.deadline_us:
        return WindowReason.DEADLINE_MISSED
    if terms.max_latency_ms is not None and queue_s * 1_000 >= terms.max_latency_ms:
        return WindowReason.SLA_UNREACHABLE
    if needed_s > usable_s:
        return WindowReason.WINDOW_TOO_SHORT
    if terms.deadline_us is not None and now_us + needed_s * SECOND_US > terms.deadline_us:
        return WindowReason.DEADLINE_TOO_SOON
    return None


def allowed_wait_us(mean_us: int, terms: TimeTerms, rules: WindowRules) -> int:
    """Return the longest acceptable expected wait for a process.

    That is half of the available time: the expectation is a mean, so half of the waits are longer, and
    paying seekers must not suffer from those. The available time is the contract's latency minus the run.
    Without a latency it is two minutes, which most clients tolerate, or four runs of long work.
    """
    longest_us = min(rules.waiting_s * SECOND_US, max(PATIENCE_US, 4 * mean_us))
    if terms.max_latency_ms is not None:
        longest_us = min(longest_us, max(0, terms.max_latency_ms * 1_000 - mean_us))
    return longest_us // 2


def served_within_ms(mean_us: int, terms: TimeTerms, rules: WindowRules) -> int:
    """Return the time within which paid work is served, as stated in a 402."""
    if terms.max_latency_ms is not None:
        return terms.max_latency_ms
    return 2 * allowed_wait_us(mean_us, terms, rules) // 1_000 + terms.run_s * 1_000


def validity(valid_before_s: int, now_s: int, needed_s: int, max_timeout_s: int) -> WindowReason | None:
    """Decide whether an authorization is valid long enough to be settled, and not absurdly long."""
    left_s = valid_before_s - now_s
    if left_s < needed_s:
        return WindowReason.AUTHORIZATION_TOO_SHORT
    if left_s > longest_validity(max_timeout_s):
        return WindowReason.AUTHORIZATION_TOO_LONG
    return None


def longest_validity(max_timeout_s: int) -> int:
    """Return how far ahead validBefore may lie; twice what we asked for allows for clock skew.

    After the store lost data, contracts are held back for this long: payments may still land until then.
    """
    return 2 * max_timeout_s


def _run_limit(terms: TimeTerms) -> int:
    """Return the run limit in seconds; no run may exceed the promised latency."""
    if terms.max_latency_ms is None:
        return terms.run_s
    return min(terms.run_s, -(-terms.max_latency_ms // 1_000))
