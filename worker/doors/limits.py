"""Limits on requests: the size of bodies and headers, and rates per minute by address or wallet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from worker.core.errors import Problem
from worker.store.outage import StoreError, note
from worker.store.rate_limits import StoreRateLimiter

BODY_BYTES = 1 << 20
HEADER_BYTES = 16 << 10
MINUTE_US = 60_000_000
# These have a limit of their own and a more specific refusal.
_PAYMENTS = ("PAYMENT-SIGNATURE", "X-PAYMENT")


class HeadersTooLarge(Problem):
    code, status = "HEADERS_TOO_LARGE", 431
    message = "the request's headers are too large"
    advice = "Send fewer or shorter headers. You were not charged."


def check_headers(headers: Iterable[tuple[str, str]]) -> None:
    """Refuses headers that are too large, payments aside."""
    others = [pair for pair in headers if pair[0].upper() not in _PAYMENTS]
    if sum(len(name) + len(value) + 4 for name, value in others) > HEADER_BYTES:
        raise HeadersTooLarge(expected=f"at most {HEADER_BYTES} bytes")


class TooManyRequests(Problem):
    """429: rate limit exceeded."""

    code, status = "RATE_LIMITED", 429
    message = "too many requests"
    advice = "Wait as long as Retry-After says. You were not charged."


@dataclass(frozen=True)
class RequestLimits:
    """Counts requests by kind and caller; a limit of 0 means none. Fails open while the store is away."""

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
