"""What one address or wallet may ask for in a minute. It fails open: a store that is away limits nobody."""

from __future__ import annotations

from dataclasses import dataclass

import redis
import structlog

from worker.errors import Problem
from worker.executions.rate_limits import StoreRateLimiter

log = structlog.get_logger()

MINUTE_US = 60_000_000


class TooMany(Problem):
    """429: slower."""

    code, status = "RATE_LIMITED", 429
    message = "too many requests"
    advice = "Wait as long as Retry-After says; nothing was charged."


@dataclass(frozen=True)
class Limits:
    """Counts by what is asked for and who asks; 0 a minute is no limit."""

    limiter: StoreRateLimiter

    def take(self, what: str, who: str, most: int) -> None:
        """One more of something; TooMany when that was one too many."""
        if not most:
            return
        try:
            allowed = self.limiter.take(f"{what}:{who}", most, MINUTE_US)
        except redis.RedisError:
            log.warning("limits.store_away", what=what)
            return
        if not allowed:
            raise TooMany(retry_after=60, limit=f"{most} a minute")
