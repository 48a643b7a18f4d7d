"""How an error names a place in a document, quotes the value found there, and parses times.

Paths use JavaScript notation (`terms.price.amount`, `colors[0]`); the document itself is `$`. Quoted
values come from untrusted input, so they are short and always encodable as UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from worker.core.errors import BadRequest

LONGEST_SHOWN = 80
LONGEST_PATH = 200

_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def field_path(parts: Iterable[str | int]) -> str:
    """Returns the path reached through these keys and indexes."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _NAME.fullmatch(part):
            path += f".{part}" if path else part
        else:
            path += f"[{json.dumps(_short(part))}]"
        if len(path) > LONGEST_PATH:
            return path[:LONGEST_PATH] + "..."
    return path or "$"


def shown(value: Any) -> Any:
    """Returns what may be repeated to a caller: small scalars unchanged, anything else by its type."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return _short(value)
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, int) and abs(value) >= 2**53:
        return "a very large integer"
    return value


def parse_time(text: Any, field: str) -> int:
    """Parses an RFC 3339 time to microseconds since 1970; drops finer digits."""
    try:
        if not isinstance(text, str) or not _RFC3339.fullmatch(text):
            raise ValueError
        moment = datetime.fromisoformat(text.upper())
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise BadRequest(
            "the time cannot be read",
            field=field,
            expected="an RFC 3339 time such as 2026-01-30T10:30:00Z",
            received=shown(text),
        ) from None


def _short(text: str) -> str:
    clean = text[:LONGEST_SHOWN].encode("utf-8", "replace").decode("utf-8")
    return clean + "..." if len(text) > LONGEST_SHOWN else clean
