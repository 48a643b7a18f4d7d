"""The one calculation: what fits into a payment's window, before a deadline, into a promise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.payments.windows import (
    LONGEST_VALIDITY_S,
    SECOND_US,
    Reason,
    Rules,
    Terms,
    can_start,
    latency_missed,
    longest_validity,
    offer_window,
    payment_window,
    validity,
)

NOW = 1_800_000_000 * SECOND_US
NOW_S = NOW // SECOND_US
RULES = Rules(max_window_s=3_600, settle_margin_s=60, signing_s=30, waiting_s=900)
DAY = 86_400 * SECOND_US
TERMS = Terms(run_s=120, deadline_us=NOW + DAY)


def test_needed_is_queue_and_run_and_margin() -> None:
    """An idle worker offers at once, with the sum of the three and a window above it."""
    window = offer_window(NOW, 10, TERMS, RULES)
    assert window.reason is None
    assert window.needed_s == 10 + 120 + 60
    assert window.max_timeout_s == 30 + 900 + 120 + 60


@given(st.integers(0, 10_000), st.integers(0, 10**9))
def test_the_window_asked_for_does_not_move(queue_s: int, later_s: int) -> None:
    """maxTimeoutSeconds depends neither on the queue nor on the time, or earlier 402s would be void."""
    first = offer_window(NOW, 0, TERMS, RULES)
    other = offer_window(NOW + later_s * SECOND_US, queue_s, TERMS, RULES)
    assert other.max_timeout_s == first.max_timeout_s == payment_window(TERMS, RULES)


def test_the_window_is_capped() -> None:
    """However long a run may take, never more than the operator's longest window is asked for."""
    assert payment_window(replace(TERMS, run_s=3_000), RULES) == 3_600


@pytest.mark.parametrize(
    ("queue_s", "run_s", "reason"),
    [
        (900, 120, None),
        (901, 120, Reason.WINDOW_TOO_SHORT),
        (0, 3_510, None),
        (0, 3_511, Reason.WINDOW_TOO_SHORT),
        (10, 3_510, Reason.WINDOW_TOO_SHORT),
    ],
)
def test_work_that_outlasts_the_window_is_not_offered(
    queue_s: int, run_s: int, reason: Reason | None
) -> None:
    """Queue, run, margin and the time to sign must fit; one second more is refused."""
    terms = replace(TERMS, run_s=run_s)
    assert offer_window(NOW, queue_s, terms, RULES).reason is reason


@pytest.mark.parametrize(
    ("left_us", "reason"),
    [
        (180 * SECOND_US, None),
        (180 * SECOND_US - 1, Reason.DEADLINE_TOO_SOON),
        (1, Reason.DEADLINE_TOO_SOON),
        (0, Reason.DEADLINE_MISSED),
        (-5, Reason.DEADLINE_MISSED),
    ],
)
def test_work_that_outlasts_the_deadline_is_not_offered(left_us: int, reason: Reason | None) -> None:
    """Settling must be possible before the deadline, to the microsecond."""
    assert offer_window(NOW, 0, replace(TERMS, deadline_us=NOW + left_us), RULES).reason is reason


def test_a_promised_latency_bounds_queue_and_run() -> None:
    """A run may last as long as promised at most, and a queue as long as the promise breaks it."""
    terms = replace(TERMS, max_latency_ms=4_500)
    window = offer_window(NOW, 4, terms, RULES)
    assert window.reason is None and window.needed_s == 4 + 5 + 60
    assert offer_window(NOW, 5, terms, RULES).reason is Reason.SLA_UNREACHABLE
    assert offer_window(NOW, 5, replace(terms, deadline_us=NOW), RULES).reason is Reason.DEADLINE_MISSED


def test_without_limits_only_the_window_counts() -> None:
    """Terms without deadline and latency are bounded by the payment window alone."""
    assert offer_window(NOW, 900, Terms(120), RULES).reason is None
    assert offer_window(NOW, 901, Terms(120), RULES).reason is Reason.WINDOW_TOO_SHORT


@pytest.mark.parametrize(
    ("left_s", "reason"),
    [
        (190, None),
        (189, Reason.AUTHORIZATION_TOO_SHORT),
        (0, Reason.AUTHORIZATION_TOO_SHORT),
        (-(10**9), Reason.AUTHORIZATION_TOO_SHORT),
        (LONGEST_VALIDITY_S, None),
        (LONGEST_VALIDITY_S + 1, Reason.AUTHORIZATION_TOO_LONG),
        (2**255, Reason.AUTHORIZATION_TOO_LONG),
    ],
)
def test_how_long_an_authorization_may_live(left_s: int, reason: Reason | None) -> None:
    """Long enough to settle, not absurdly long; both edges belong to what is accepted."""
    assert validity(NOW_S + left_s, NOW_S, 190, 1_110) is reason


def test_a_long_window_of_ours_allows_a_longer_life() -> None:
    """When we ask for more than half a day ourselves, twice that is still not absurd."""
    assert longest_validity(300) == LONGEST_VALIDITY_S
    assert longest_validity(100_000) == 200_000


def test_what_was_just_offered_can_be_paid_and_started() -> None:
    """A payment signed for an offer and arriving within the signing time passes each later check."""
    window = offer_window(NOW, 900, TERMS, RULES)
    valid_before_s = NOW_S + window.max_timeout_s
    assert validity(valid_before_s, NOW_S + 30, window.needed_s, window.max_timeout_s) is None
    started_us = NOW + (30 + 900) * SECOND_US
    start = can_start(started_us, TERMS, RULES, valid_before_s=valid_before_s)
    assert start.reason is None and start.ends_us == started_us + 120 * SECOND_US


@pytest.mark.parametrize(
    ("left_s", "reason"),
    [(180, None), (179, Reason.AUTHORIZATION_TOO_SHORT), (-1, Reason.AUTHORIZATION_TOO_SHORT)],
)
def test_an_attempt_that_could_not_settle_is_not_started(left_s: int, reason: Reason | None) -> None:
    """The authorization must cover the whole run and the margin after it."""
    assert can_start(NOW, TERMS, RULES, valid_before_s=NOW_S + left_s).reason is reason


def test_a_start_looks_at_the_deadline_first() -> None:
    """A gone deadline ends the matter, whatever the authorization says: failed, not payment_due."""
    gone = replace(TERMS, deadline_us=NOW)
    assert can_start(NOW, gone, RULES, valid_before_s=NOW_S - 1).reason is Reason.DEADLINE_MISSED
    near = replace(TERMS, deadline_us=NOW + 179 * SECOND_US)
    assert can_start(NOW, near, RULES, valid_before_s=NOW_S + 900).reason is Reason.DEADLINE_TOO_SOON


def test_work_with_nothing_to_settle_runs_until_the_deadline() -> None:
    """Settled or free work may start late; its end is the deadline."""
    near = replace(TERMS, deadline_us=NOW + 5 * SECOND_US)
    start = can_start(NOW, near, RULES)
    assert start.reason is None and start.ends_us == NOW + 5 * SECOND_US


def test_latency_counts_from_the_verified_payment() -> None:
    """A promise made at verification ends the run early, and once broken nothing starts."""
    terms = replace(TERMS, max_latency_ms=10_000)
    verified_us = NOW - 4 * SECOND_US
    start = can_start(NOW, terms, RULES, valid_before_s=NOW_S + 66, verified_us=verified_us)
    assert start.reason is None and start.ends_us == NOW + 6 * SECOND_US
    short = can_start(NOW, terms, RULES, valid_before_s=NOW_S + 65, verified_us=verified_us)
    assert short.reason is Reason.AUTHORIZATION_TOO_SHORT
    late = can_start(NOW, terms, RULES, valid_before_s=NOW_S + 900, verified_us=NOW - 10 * SECOND_US)
    assert late.reason is Reason.SLA_TIMEOUT


def test_when_latency_is_missed() -> None:
    """A result exactly in time is in time; without a promise nothing is missed."""
    terms = replace(TERMS, max_latency_ms=10_000)
    assert not latency_missed(NOW + 10 * SECOND_US, terms, NOW)
    assert latency_missed(NOW + 10 * SECOND_US + 1, terms, NOW)
    assert not latency_missed(NOW + DAY, TERMS, NOW)


@given(
    queue_s=st.integers(0, 5_000),
    run_s=st.integers(1, 5_000),
    deadline_s=st.integers(0, 20_000),
    latency_ms=st.none() | st.integers(1, 10_000_000),
    travel_s=st.integers(0, 30),
    waited_s=st.integers(0, 5_000),
)
def test_an_offer_is_never_a_trap(
    queue_s: int, run_s: int, deadline_s: int, latency_ms: int | None, travel_s: int, waited_s: int
) -> None:
    """Whoever pays an offer in time, and waits no longer than estimated, is served and can be charged."""
    terms = Terms(run_s, NOW + deadline_s * SECOND_US, latency_ms)
    window = offer_window(NOW, queue_s, terms, RULES)
    if window.reason is not None:
        return
    valid_before_s = NOW_S + window.max_timeout_s
    assert window.needed_s <= window.max_timeout_s <= RULES.max_window_s
    assert validity(valid_before_s, NOW_S + travel_s, window.needed_s, window.max_timeout_s) is None
    started_us = NOW + min(waited_s, queue_s) * SECOND_US
    start = can_start(started_us, terms, RULES, valid_before_s=valid_before_s, verified_us=NOW)
    assert start.reason is None and start.ends_us > started_us
    assert start.ends_us + RULES.settle_margin_s * SECOND_US <= valid_before_s * SECOND_US
