"""Limits count by who asks, and let everybody through when they cannot count."""

from __future__ import annotations

import pytest
import redis

from worker.limits import MINUTE_US, Limits, TooMany


class Counter:
    """Allows so many of each name; or has no store."""

    def __init__(self, *, away: bool = False) -> None:
        self.taken: list[tuple[str, int, int]] = []
        self._away = away

    def take(self, key: str, max: int, window_us: int) -> bool:
        if self._away:
            raise redis.ConnectionError()
        self.taken.append((key, max, window_us))
        return sum(name == key for name, *_ in self.taken) <= max


def test_one_too_many_is_told_to_wait() -> None:
    """Beyond the limit of a minute somebody is refused, and told for how long; others are not."""
    counter = Counter()
    limits = Limits(counter)  # type: ignore[arg-type]
    for _ in range(2):
        limits.take("drafts", "10.0.0.1", 2)
    with pytest.raises(TooMany) as refused:
        limits.take("drafts", "10.0.0.1", 2)
    assert (refused.value.status, refused.value.retry_after) == (429, 60)
    assert refused.value.charged is False
    limits.take("drafts", "10.0.0.2", 2)
    assert counter.taken[0] == ("drafts:10.0.0.1", 2, MINUTE_US)


def test_a_store_that_is_away_limits_nobody() -> None:
    """Limits fail open: whoever pays is served although nobody can count."""
    for _ in range(5):
        Limits(Counter(away=True)).take("drafts", "10.0.0.1", 1)  # type: ignore[arg-type]


def test_no_limit_is_no_question() -> None:
    """Where the limit is 0 the store is not even asked."""
    counter = Counter()
    Limits(counter).take("drafts", "10.0.0.1", 0)  # type: ignore[arg-type]
    assert counter.taken == []
