"""Amounts: decimal text on the wire, integers of atomic units everywhere else.

One USDC is 1,000,000 units. Text with more than six decimals is rejected, never rounded.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from worker.core.errors import BadRequest
from worker.core.fields import shown

DECIMALS = 6
UNIT = 10**DECIMALS
LARGEST = 2**63 - 1

_DECIMAL = re.compile(r"[0-9]{1,30}(?:\.[0-9]{1,30})?")
# Amounts below 2^63 units have at most thirteen digits before the point.
_PLAIN = re.compile(r"(0|[1-9][0-9]{0,12})(\.[0-9]{1,6})?")


class AmountInvalid(BadRequest):
    code = "AMOUNT_INVALID"
    message = "the amount is not a plain decimal of USDC"
    advice = "Write the amount as text with at most six decimals, such as 0.5. You were not charged."


@lru_cache(maxsize=4_096)
def atomic_units(text: str) -> int:
    """Converts plain decimal text exactly; raises ValueError for anything else or finer than a unit."""
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError("not a plain decimal number")
    # Fraction is exact; Decimal would round away a long tail of decimals.
    units: Fraction = Fraction(text) * UNIT
    if units.denominator != 1:
        raise ValueError(f"more than {DECIMALS} decimals")
    return int(units)


def to_atomic(text: Any, *, field: str = "amount") -> int:
    """Converts decimal text to atomic units; rejects signs, exponents, blanks and excess digits."""
    expected = f'plain decimal text with at most {DECIMALS} decimals, such as "0.5"'
    if not isinstance(text, str) or not _PLAIN.fullmatch(text):
        raise AmountInvalid(field=field, expected=expected, received=shown(text))
    atomic = atomic_units(text)
    if atomic > LARGEST:
        raise AmountInvalid(field=field, expected=f"at most {to_text(LARGEST)}", received=shown(text))
    return atomic


def to_text(atomic: int) -> str:
    """The shortest decimal text of an amount; `to_atomic` reads it back exactly."""
    if isinstance(atomic, bool) or not isinstance(atomic, int) or not 0 <= atomic <= LARGEST:
        raise ValueError("an amount is an integer from 0 to 2^63 - 1")
    whole, rest = divmod(atomic, UNIT)
    decimals = f"{rest:0{DECIMALS}d}".rstrip("0")
    return f"{whole}.{decimals}" if decimals else str(whole)
