"""Delays before a call to the facilitator or a look at the chain is repeated, as scripts take them."""

from __future__ import annotations

from collections.abc import Sequence

SECOND_US = 1_000_000
# Payments: 1, 2, 5, 10, 30 s, then each minute.
RETRY_US = tuple(seconds * SECOND_US for seconds in (1, 2, 5, 10, 30, 60))


def spaced(delays_us: Sequence[int]) -> str:
    """A script's list of delays."""
    return " ".join(str(delay) for delay in delays_us)
