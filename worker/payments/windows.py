"""The one calculation of time and money: what must fit before work is offered or started.

Needed is queue estimate + run limit + settle margin. It must fit into the payment window and
before the deadline; the same sum is made again at the start of every attempt. Durations are whole
seconds, instants are microseconds of the store's clock, authorizations end in Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SECOND_US = 1_000_000

# An authorization valid for longer than this is refused unless we asked for that much ourselves.
LONGEST_VALIDITY_S = 86_400


class Reason(StrEnum):
    """Why work is not offered or not started; the names are codes that callers see."""

    DEADLINE_MISSED = "DEADLINE_MISSED"
    DEADLINE_TOO_SOON = "DEADLINE_TOO_SOON"
    WINDOW_TOO_SHORT = "WINDOW_TOO_SHORT"
    SLA_UNREACHABLE = "SLA_UNREACHABLE"
    SLA_TIMEOUT = "SLA_TIMEOUT"
    AUTHORIZATION_TOO_SHORT = "AUTHORIZATION_TOO_SHORT"
    AUTHORIZATION_TOO_LONG = "AUTHORIZATION_TOO_LONG"


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator's settings say: the longest payment window and the reserves inside it.

    `settle_margin_s` is kept free after a run so that its settlement can land, `signing_s` is what a
    payment may take from its signing until it reaches us, `waiting_s` is the longest wait for a place.
    """

    max_window_s: int = 3_600
    settle_margin_s: int = 60
    signing_s: int = 30
    waiting_s: int = 900


@dataclass(frozen=True, slots=True)
class Terms:
    """What a contract and its capability say about time; None stands for no limit."""

    run_s: int
    deadline_us: int | None = None
    max_latency_ms: int | None = None


@dataclass(frozen=True, slots=True)
class OfferWindow:
    """Whether work can be offered now, the window to ask for and what of it is really needed."""

    needed_s: int
    max_timeout_s: int
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Whether an attempt may start, and the instant by which it must have ended."""

    ends_us: int
    reason: Reason | None = None


def payment_window(terms: Terms, rules: Rules) -> int:
    """Return maxTimeoutSeconds.

    It depends on terms and settings only: a payment must name the number of an earlier 402, so
    one that moved with the queue would refuse every honest payer.
    """
    run_s = _run_limit(terms)
    return min(rules.max_window_s, rules.signing_s + rules.waiting_s + run_s + rules.settle_margin_s)


def offer_window(now_us: int, queue_s: int, terms: Terms, rules: Rules) -> OfferWindow:
    """Decide whether paid work that waits `queue_s` first can be finished and settled in time."""
    needed_s = queue_s + _run_limit(terms) + rules.settle_margin_s
    window_s = payment_window(terms, rules)
    usable_s = window_s - rules.signing_s
    return OfferWindow(needed_s, window_s, _offer_reason(now_us, queue_s, needed_s, usable_s, terms))


def _offer_reason(now_us: int, queue_s: int, needed_s: int, usable_s: int, terms: Terms) -> Reason | None:
    if terms.deadline_us is not None and now_us >= terms.deadline_us:
        return Reason.DEADLINE_MISSED
    if terms.max_latency_ms is not None and queue_s * 1_000 >= terms.max_latency_ms:
        return Reason.SLA_UNREACHABLE
    if needed_s > usable_s:
        return Reason.WINDOW_TOO_SHORT
    if terms.deadline_us is not None and now_us + needed_s * SECOND_US > terms.deadline_us:
        return Reason.DEADLINE_TOO_SOON
    return None


def validity(valid_before_s: int, now_s: int, needed_s: int, max_timeout_s: int) -> Reason | None:
    """Decide whether an authorization lives long enough to be settled, and not absurdly long."""
    left_s = valid_before_s - now_s
    if left_s < needed_s:
        return Reason.AUTHORIZATION_TOO_SHORT
    if left_s > longest_validity(max_timeout_s):
        return Reason.AUTHORIZATION_TOO_LONG
    return None


def longest_validity(max_timeout_s: int) -> int:
    """Return how far validBefore may lie ahead; twice what we asked for leaves room for wrong clocks."""
    return max(LONGEST_VALIDITY_S, 2 * max_timeout_s)


def can_start(
    now_us: int,
    terms: Terms,
    rules: Rules,
    *,
    valid_before_s: int | None = None,
    verified_us: int | None = None,
) -> Start:
    """Decide whether an attempt that starts now can still be finished and settled.

    `valid_before_s` is the stored authorization's end, None when nothing is left to settle;
    `verified_us` is when the payment was verified, from which the promised latency counts.
    """
    limits = [now_us + _run_limit(terms) * SECOND_US]
    if terms.deadline_us is not None:
        limits.append(terms.deadline_us)
    sla_us = _sla_end(terms, verified_us)
    if sla_us is not None:
        limits.append(sla_us)
    ends_us = min(limits)
    return Start(ends_us, _start_reason(now_us, ends_us, sla_us, valid_before_s, terms, rules))


def _start_reason(
    now_us: int,
    ends_us: int,
    sla_us: int | None,
    valid_before_s: int | None,
    terms: Terms,
    rules: Rules,
) -> Reason | None:
    if terms.deadline_us is not None and now_us >= terms.deadline_us:
        return Reason.DEADLINE_MISSED
    if sla_us is not None and now_us >= sla_us:
        return Reason.SLA_TIMEOUT
    if valid_before_s is None:
        return None
    margin_us = rules.settle_margin_s * SECOND_US
    # A latency promise shortens the run and so what the authorization must cover; a deadline
    # does not: a run cut short by it would be work for nothing.
    run_ends_us = now_us + _run_limit(terms) * SECOND_US
    settled_us = (run_ends_us if sla_us is None else min(run_ends_us, sla_us)) + margin_us
    if settled_us > valid_before_s * SECOND_US:
        return Reason.AUTHORIZATION_TOO_SHORT
    if terms.deadline_us is not None and settled_us > terms.deadline_us:
        return Reason.DEADLINE_TOO_SOON
    return None


def latency_missed(now_us: int, terms: Terms, verified_us: int) -> bool:
    """Tell whether the promised latency, counted from the verified payment, is over."""
    sla_us = _sla_end(terms, verified_us)
    return sla_us is not None and now_us > sla_us


def _run_limit(terms: Terms) -> int:
    """Return the run limit in seconds; nothing may run for longer than the latency promised."""
    if terms.max_latency_ms is None:
        return terms.run_s
    return min(terms.run_s, -(-terms.max_latency_ms // 1_000))


def _sla_end(terms: Terms, verified_us: int | None) -> int | None:
    if terms.max_latency_ms is None or verified_us is None:
        return None
    return verified_us + terms.max_latency_ms * 1_000
