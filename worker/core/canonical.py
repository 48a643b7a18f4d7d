"""Strict JSON parsing, and the RFC 8785 canonical form whose hash is signed.

Parsing rejects whatever two parsers could read differently: repeated keys, numbers that a double cannot
hold, NaN, lone surrogates and bad UTF-8. Serialization follows RFC 8785. Equal contracts therefore have
equal hashes, whoever wrote them and in whatever key order.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, NoReturn

import rfc8785

from worker.core.errors import BadRequest, TooLarge
from worker.core.fields import field_path, shown
from worker.core.nesting import Bound, beyond

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
# Parsing and hashing this many values takes a web process about fifteen milliseconds.
MAX_VALUES = 20_000
LARGEST_INTEGER = 2**53 - 1
# From here on RFC 8785 writes an exponent, so the text cannot be mistaken for an integer.
_FIRST_EXPONENT = 1e21

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_NOT_HASHED = ("signatures", "hash")


@dataclass(frozen=True, slots=True)
class _Fault:
    """Placeholder in the parsed value for a rejected item, so that its path can be reported."""

    message: str
    expected: str
    received: Any
    key: str | None = None


def parse(
    raw: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES
) -> Any:
    """Parses `raw` as JSON; an error names the offending field where it is known."""
    if len(raw) > max_bytes:
        raise TooLarge(expected=f"at most {max_bytes} bytes", received=len(raw))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise BadRequest(
            "the body is not UTF-8", expected="UTF-8", received=f"an invalid byte at offset {fault.start}"
        ) from None
    over = beyond(text, levels=max_depth, values=max_values)
    if over is Bound.VALUES:
        raise TooLarge("the body has too many values", expected=f"at most {max_values} values")
    if over is Bound.DEPTH:
        raise BadRequest("the body is nested too deeply", expected=f"at most {max_depth} levels")
    faults: list[_Fault] = []
    try:
        value = _decoder(faults).decode(text)
    except json.JSONDecodeError as fault:
        raise BadRequest(
            "the body is not JSON",
            expected="one JSON value",
            received=f"something else at line {fault.lineno}, column {fault.colno}",
        ) from None
    if faults or _SURROGATE_ESCAPE.search(text):
        _refuse_first_fault(value)
    return value


def canonical(value: Any) -> bytes:
    """Serializes a value made of JSON types to its RFC 8785 form."""
    parts: list[str] = []
    try:
        _write(value, parts.append)
        return "".join(parts).encode()
    except (ValueError, TypeError, RecursionError) as fault:
        raise BadRequest(
            "the value has no canonical JSON form",
            expected="finite numbers, integers within 2^53, valid Unicode, modest nesting",
        ) from fault


def digest(value: Any) -> str:
    """Returns `sha256:` and the hex digest of the canonical form."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def contract_hash(contract: Mapping[str, Any]) -> str:
    """Returns the hash both parties sign; it covers the contract without its signatures and that hash."""
    return digest({key: value for key, value in contract.items() if key not in _NOT_HASHED})


def _write(value: Any, out: Callable[[str], None]) -> None:
    """Uses the interpreter's C encoder for strings: it escapes exactly what RFC 8785 escapes."""
    if isinstance(value, str):
        out(encode_basestring(value))
    elif value is None or isinstance(value, bool):
        out("null" if value is None else "true" if value else "false")
    elif isinstance(value, int):
        if abs(value) > LARGEST_INTEGER:
            raise ValueError("an integer beyond 2^53")
        out(int.__repr__(value))
    elif isinstance(value, float):
        out(_number(value))
    elif isinstance(value, dict):
        between = "{"
        for key in sorted(value, key=None if all(map(str.isascii, value)) else _utf16):
            out(between + encode_basestring(key) + ":")
            _write(value[key], out)
            between = ","
        out("}" if value else "{}")
    elif isinstance(value, list | tuple):
        between = "["
        for item in value:
            out(between)
            _write(item, out)
            between = ","
        out("]" if value else "[]")
    else:
        raise TypeError(type(value).__name__)


def _number(value: float) -> str:
    """Formats a number as ECMAScript does; unless Python writes an exponent, the digits are the same."""
    text = float.__repr__(value)
    if value == 0 or "e" in text or not math.isfinite(value):
        return rfc8785.dumps(value).decode()
    return text.removesuffix(".0")


def _utf16(key: str) -> bytes:
    """Sort key for object keys: their UTF-16 code units."""
    return key.encode("utf-16-be")


def _decoder(faults: list[_Fault]) -> json.JSONDecoder:
    """Returns a decoder that puts a `_Fault` in place of each rejected item and lists it."""

    def fault(message: str, expected: str, received: Any, key: str | None = None) -> _Fault:
        faults.append(_Fault(message, expected, received, key))
        return faults[-1]

    def integer(text: str) -> int | _Fault:
        if len(text) <= 17 and abs(int(text)) <= LARGEST_INTEGER:
            return int(text)
        return fault("the integer is too large", "an integer within 2^53, or text", shown(text))

    def fraction(text: str) -> float | _Fault:
        number = float(text)
        if abs(number) == float("inf"):
            return fault("the number is too large", "a number that a double can hold", shown(text))
        if LARGEST_INTEGER < abs(number) < _FIRST_EXPONENT:
            return fault("the number is an integer too large", "an integer within 2^53, or text", shown(text))
        return number

    def constant(text: str) -> _Fault:
        return fault("not a JSON number", "a finite number", text)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any] | _Fault:
        unique = dict(items)
        if len(unique) == len(items):
            return unique
        seen: set[str] = set()
        for key, _ in items:
            if key in seen:
                return fault("a key appears twice", "each key once", shown(key), key)
            seen.add(key)
        raise AssertionError("fewer keys than items, and none twice")

    return json.JSONDecoder(
        object_pairs_hook=pairs, parse_int=integer, parse_float=fraction, parse_constant=constant
    )


def _refuse_first_fault(value: Any, path: tuple[str | int, ...] = ()) -> None:
    """Walks in document order, to the depth that `parse` has allowed, and rejects the first invalid item."""
    if isinstance(value, _Fault):
        _refuse(value, path if value.key is None else (*path, value.key))
    elif isinstance(value, str):
        _refuse_surrogates(value, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_first_fault(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_surrogates(key, path)
            _refuse_first_fault(item, (*path, key))


def _refuse_surrogates(text: str, path: tuple[str | int, ...]) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(_Fault("half of a surrogate pair", "whole Unicode characters", shown(text)), path)


def _refuse(fault: _Fault, path: tuple[str | int, ...]) -> NoReturn:
    raise BadRequest(fault.message, field=field_path(path), expected=fault.expected, received=fault.received)
