"""Per-minute rate limits by address or wallet. Fails open while the store is away."""

from __future__ import annotations

from dataclasses import dataclass

from worker.core.errors import Problem
from worker.store.outage import StoreError, note
from worker.store.rate_limits import StoreRateLimiter

MINUTE_US = 60_000_000


class TooManyRequests(Problem):
    """429: rate limit exceeded."""

    code, status = "RATE_LIMITED", 429
    message = "too many requests"
    advice = "Wait as long as Retry-After says. You were not charged."


@dataclass(frozen=True)
class RequestLimits:
    """Counts requests by kind and caller; a limit of 0 means none."""

    limiter: StoreRateLimiter

    def take(self, kind: str, caller: str, most: int) -> None:
        """Counts one request; raises TooManyRequests above the limit."""
        if not most:
            return
        try:
            allowed = self.limiter.take(f"{kind}:{caller}", most, MINUTE_US)
        except StoreError as error:
            note(error, "limits", kind=kind)
            return
        if not allowed:
            raise TooManyRequests(retry_after=60, charge_known=False, limit=f"{most} a minute")
