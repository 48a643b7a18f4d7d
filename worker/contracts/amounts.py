"""Money as text on the wire, as an integer of atomic units everywhere else.

One USDC is 1,000,000 units. Text with more than six decimals is refused, never rounded.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from worker.contracts.fields import shown
from worker.errors import BadRequest

DECIMALS = 6
UNIT = 10**DECIMALS
LARGEST = 2**63 - 1

# Thirteen digits before the point are the most that can stay below 2^63 units.
_PLAIN = re.compile(r"(0|[1-9][0-9]{0,12})(\.[0-9]{1,6})?")


class AmountInvalid(BadRequest):
    code = "AMOUNT_INVALID"
    message = "the amount is not a plain decimal of USDC"
    advice = "Write the amount as text with at most six decimals, such as 0.5; nothing was charged."


def to_atomic(text: Any, *, field: str = "amount") -> int:
    """Atomic units of a decimal text; no sign, exponent, blank or rounding."""
    expected = f'plain decimal text with at most {DECIMALS} decimals, such as "0.5"'
    if not isinstance(text, str) or not _PLAIN.fullmatch(text):
        raise AmountInvalid(field=field, expected=expected, received=shown(text))
    atomic = int(Decimal(text) * UNIT)
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
