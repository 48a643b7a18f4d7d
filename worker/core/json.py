"""JSON encoding for storage and delivery, and truncation of author-supplied text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

# Python types that JSON object keys can be made from.
_NAMES = (str, int, float, bool, type(None))
_DEEPEST = 20


class NotJson(ValueError):
    """A value that JSON cannot represent; names its type and its path in the value."""


def kept_encoder(
    *, ascii: bool, allow_nan: bool, spaced: bool = False, default: Callable[[Any], Any] | None = None
) -> Callable[[Any], str]:
    """Compact JSON, unless it is `spaced`. Python's own encoders make the one in C anew for each value.

    A value that contains itself is a RecursionError, not a ValueError.
    """
    comma, colon = (", ", ": ") if spaced else (",", ":")
    plain = json.JSONEncoder(
        ensure_ascii=ascii, separators=(comma, colon), allow_nan=allow_nan, default=default
    )
    parts: Any = json.encoder
    if parts.c_make_encoder is None:
        return plain.encode
    quote = parts.encode_basestring_ascii if ascii else parts.encode_basestring
    chunks = parts.c_make_encoder(None, plain.default, quote, None, colon, comma, False, False, allow_nan)
    return lambda value: "".join(chunks(value, 0))


text_of = kept_encoder(ascii=False, allow_nan=False)
# The same in ASCII, and with the numbers that only Python reads.
ascii_of = kept_encoder(ascii=True, allow_nan=True)


def encode(value: Any) -> bytes:
    """Encodes a value as JSON for storage and delivery."""
    try:
        return text_of(value).encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise NotJson(unencodable(value)) from error


def unencodable(value: Any) -> str:
    """Names the part of this value that JSON cannot represent: `datetime at .orders[2].made`."""
    path, seen = "", 0
    while (inner := _part(value)) is not None and seen < _DEEPEST:
        step, value = inner
        path, seen = path + step, seen + 1
    return f"{_kind(value)} at {path}" if path else _kind(value)


def _part(value: Any) -> tuple[str, Any] | None:
    """The first part of a container that cannot be encoded, with its path; None if there is none."""
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        parts = [(f".{name}", part) for name, part in value.items() if isinstance(name, _NAMES)]
    elif isinstance(value, (list, tuple)):
        parts = [(f"[{number}]", part) for number, part in enumerate(value)]
    return next((each for each in parts if not _encodes(each[1])), None)


def _encodes(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
        return False
    return True


def _kind(value: Any) -> str:
    if isinstance(value, float):
        return str(value)
    if isinstance(value, str):
        return "text with half a surrogate"
    if isinstance(value, dict) and not all(isinstance(name, _NAMES) for name in value):
        odd = next(name for name in value if not isinstance(name, _NAMES))
        return f"a dict with a key of type {type(odd).__name__}"
    return type(value).__name__


def short(text: object, most: int) -> str:
    """Makes an author's message valid text and truncates it to `most`."""
    return str(text)[:most].encode(errors="replace").decode()
