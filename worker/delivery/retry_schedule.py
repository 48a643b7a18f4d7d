"""Retry schedule of webhooks. Pure; times are in microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum

SECOND = 1_000_000
# The wait before each attempt, from the end of the previous one; the first is immediate.
DELAYS = tuple(
    seconds * SECOND for seconds in (0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
MAX_ATTEMPTS = len(DELAYS)
MAX_RETRY_AFTER = 86_400 * SECOND
# Minimum wait after an overloaded receiver's answer.
THROTTLE_WAIT = 60 * SECOND
# Jitter only adds, so that a Retry-After is never undercut.
JITTER_SHARE = 10


class RetryDecision(StrEnum):
    """Verdict on one attempt."""

    delivered = "delivered"
    failed = "failed"
    throttled = "throttled"
    gone = "gone"


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended: the HTTP status, None without an answer; Retry-After as received."""

    status: int | None
    retry_after: str | None = None

    @property
    def verdict(self) -> RetryDecision:
        """Only 2xx delivers; a redirect is a failure; 410 ends the subscription."""
        if self.status is not None and 200 <= self.status <= 299:
            return RetryDecision.delivered
        if self.status == 410:
            return RetryDecision.gone
        if self.status in (429, 502, 504):
            return RetryDecision.throttled
        return RetryDecision.failed


def next_attempt(attempt: int, outcome: AttemptResult, now: int, *, jitter: float) -> int | None:
    """When to retry after attempt number `attempt` (from 1); None if delivered, gone or out of attempts.

    `now` is the store's time in microseconds; `jitter` is a random number in [0, 1).
    """
    if attempt < 1:
        raise ValueError("attempts count from 1")
    if not 0 <= jitter < 1:
        raise ValueError("jitter lies in [0, 1)")
    if outcome.verdict in (RetryDecision.delivered, RetryDecision.gone) or attempt >= MAX_ATTEMPTS:
        return None
    wait = max(DELAYS[attempt], retry_after(outcome.retry_after, now))
    if outcome.verdict is RetryDecision.throttled:
        wait = max(wait, THROTTLE_WAIT)
    return now + wait + int(wait * jitter) // JITTER_SHARE


def retry_after(text: str | None, now: int) -> int:
    """The wait that a Retry-After header asks for, at most a day; 0 if it is missing or invalid."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        digits = text.lstrip("0") or "0"
        # More than ten digits always exceed the cap.
        return MAX_RETRY_AFTER if len(digits) > 10 else min(int(digits) * SECOND, MAX_RETRY_AFTER)
    try:
        date = parsedate_to_datetime(text)
        # HTTP dates are in GMT, even if the sender omits the zone.
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        until = int(date.timestamp()) * SECOND
    except (ValueError, OverflowError, TypeError, OSError):
        return 0
    return max(0, min(until - now, MAX_RETRY_AFTER))
