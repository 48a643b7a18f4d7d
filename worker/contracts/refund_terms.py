"""The refund conditions of HIRE 05 that this worker applies automatically.

Work that fails in one of these ways is not charged, or refunded if it was paid before. The worker cannot
judge quality for the seeker, so it does not sign a contract that promises a refund for poor quality.
"""

from __future__ import annotations

from collections.abc import Sequence

HONOURED = ("deadline_missed", "output_schema_invalid", "no_response")


def first_not_honoured(conditions: Sequence[str]) -> int | None:
    """Index of the first unsupported condition, or None."""
    return next((at for at, each in enumerate(conditions) if each not in HONOURED), None)
