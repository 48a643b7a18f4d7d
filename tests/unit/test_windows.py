"""Time windows: what fits a payment's window, a deadline and a promised latency."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.x402.windows import (
    SECOND_US,
    TimeTerms,
    WindowReason,
    WindowRules,
    allowed_wait_us,
    longest_validity,
    offer_window,
    payment_window,
    served_within_ms,
    validity,
)

NOW = 1_800_000_000 * SECOND_US
NOW_S = NOW // SECOND_US
RULES = WindowRules(max_window_s=3_600, settle_margin_s=60, signing_s=30, waiting_s=900)
DAY = 86_400 * SECOND_US
TERMS = TimeTerms(run_s=120, deadline_us=NOW + DAY)


def test_required_window_is_queue_run_and_margin() -> None:
    """An idle worker offers at once: needed time is the sum of the three, and the window is larger."""
    window = offer_window(NOW, 10, TERMS, RULES)
    assert window.reason is None
    assert window.needed_s == 10 + 120 + 60
    assert window.max_timeout_s == 30 + 900 + 120 + 60


@given(st.integers(0, 10_000), st.integers(0, 10**9))
def test_requested_window_is_constant(queue_s: int, later_s: int) -> None:
    """maxTimeoutSeconds depends neither on the queue nor on the time, or earlier 402s would be void."""
    first = offer_window(NOW, 0, TERMS, RULES)
    other = offer_window(NOW + later_s * SECOND_US, queue_s, TERMS, RULES)
    assert other.max_timeout_s == first.max_timeout_s == payment_window(TERMS, RULES)


def test_window_is_capped() -> None:
    """However long a run may take, the window never exceeds the operator's maximum."""
    assert payment_window(replace(TERMS, run_s=3_000), RULES) == 3_600


@pytest.mark.parametrize(
    ("queue_s", "run_s", "reason"),
    [
        (900, 120, None),
        (901, 120, WindowReason.WINDOW_TOO_SHORT),
        (0, 3_510, None),
        (0, 3_511, WindowReason.WINDOW_TOO_SHORT),
        (10, 3_510, WindowReason.WINDOW_TOO_SHORT),
    ],
)
def test_work_longer_than_the_window_is_not_offered(
    queue_s: int, run_s: int, reason: WindowReason | None
) -> None:
    """Queue, run, margin and the time to sign must fit; one second more is refused."""
    terms = replace(TERMS, run_s=run_s)
    assert offer_window(NOW, queue_s, terms, RULES).reason is reason


@pytest.mark.parametrize(
    ("left_us", "reason"),
    [
        (180 * SECOND_US, None),
        (180 * SECOND_US - 1, WindowReason.DEADLINE_TOO_SOON),
        (1, WindowReason.DEADLINE_TOO_SOON),
        (0, WindowReason.DEADLINE_MISSED),
        (-5, WindowReason.DEADLINE_MISSED),
    ],
)
def test_work_past_the_deadline_is_not_offered(left_us: int, reason: WindowReason | None) -> None:
    """Settling must be possible before the deadline, to the microsecond."""
    assert offer_window(NOW, 0, replace(TERMS, deadline_us=NOW + left_us), RULES).reason is reason


def test_latency_bounds_queue_and_run() -> None:
    """The run limit is at most the promised latency; a queue that would exceed it is refused."""
    terms = replace(TERMS, max_latency_ms=4_500)
    window = offer_window(NOW, 4, terms, RULES)
    assert window.reason is None and window.needed_s == 4 + 5 + 60
    assert offer_window(NOW, 5, terms, RULES).reason is WindowReason.SLA_UNREACHABLE
    assert offer_window(NOW, 5, replace(terms, deadline_us=NOW), RULES).reason is WindowReason.DEADLINE_MISSED


def test_without_limits_only_the_window_counts() -> None:
    """Terms without deadline and latency are limited by the payment window only."""
    assert offer_window(NOW, 900, TimeTerms(120), RULES).reason is None
    assert offer_window(NOW, 901, TimeTerms(120), RULES).reason is WindowReason.WINDOW_TOO_SHORT


@pytest.mark.parametrize(
    ("left_s", "reason"),
    [
        (190, None),
        (189, WindowReason.AUTHORIZATION_TOO_SHORT),
        (0, WindowReason.AUTHORIZATION_TOO_SHORT),
        (-(10**9), WindowReason.AUTHORIZATION_TOO_SHORT),
        (2_220, None),
        (2_221, WindowReason.AUTHORIZATION_TOO_LONG),
        (2**255, WindowReason.AUTHORIZATION_TOO_LONG),
    ],
)
def test_authorization_lifetime(left_s: int, reason: WindowReason | None) -> None:
    """Long enough to settle, but not too long; both limits are inclusive."""
    assert validity(NOW_S + left_s, NOW_S, 190, 1_110) is reason


def test_authorization_lifetime_is_at_most_twice_the_request() -> None:
    """After data loss in the store, contracts are held back for this long."""
    assert (longest_validity(300), longest_validity(100_000)) == (600, 200_000)


def test_offered_work_can_be_paid() -> None:
    """A payment signed for an offer and arriving within the signing time is valid for long enough."""
    window = offer_window(NOW, 900, TERMS, RULES)
    valid_before_s = NOW_S + window.max_timeout_s
    assert validity(valid_before_s, NOW_S + 30, window.needed_s, window.max_timeout_s) is None


@given(
    queue_s=st.integers(0, 5_000),
    run_s=st.integers(1, 5_000),
    deadline_s=st.integers(0, 20_000),
    latency_ms=st.none() | st.integers(1, 10_000_000),
    travel_s=st.integers(0, 30),
)
def test_offered_work_can_always_be_finished(
    queue_s: int, run_s: int, deadline_s: int, latency_ms: int | None, travel_s: int
) -> None:
    """A payment made in time covers the wait, the whole run and the settlement."""
    terms = TimeTerms(run_s, NOW + deadline_s * SECOND_US, latency_ms)
    window = offer_window(NOW, queue_s, terms, RULES)
    if window.reason is not None:
        return
    valid_before_s = NOW_S + window.max_timeout_s
    assert window.needed_s <= window.max_timeout_s <= RULES.max_window_s
    assert validity(valid_before_s, NOW_S + travel_s, window.needed_s, window.max_timeout_s) is None
    assert (NOW_S + window.needed_s) * SECOND_US <= NOW + deadline_s * SECOND_US


@pytest.mark.parametrize(
    ("mean_s", "latency_s", "allowed_s"),
    [(1, None, 60), (60, None, 120), (600, None, 450), (10, 60, 25), (10, 600, 60), (50, 40, 0)],
    ids=["short work", "long work", "the longest wait", "a latency", "a long latency", "no time left"],
)
def test_work_may_be_expected_to_wait_half_of_its_time(
    mean_s: int, latency_s: int | None, allowed_s: int
) -> None:
    """What the latency leaves after the run, else two minutes or four runs, never beyond the window."""
    terms = replace(TERMS, max_latency_ms=None if latency_s is None else latency_s * 1_000)
    assert allowed_wait_us(mean_s * SECOND_US, terms, RULES) == allowed_s * SECOND_US


def test_a_402_promises_the_latency_or_the_longest_wait_and_a_run() -> None:
    """The promise is twice the expected wait, because expected waits are means."""
    assert served_within_ms(SECOND_US, replace(TERMS, max_latency_ms=5_000), RULES) == 5_000
    assert served_within_ms(SECOND_US, TERMS, RULES) == 120_000 + TERMS.run_s * 1_000
