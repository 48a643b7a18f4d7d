"""When webhooks are tried again."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.delivery.schedule import MAX_ATTEMPTS, SECOND, Outcome, Verdict, next_attempt, retry_after

NOW = 1_790_000_000 * SECOND
DAY = 86_400 * SECOND


def wait(attempt: int, outcome: Outcome, jitter: float = 0.0) -> int | None:
    when = next_attempt(attempt, outcome, NOW, jitter=jitter)
    return None if when is None else when - NOW


def test_the_published_schedule() -> None:
    """Ten attempts, each wait counted from the attempt before."""
    failed = Outcome(500)
    seconds = [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]
    assert [wait(attempt, failed) for attempt in range(1, 11)] == [s * SECOND for s in seconds] + [None]
    assert MAX_ATTEMPTS == 10


@pytest.mark.parametrize("attempt", [10, 11, 1000])
def test_attempts_are_used_up(attempt: int) -> None:
    """After the tenth there is no other, whatever the receiver asks for."""
    assert wait(attempt, Outcome(503, "5")) is None


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.delivered),
        (202, Verdict.delivered),
        (204, Verdict.delivered),
        (299, Verdict.delivered),
        (None, Verdict.failed),
        (100, Verdict.failed),
        (199, Verdict.failed),
        (300, Verdict.failed),
        (301, Verdict.failed),
        (304, Verdict.failed),
        (308, Verdict.failed),
        (400, Verdict.failed),
        (401, Verdict.failed),
        (404, Verdict.failed),
        (409, Verdict.failed),
        (410, Verdict.gone),
        (429, Verdict.throttled),
        (500, Verdict.failed),
        (502, Verdict.throttled),
        (503, Verdict.failed),
        (504, Verdict.throttled),
    ],
)
def test_what_an_answer_means(status: int | None, verdict: Verdict) -> None:
    """Only 2xx is success, 410 ends it, three codes slow us down, everything else is a failure."""
    assert Outcome(status).verdict is verdict
    assert (wait(1, Outcome(status)) is None) == (verdict in (Verdict.delivered, Verdict.gone))


def test_success_and_gone_end_it_even_with_retry_after() -> None:
    """A Retry-After cannot revive what is delivered or not wanted."""
    assert wait(1, Outcome(200, "60")) is None
    assert wait(1, Outcome(410, "60")) is None


@pytest.mark.parametrize("status", [429, 502, 504])
def test_a_loaded_receiver_gets_a_minute(status: int) -> None:
    """Throttling lengthens the short first wait and leaves longer ones alone."""
    assert wait(1, Outcome(status)) == 60 * SECOND
    assert wait(2, Outcome(status)) == 300 * SECOND


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
    """It may lengthen a wait up to a day, never shorten it; nonsense is ignored."""
    assert wait(1, Outcome(503, text)) == seconds * SECOND


def test_retry_after_never_shortens() -> None:
    """A receiver that asks for less than the schedule waits for the schedule."""
    assert wait(5, Outcome(503, "10")) == 18_000 * SECOND


@pytest.mark.parametrize(("ahead", "seconds"), [(3600, 3600), (-3600, 0), (0, 0), (10 * 86_400, 86_400)])
def test_retry_after_as_a_date(ahead: int, seconds: int) -> None:
    """A date is measured against the store's clock; the past asks for nothing."""
    assert retry_after(formatdate(NOW // SECOND + ahead, usegmt=True), NOW) == seconds * SECOND


def test_a_date_without_a_zone_is_gmt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone of this machine plays no part."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        text = formatdate(NOW // SECOND + 600, usegmt=True).removesuffix(" GMT")
        assert retry_after(text, NOW) == 600 * SECOND
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.text(max_size=60))
def test_no_header_breaks_the_schedule(text: str) -> None:
    """Whatever a receiver sends, the wait lies between nothing and a day."""
    assert 0 <= retry_after(text, NOW) <= DAY


@given(
    st.integers(1, 9),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([None, 302, 404, 429, 500, 503]),
    st.sampled_from([None, "7", "100000"]),
)
def test_jitter_only_adds_a_tenth(
    attempt: int, jitter: float, status: int | None, header: str | None
) -> None:
    """Jitter spreads attempts by up to ten per cent and never undercuts what was asked."""
    base = wait(attempt, Outcome(status, header))
    spread = wait(attempt, Outcome(status, header), jitter)
    assert base is not None and spread is not None
    assert base <= spread <= base + base // 10
    assert isinstance(spread, int)


def test_jitter_matters() -> None:
    """Two draws give two moments."""
    assert wait(3, Outcome(500), 0.0) != wait(3, Outcome(500), 0.5)


@pytest.mark.parametrize("jitter", [-0.1, 1.0, 2.0])
def test_a_wrong_draw_is_a_mistake(jitter: float) -> None:
    """Only a fraction below one is a draw."""
    with pytest.raises(ValueError, match="jitter"):
        wait(1, Outcome(500), jitter)


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_count_from_one(attempt: int) -> None:
    """The first attempt is number one."""
    with pytest.raises(ValueError, match="attempts"):
        wait(attempt, Outcome(500))
