"""JSON as the kernel's serde_json reads and writes it, byte for byte.

Hashes and size limits are computed over the kernel's own rendering: compact, keys sorted by code point,
shortest floats, integers only inside i64 and u64. `loads` refuses what that parser refuses, even where
Python would accept it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, TypeGuard

from worker.core.nesting import Bound, beyond

U64_MAX = 2**64 - 1
I64_MIN = -(2**63)
# The kernel's parser stops at the 128th open bracket.
MAX_DEPTH = 127
MAX_VALUES = 100_000

_I32_MAX = 2**31 - 1
_POW10 = tuple(float(f"1e{n}") for n in range(309))
_NUMBER = re.compile(r"(-?)([0-9]+)(\.[0-9]+)?(?:[eE]([+-]?)([0-9]+))?")
# Skips escaped backslashes and complete pairs; any surrogate that remains is a lone one.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(?P<lone>u[dD][89a-fA-F])|.)")
# Where Python's rendering can differ: a padded negative exponent, or an integer that may be outside u64.
_ODD = re.compile(r"e-0|[0-9]{19}")


class NotSerdeJson(ValueError):
    """Not JSON to the kernel; `reason` is fixed text that is safe to show to anyone."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def loads(raw: bytes | str) -> Any:
    """Read JSON with correctly rounded floats: the values the kernel held when it wrote them."""
    return _read(raw, _EXACT)


def reread(raw: bytes | str) -> Any:
    """Read JSON with the kernel's own float parser, which can miss the last digit of long numbers."""
    return _read(raw, _KERNEL)


def compact(value: Any) -> bytes:
    """Render for hashing and measuring: no spaces, keys sorted, numbers as Rust prints them."""
    try:
        text = _sorted_dumps(value)
        if _ODD.search(text):
            parts: list[str] = []
            _write(value, parts)
            text = "".join(parts)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise NotSerdeJson("a value that JSON cannot hold") from exc


def response(value: Any) -> bytes:
    """Render a response: compact, keys in the given order, never NaN or a lone surrogate."""
    try:
        return _ordered_dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise NotSerdeJson("a value that JSON cannot hold") from exc


def digest(value: Any) -> str:
    """Bare lower-case hex sha256 of the compact rendering."""
    return hashlib.sha256(compact(value)).hexdigest()


def float_text(value: float) -> str:
    """A finite float as Rust prints it: fixed from 1e-5 below 1e16, else an exponent without padding."""
    if not math.isfinite(value):
        raise NotSerdeJson("a number that is not finite")
    text = repr(value)
    if "e-0" not in text:
        return text
    mantissa, _, exponent = text.partition("e")
    if exponent != "-05":
        return f"{mantissa}e{int(exponent)}"
    sign = "-" if mantissa.startswith("-") else ""
    return f"{sign}0.0000{mantissa.lstrip('-').replace('.', '')}"


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether the kernel treats this number as an integer."""
    return isinstance(value, int) and not isinstance(value, bool) and I64_MIN <= value <= U64_MAX


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether the kernel treats this as a number; True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _read(raw: bytes | str, decoder: json.JSONDecoder) -> Any:
    if isinstance(raw, bytes):
        try:
            raw = raw.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise NotSerdeJson("the text is not UTF-8") from exc
    if raw.startswith("\ufeff"):
        raise NotSerdeJson("the text starts with a byte order mark")
    over = beyond(raw, levels=MAX_DEPTH, values=MAX_VALUES)
    if over is not None:
        raise NotSerdeJson("nested too deep" if over is Bound.DEPTH else "too many values")
    try:
        value = decoder.decode(raw)
    except json.JSONDecodeError as exc:
        raise NotSerdeJson(f"not JSON at line {exc.lineno} column {exc.colno}") from exc
    # Checks the text, not the value: the kernel also reads values that a later duplicate key replaces.
    if any(escape["lone"] for escape in _ESCAPE.finditer(raw)):
        raise NotSerdeJson("a lone surrogate in a string")
    return value


def depth(value: Any) -> int:
    """The maximum nesting depth of arrays and objects."""
    deepest = 0
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        item, level = todo.pop()
        if isinstance(item, (dict, list, tuple)):
            deepest = max(deepest, level + 1)
            if deepest > MAX_DEPTH:
                return deepest
            children = item.values() if isinstance(item, dict) else item
            todo.extend((child, level + 1) for child in children)
    return deepest


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(encode_basestring(value))
    elif value is None or isinstance(value, bool):
        parts.append("null" if value is None else "true" if value else "false")
    elif isinstance(value, int):
        parts.append(int.__repr__(value) if is_integer(value) else float_text(_to_f64(value)))
    elif isinstance(value, float):
        parts.append(float_text(value))
    elif isinstance(value, dict):
        parts.append("{")
        for i, key in enumerate(sorted(value)):
            parts.append(f"{',' if i else ''}{encode_basestring(key)}:")
            _write(value[key], parts)
        parts.append("}")
    elif isinstance(value, (list, tuple)):
        parts.append("[")
        for i, item in enumerate(value):
            if i:
                parts.append(",")
            _write(item, parts)
        parts.append("]")
    else:
        raise TypeError(type(value).__name__)


def _to_f64(value: int) -> float:
    try:
        return float(value)
    except OverflowError as exc:
        raise NotSerdeJson("a number outside the range of a float") from exc


def _exact_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NotSerdeJson("a number outside the range of a float")
    return value


def _kernel_float(text: str) -> float:
    """serde_json's default algorithm: a u64 of leading digits, then float operations by powers of ten."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise NotSerdeJson("a number that cannot be read")
    sign, whole, fraction, exponent_sign, exponent_digits = match.groups()
    significand, taken = _leading_digits(0, whole)
    exponent = len(whole) - taken
    if fraction:
        significand, taken = _leading_digits(significand, fraction[1:])
        exponent -= taken
    if exponent_digits:
        digits = int(exponent_digits[:4300])
        if digits > _I32_MAX:
            if significand and exponent_sign != "-":
                raise NotSerdeJson("a number outside the range of a float")
            return -0.0 if sign else 0.0
        exponent += -digits if exponent_sign == "-" else digits
    value = _scale(float(significand), exponent)
    return -value if sign else value


def _leading_digits(significand: int, digits: str) -> tuple[int, int]:
    taken = 0
    for digit in digits:
        grown = significand * 10 + int(digit)
        if grown > U64_MAX:
            break
        significand = grown
        taken += 1
    return significand, taken


def _scale(value: float, exponent: int) -> float:
    while abs(exponent) > 308:
        if value == 0.0:
            return value
        if exponent > 0:
            raise NotSerdeJson("a number outside the range of a float")
        value /= 1e308
        exponent += 308
    value = value * _POW10[exponent] if exponent >= 0 else value / _POW10[-exponent]
    if math.isinf(value):
        raise NotSerdeJson("a number outside the range of a float")
    return value


def _decoder(read_float: Callable[[str], float]) -> json.JSONDecoder:
    def read_int(text: str) -> int | float:
        if len(text) <= 20:
            value = int(text)
            if I64_MIN <= value <= U64_MAX and text != "-0":
                return value
        return read_float(text)

    def read_constant(name: str) -> Any:
        raise NotSerdeJson("NaN and Infinity are not JSON")

    return json.JSONDecoder(parse_float=read_float, parse_int=read_int, parse_constant=read_constant)


_EXACT = _decoder(_exact_float)
_KERNEL = _decoder(_kernel_float)
_sorted_dumps = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode
_ordered_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
