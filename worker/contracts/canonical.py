"""From received bytes to a value, and from a value to the one text whose hash is signed.

Reading is strict where two readers could disagree: repeated keys, numbers that a double cannot hold,
NaN, lone surrogates and bad UTF-8 are refused. Writing is RFC 8785. So equal contracts have equal
hashes, whoever wrote them and in whatever order of keys.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import rfc8785

from worker.contracts.fields import field_path, shown
from worker.errors import BadRequest, TooLarge
from worker.nesting import deeper_than

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
LARGEST_INTEGER = 2**53 - 1
# From here on RFC 8785 writes an exponent, so the text cannot be taken for an integer.
_FIRST_EXPONENT = 1e21

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_NOT_HASHED = ("signatures", "hash")


@dataclass(frozen=True, slots=True)
class _Fault:
    """Stands in the parsed value for something refused, so that its path can be told."""

    message: str
    expected: str
    received: Any
    key: str | None = None


def parse(raw: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """The JSON value in `raw`, or a refusal that names the field where it can be known."""
    if len(raw) > max_bytes:
        raise TooLarge(expected=f"at most {max_bytes} bytes", received=len(raw))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise BadRequest(
            "the body is not UTF-8", expected="UTF-8", received=f"an invalid byte at offset {fault.start}"
        ) from None
    if deeper_than(text, max_depth):
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
    """The RFC 8785 form of a value made of JSON's own types."""
    try:
        return rfc8785.dumps(value)
    except (ValueError, RecursionError) as fault:
        raise BadRequest(
            "the value has no canonical JSON form",
            expected="finite numbers, integers within 2^53, valid Unicode, modest nesting",
        ) from fault


def digest(value: Any) -> str:
    """`sha256:` and the hex digest of the canonical form."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def contract_hash(contract: Mapping[str, Any]) -> str:
    """The hash both parties sign: everything in the contract but its signatures and the hash itself."""
    return digest({key: value for key, value in contract.items() if key not in _NOT_HASHED})


def _decoder(faults: list[_Fault]) -> json.JSONDecoder:
    """A decoder that leaves a `_Fault` where it met something refused, and lists it."""

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
        made = dict(items)
        if len(made) == len(items):
            return made
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
    """Walk in document order, as deep as `_check_depth` let through; refuse the first thing wrong."""
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
