"""When webhook deliveries are retried."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.delivery.retry_schedule import (
    MAX_ATTEMPTS,
    SECOND,
    AttemptResult,
    RetryDecision,
    next_attempt,
    retry_after,
)

NOW = 1_790_000_000 * SECOND
DAY = 86_400 * SECOND


def wait(attempt: int, outcome: AttemptResult, jitter: float = 0.0) -> int | None:
    when = next_attempt(attempt, outcome, NOW, jitter=jitter)
    return None if when is None else when - NOW


def test_the_published_schedule() -> None:
    """Ten attempts, each wait counted from the previous attempt."""
    failed = AttemptResult(500)
    seconds = [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]
    assert [wait(attempt, failed) for attempt in range(1, 11)] == [s * SECOND for s in seconds] + [None]
    assert MAX_ATTEMPTS == 10


@pytest.mark.parametrize("attempt", [10, 11, 1000])
def test_attempts_are_limited(attempt: int) -> None:
    """There is no attempt after the tenth, whatever the receiver asks for."""
    assert wait(attempt, AttemptResult(503, "5")) is None


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, RetryDecision.delivered),
        (202, RetryDecision.delivered),
        (204, RetryDecision.delivered),
        (299, RetryDecision.delivered),
        (None, RetryDecision.failed),
        (100, RetryDecision.failed),
        (199, RetryDecision.failed),
        (300, RetryDecision.failed),
        (301, RetryDecision.failed),
        (304, RetryDecision.failed),
        (308, RetryDecision.failed),
        (400, RetryDecision.failed),
        (401, RetryDecision.failed),
        (404, RetryDecision.failed),
        (409, RetryDecision.failed),
        (410, RetryDecision.gone),
        (429, RetryDecision.throttled),
        (500, RetryDecision.failed),
        (502, RetryDecision.throttled),
        (503, RetryDecision.failed),
        (504, RetryDecision.throttled),
    ],
)
def test_response_statuses_are_classified(status: int | None, verdict: RetryDecision) -> None:
    """2xx is success, 410 ends the delivery, three codes throttle, everything else is a failure."""
    assert AttemptResult(status).verdict is verdict
    assert (wait(1, AttemptResult(status)) is None) == (
        verdict in (RetryDecision.delivered, RetryDecision.gone)
    )


def test_success_and_gone_end_it_even_with_retry_after() -> None:
    """A Retry-After cannot revive a delivery that succeeded or is gone."""
    assert wait(1, AttemptResult(200, "60")) is None
    assert wait(1, AttemptResult(410, "60")) is None


@pytest.mark.parametrize("status", [429, 502, 504])
def test_throttled_delivery_waits_at_least_a_minute(status: int) -> None:
    """Throttling lengthens the short first wait and does not change longer ones."""
    assert wait(1, AttemptResult(status)) == 60 * SECOND
    assert wait(2, AttemptResult(status)) == 300 * SECOND


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 5),
        ("3", 5),
        ("90", 90),
        (" 90 ", 90),
        ("0000090", 90),
        ("0" * 5000 + "90", 90),
        ("86400", 86_400),
        ("86401", 86_400),
        ("9" * 5000, 86_400),
        ("-5", 5),
        ("+90", 5),
        ("1.5", 5),
        ("1e3", 5),
        ("٩٠", 5),
        ("soon", 5),
        ("", 5),
    ],
)
def test_retry_after_in_seconds(text: str, seconds: int) -> None:
    """Retry-After may lengthen a wait up to a day, never shorten it; invalid values are ignored."""
    assert wait(1, AttemptResult(503, text)) == seconds * SECOND


def test_retry_after_never_shortens() -> None:
    """A receiver that asks for less than the schedule gets the schedule."""
    assert wait(5, AttemptResult(503, "10")) == 18_000 * SECOND


@pytest.mark.parametrize(("ahead", "seconds"), [(3600, 3600), (-3600, 0), (0, 0), (10 * 86_400, 86_400)])
def test_retry_after_as_a_date(ahead: int, seconds: int) -> None:
    """A date is compared with the store's clock; a past date asks for nothing."""
    assert retry_after(formatdate(NOW // SECOND + ahead, usegmt=True), NOW) == seconds * SECOND


def test_date_without_a_zone_is_gmt(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's time zone has no effect."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        text = formatdate(NOW // SECOND + 600, usegmt=True).removesuffix(" GMT")
        assert retry_after(text, NOW) == 600 * SECOND
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.text(max_size=60))
def test_any_retry_after_header_is_handled(text: str) -> None:
    """Whatever a receiver sends, the wait is between zero and a day."""
    assert 0 <= retry_after(text, NOW) <= DAY


@given(
    st.integers(1, 9),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([None, 302, 404, 429, 500, 503]),
    st.sampled_from([None, "7", "100000"]),
)
def test_jitter_adds_at_most_ten_percent(
    attempt: int, jitter: float, status: int | None, header: str | None
) -> None:
    """Jitter delays attempts by up to ten per cent and is never below the requested wait."""
    base = wait(attempt, AttemptResult(status, header))
    spread = wait(attempt, AttemptResult(status, header), jitter)
    assert base is not None and spread is not None
    assert base <= spread <= base + base // 10
    assert isinstance(spread, int)


def test_jitter_changes_the_delay() -> None:
    """Two draws give two different delays."""
    assert wait(3, AttemptResult(500), 0.0) != wait(3, AttemptResult(500), 0.5)


@pytest.mark.parametrize("jitter", [-0.1, 1.0, 2.0])
def test_invalid_random_draw_is_refused(jitter: float) -> None:
    """Only a fraction below one is a valid draw."""
    with pytest.raises(ValueError, match="jitter"):
        wait(1, AttemptResult(500), jitter)


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_start_at_one(attempt: int) -> None:
    """The first attempt is number one."""
    with pytest.raises(ValueError, match="attempts"):
        wait(attempt, AttemptResult(500))
