"""Reading a schema: what fields are for, parts folded into one, the types and bounds that hold."""

from __future__ import annotations

import math
import re
from typing import Any

_INSIDE = 1e-6

# What a summary is, by the names that fields for it have.
ANSWERS = frozenset(
    {"answer", "summary", "text", "content", "brief", "abstract", "result", "output", "response"}
)
TITLES = frozenset({"title", "headline"})
TAGS = frozenset({"keywords", "tags"})
LISTS = frozenset({"key_points", "points", "highlights", "bullets", "sentences", "quotes"})
CONFIDENCES = frozenset({"confidence", "answer_confidence", "decision_confidence"})
# Where a free text may say "abstain".
DECISIONS = frozenset({"decision", "vote", "verdict", "stance", "choice"})
# Fields that mark the kind of a document: their only value says nothing about its content.
FIXED = frozenset({"kind", "type", "version", "schema", "format"})
_ABSTENTIONS_TEXT = """
abstain abstained undecided unknown uncertain unsure undetermined indeterminate inconclusive notsure noopinion
noanswer cannottell cannotdetermine cannotdecide insufficient insufficientdata insufficientinformation
insufficientevidence na notapplicable idontknow dontknow
"""
_ABSTENTIONS = frozenset(_ABSTENTIONS_TEXT.split())


def abstains(option: Any) -> bool:
    """Whether an option of an enum leaves the matter open. "none" and "neutral" are answers."""
    return isinstance(option, str) and re.sub(r"[\W_]+", "", option.lower()) in _ABSTENTIONS


def folded(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Two schemas as one: properties and required add up, other keywords of the second win."""
    folded = {**base, **over}
    one, other = base.get("properties"), over.get("properties")
    if isinstance(one, dict) and isinstance(other, dict):
        folded["properties"] = {**one, **other}
    if isinstance(base.get("required"), list) and isinstance(over.get("required"), list):
        folded["required"] = [*base["required"], *over["required"]]
    return folded


def kinds(schema: dict[str, Any], name: str) -> tuple[str, ...]:
    """The types that a schema allows. Without any, its keywords tell, and any type fits a plain field."""
    stated = schema.get("type")
    if isinstance(stated, str):
        return (stated,)
    if isinstance(stated, list):
        return tuple(kind for kind in stated if isinstance(kind, str))
    if "properties" in schema or "required" in schema or not name:
        return ("object",)
    return ("array", "number", "boolean", "string", "null")


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
