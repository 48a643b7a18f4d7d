"""When a webhook is tried again, and when no more. Pure: times come in and go out as microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum

SECOND = 1_000_000
# The wait before each attempt, counted from the end of the one before; the first is immediate.
DELAYS = tuple(
    seconds * SECOND for seconds in (0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
MAX_ATTEMPTS = len(DELAYS)
MAX_RETRY_AFTER = 86_400 * SECOND
# A receiver under load is left alone at least this long.
THROTTLE_WAIT = 60 * SECOND
# Jitter only ever adds, so that no Retry-After is undercut.
JITTER_SHARE = 10


class Verdict(StrEnum):
    """What one attempt means."""

    delivered = "delivered"
    failed = "failed"
    throttled = "throttled"
    gone = "gone"


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: the HTTP status, or None when no answer came; Retry-After as received."""

    status: int | None
    retry_after: str | None = None

    @property
    def verdict(self) -> Verdict:
        """Only 2xx delivers; a redirect is a failure; 410 ends the subscription."""
        if self.status is not None and 200 <= self.status <= 299:
            return Verdict.delivered
        if self.status == 410:
            return Verdict.gone
        if self.status in (429, 502, 504):
            return Verdict.throttled
        return Verdict.failed


def next_attempt(attempt: int, outcome: Outcome, now: int, *, jitter: float) -> int | None:
    """When to try again after attempt number `attempt` (from 1), or None: delivered, gone or used up.

    `now` is the store's time in microseconds; `jitter` is a random number in [0, 1).
    """
    if attempt < 1:
        raise ValueError("attempts count from 1")
    if not 0 <= jitter < 1:
        raise ValueError("jitter lies in [0, 1)")
    if outcome.verdict in (Verdict.delivered, Verdict.gone) or attempt >= MAX_ATTEMPTS:
        return None
    wait = max(DELAYS[attempt], retry_after(outcome.retry_after, now))
    if outcome.verdict is Verdict.throttled:
        wait = max(wait, THROTTLE_WAIT)
    return now + wait + int(wait * jitter) // JITTER_SHARE


def retry_after(text: str | None, now: int) -> int:
    """The wait that a Retry-After header asks for, at most a day; 0 where it asks for nothing sensible."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        digits = text.lstrip("0") or "0"
        # Beyond ten digits the number is over the cap whatever it is.
        return MAX_RETRY_AFTER if len(digits) > 10 else min(int(digits) * SECOND, MAX_RETRY_AFTER)
    try:
        date = parsedate_to_datetime(text)
        # HTTP dates are in GMT, also where a sender forgot to say so.
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        until = int(date.timestamp()) * SECOND
    except (ValueError, OverflowError, TypeError, OSError):
        return 0
    return max(0, min(until - now, MAX_RETRY_AFTER))
