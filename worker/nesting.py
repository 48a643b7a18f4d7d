"""How deep JSON text nests, told without parsing it, and recursion that ends before the stack does.

The interpreter's parser recurses in C, and libraries of this trade raise the recursion limit to
100,000 when they are imported: from then on a hundred kilobytes of `[` end the process instead of
raising an error. So every text of a stranger is measured first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from threading import Lock

MAX_FRAMES = 1_500
_LIMIT_LOCK = Lock()

_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(set(range(256)) - set(_STEP))


def deeper_than(text: str, levels: int) -> bool:
    """Whether a parser would follow brackets deeper than this.

    Up to the first syntax error backslashes occur only inside strings, so dropping escapes and
    every second piece between quotes leaves exactly the brackets that the parser would follow.
    """
    if text.count("[") + text.count("{") <= levels:
        return False
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    brackets = outside.encode("utf-8", "surrogatepass").translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > levels


@contextmanager
def bounded_recursion() -> Iterator[None]:
    """Holds the interpreter's limit where a RecursionError comes before the stack's end."""
    with _LIMIT_LOCK:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(min(before, MAX_FRAMES))
        try:
            yield
        finally:
            sys.setrecursionlimit(before)
