"""Limits on requests: the size of bodies and headers, and rates per minute by address or wallet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.core.errors import Problem
from worker.store.outage import StoreError, note
from worker.store.rate_limits import StoreRateLimiter

BODY_BYTES = 1 << 20
HEADER_BYTES = 16 << 10
MINUTE_US = 60_000_000
# Payments have a limit of their own and a more specific refusal. The last two are not headers, as werkzeug
# reads them.
_NOT_COUNTED = frozenset(
    {"HTTP_PAYMENT_SIGNATURE", "HTTP_X_PAYMENT", "HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"}
)
_OTHER_HEADERS = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})
# A header's line has a colon, a blank and two ends of a line more than name and value.
_BETWEEN = 4
_MORE_THAN_SENT = len("HTTP_") - _BETWEEN


class HeadersTooLarge(Problem):
    code, status = "HEADERS_TOO_LARGE", 431
    message = "the request's headers are too large"
    advice = "Send fewer or shorter headers. You were not charged."


def check_headers(environ: Mapping[str, Any]) -> None:
    """Refuses headers that are too large, payments aside."""
    size = 0
    for name, value in environ.items():
        if name.startswith("HTTP_") and name not in _NOT_COUNTED:
            size += len(name) + len(value) - _MORE_THAN_SENT
        elif name in _OTHER_HEADERS and value:
            size += len(name) + len(value) + _BETWEEN
    if size > HEADER_BYTES:
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
