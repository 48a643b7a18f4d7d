"""Reading a schema: parts folded into one, the type that is meant, the bounds that hold."""

from __future__ import annotations

import math
from typing import Any

_INSIDE = 1e-6

_ANSWERS_TEXT = """
answer summary text content result output brief response body message abstract description
explanation rationale reason reasoning conclusion
"""
ANSWERS = frozenset(_ANSWERS_TEXT.split())
_TITLES_TEXT = """
title headline subject heading name label
"""
TITLES = frozenset(_TITLES_TEXT.split())
_TAGS_TEXT = """
keywords tags topics terms labels categories
"""
TAGS = frozenset(_TAGS_TEXT.split())
_CONFIDENCES_TEXT = """
confidence answer_confidence decision_confidence certainty probability score
"""
CONFIDENCES = frozenset(_CONFIDENCES_TEXT.split())
_LISTS_TEXT = """
key_points points highlights bullets sentences risks facts items findings reasons quotes
"""
LISTS = frozenset(_LISTS_TEXT.split())


def folded(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Two schemas as one: properties and required add up, other keywords of the second win."""
    folded = {**base, **over}
    one, other = base.get("properties"), over.get("properties")
    if isinstance(one, dict) and isinstance(other, dict):
        folded["properties"] = {**one, **other}
    if isinstance(base.get("required"), list) and isinstance(over.get("required"), list):
        folded["required"] = [*base["required"], *over["required"]]
    return folded


def natural(schema: dict[str, Any], name: str) -> str:
    """What a schema without a type is about, by its keywords, else by the field's name."""
    if "properties" in schema or "required" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema or "minItems" in schema:
        return "array"
    if "minimum" in schema or "maximum" in schema or "multipleOf" in schema:
        return "number"
    plain = name.lower()
    if plain in CONFIDENCES:
        return "number"
    if plain in TAGS | LISTS:
        return "array"
    if plain == "needs_review":
        return "boolean"
    return "string" if name else "object"


def whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def bounds(schema: dict[str, Any], integer: bool) -> tuple[float | None, float | None]:
    """The closed range that minimum, maximum and their exclusive forms leave."""

    def number(key: str) -> float | None:
        value = schema.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    lows, highs = [number("minimum")], [number("maximum")]
    above, below = number("exclusiveMinimum"), number("exclusiveMaximum")
    if above is not None:
        lows.append(math.floor(above) + 1 if integer else above + _INSIDE)
    if below is not None:
        highs.append(math.ceil(below) - 1 if integer else below - _INSIDE)
    low = max((x for x in lows if x is not None), default=None)
    high = min((x for x in highs if x is not None), default=None)
    if integer:
        low = None if low is None else math.ceil(low)
        high = None if high is None else math.floor(high)
    return low, high
