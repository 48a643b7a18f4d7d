"""Measures depth and size of JSON text without parsing it, and keeps recursion within the stack.

The interpreter's parser recurses in C, and libraries in this field raise the recursion limit to
100,000 on import: from then on a hundred kilobytes of `[` crash the process instead of raising an
error. So every untrusted text is measured first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import accumulate
from threading import Lock

MAX_FRAMES = 1_500
_LIMIT_LOCK = Lock()

_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_STRUCTURE = bytes(set(range(256)) - {*_STEP, ord(",")})
# The depth of this prefix is checked before the rest: hostile nesting starts with brackets.
_HEAD = 16_384


class Bound(StrEnum):
    """Which limit a text exceeds."""

    DEPTH = "depth"
    VALUES = "values"


def beyond(text: str, *, levels: int, values: int) -> Bound | None:
    """Returns the limit a parser would exceed: brackets deeper than `levels`, or more than `values` values.

    Every value but the outermost follows a comma or an opening bracket. Up to the first syntax error
    backslashes occur only inside strings, so dropping escapes and every second piece between quotes leaves
    exactly the structure that the parser would follow.
    """
    opened = text.count("[") + text.count("{")
    if opened <= levels and opened + text.count(",") <= values:
        return None
    plain = text.replace("\\\\", "").replace('\\"', "")
    if _depth(_structure(plain[:_HEAD])) > levels:
        return Bound.DEPTH
    # An object member has at most four quotes.
    if plain.count('"') > 4 * values + 2:
        return Bound.VALUES
    structure = _structure(plain)
    if len(structure) - structure.count(b"]") - structure.count(b"}") > values:
        return Bound.VALUES
    return Bound.DEPTH if _depth(structure) > levels else None


def _structure(plain: str) -> bytes:
    """Returns the brackets and commas outside strings."""
    outside = "".join(plain.split('"')[::2])
    return outside.encode("utf-8", "surrogatepass").translate(None, _NOT_STRUCTURE)


def _depth(structure: bytes) -> int:
    return max(accumulate(map(_STEP.__getitem__, structure.replace(b",", b""))), default=0)


def deeper_than(text: str, levels: int) -> bool:
    """Checks the depth only; for short texts."""
    return beyond(text, levels=levels, values=len(text)) is Bound.DEPTH


@contextmanager
def bounded_recursion() -> Iterator[None]:
    """Keeps the recursion limit low enough that RecursionError comes before a stack overflow."""
    with _LIMIT_LOCK:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(min(before, MAX_FRAMES))
        try:
            yield
        finally:
            sys.setrecursionlimit(before)
