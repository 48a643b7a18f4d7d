"""Rate limits count per caller, and fail open when the store is unavailable."""

from __future__ import annotations

import pytest
import redis

from worker.doors.limits import MINUTE_US, RequestLimits, TooManyRequests


class Counter:
    """Allows a maximum per name, or raises as if without a store."""

    def __init__(self, *, away: bool = False) -> None:
        self.taken: list[tuple[str, int, int]] = []
        self._away = away

    def take(self, key: str, max: int, window_us: int) -> bool:
        if self._away:
            raise redis.ConnectionError()
        self.taken.append((key, max, window_us))
        return sum(name == key for name, *_ in self.taken) <= max


def test_exceeded_limit_says_when_to_retry() -> None:
    """A caller above the limit of a minute is refused with Retry-After; other callers are not."""
    counter = Counter()
    limits = RequestLimits(counter)  # type: ignore[arg-type]
    for _ in range(2):
        limits.take("drafts", "10.0.0.1", 2)
    with pytest.raises(TooManyRequests) as refused:
        limits.take("drafts", "10.0.0.1", 2)
    assert (refused.value.status, refused.value.retry_after) == (429, 60)
    assert refused.value.charged is None, "what is refused may belong to a contract that was paid for"
    limits.take("drafts", "10.0.0.2", 2)
    assert counter.taken[0] == ("drafts:10.0.0.1", 2, MINUTE_US)


def test_unavailable_store_disables_limits() -> None:
    """Limits fail open: paying callers are served even if counting is impossible."""
    for _ in range(5):
        RequestLimits(Counter(away=True)).take("drafts", "10.0.0.1", 1)  # type: ignore[arg-type]


def test_no_limit_makes_no_query() -> None:
    """With a limit of 0 the store is not called."""
    counter = Counter()
    RequestLimits(counter).take("drafts", "10.0.0.1", 0)  # type: ignore[arg-type]
    assert counter.taken == []
