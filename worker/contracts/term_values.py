"""Reads single values of a contract by path; refuses values of a wrong type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from worker.core.errors import BadRequest
from worker.core.fields import shown

_KINDS: dict[type, str] = {str: "text", list: "an array", dict: "an object"}
_RETRIES = re.compile(r"\s*([0-9]+)(?![0-9]|[.,][0-9])")


def value_at(contract: Mapping[str, Any], *path: str) -> Any:
    found: Any = contract
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def text_at(contract: Mapping[str, Any], *path: str) -> str:
    found = value_at(contract, *path)
    if not isinstance(found, str):
        raise BadRequest("a field is missing", field=".".join(path), expected="text", received=shown(found))
    return found


def optional_at(contract: Mapping[str, Any], kind: type, *path: str) -> Any:
    found = value_at(contract, *path)
    if found is not None and not isinstance(found, kind):
        raise BadRequest(
            "a field is of the wrong type",
            field=".".join(path),
            expected=_KINDS[kind],
            received=shown(found),
        )
    return found


def whole_at(contract: Mapping[str, Any], *path: str) -> int | None:
    """An integer, including the form 60000.0: both have the same hash."""
    found = value_at(contract, *path)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not _is_whole(found):
        raise BadRequest(
            "a field is of the wrong type",
            field=".".join(path),
            expected="a whole number from 0",
            received=shown(found),
        )
    return int(found)


def _is_whole(number: float) -> bool:
    return number >= 0 and float(number).is_integer()


def fee_percentage(contract: Mapping[str, Any]) -> Decimal:
    found = value_at(contract, "terms", "platform_fee", "percentage")
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found <= 100:
        raise BadRequest(
            "the platform fee cannot be read",
            field="terms.platform_fee.percentage",
            expected="a number from 0 to 100",
            received=shown(found),
        )
    # A double's shortest text is the number as it was written and hashed.
    return Decimal(str(int(found) if found == int(found) else found))


def free_retries(policy: Any) -> int:
    """Free retries: a leading or bare integer; anything else grants none."""
    if isinstance(policy, float) and policy.is_integer():
        policy = int(policy)
    if isinstance(policy, int) and not isinstance(policy, bool):
        return max(policy, 0)
    match = _RETRIES.match(policy) if isinstance(policy, str) else None
    # Nine digits already exceed the limit; converting ninety thousand would be slow.
    return int(match[1].lstrip("0")[:9] or "0") if match else 0


def is_negative(policy: Any) -> bool:
    if isinstance(policy, str):
        return re.match(r"\s*[-\u2212]\s*[0-9]", policy) is not None
    return isinstance(policy, int | float) and policy < 0
