"""Splits a price between the platform and the worker. Exact: the parts always add up to the price."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class FeeSplit:
    """A price in atomic units, divided between the platform and the worker."""

    fee: int
    worker: int


def split_fee(amount: int, percentage: Decimal | int) -> FeeSplit:
    """Split a price: the fee is rounded half up to an atomic unit, the worker gets the rest."""
    if isinstance(percentage, bool) or not isinstance(percentage, Decimal | int):
        raise ValueError("a percentage is a Decimal or an integer")
    if isinstance(percentage, Decimal) and not percentage.is_finite():
        raise ValueError("a percentage is a finite number")
    if not 0 <= percentage <= 100 or amount < 0:
        raise ValueError("a percentage lies between 0 and 100, an amount is not negative")
    fee = _rounded(amount, percentage)
    return FeeSplit(fee, amount - fee)


@lru_cache(maxsize=512)
def _rounded(amount: int, percentage: Decimal | int) -> int:
    """Few prices and fees make up most contracts."""
    exact = amount * Fraction(percentage) / 100
    return (2 * exact.numerator + exact.denominator) // (2 * exact.denominator)
