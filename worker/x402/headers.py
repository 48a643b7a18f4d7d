"""Reads and writes the x402 headers: base64 JSON, read strictly and written compactly.

Reading refuses anything ambiguous or that could not be written again; writing keeps every header
below the limits of gunicorn and node.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from worker.core.errors import BadRequest
from worker.core.json import kept_encoder
from worker.core.nesting import deeper_than
from worker.x402.networks import find_network

PAYMENT_REQUIRED = "PAYMENT-REQUIRED"
PAYMENT_SIGNATURE = "PAYMENT-SIGNATURE"
PAYMENT_RESPONSE = "PAYMENT-RESPONSE"
X_PAYMENT = "X-PAYMENT"
X_PAYMENT_RESPONSE = "X-PAYMENT-RESPONSE"

MAX_READ_CHARS = 16_384
MAX_WRITE_CHARS = 7_600
MAX_DEPTH = 32

# Removes something from a document that is too large for a header.
Reduction = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_text_of = kept_encoder(ascii=True, allow_nan=False)
_STANDARD = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_URL_SAFE = re.compile(r"[A-Za-z0-9_-]+={0,2}")


def encode(document: Mapping[str, Any]) -> str:
    """Return padded standard base64 of compact ASCII JSON, readable by every published client."""
    return _base64(_text_of(document))


def required_header(document: Mapping[str, Any], smaller: Sequence[Reduction] = ()) -> str:
    """Return a PAYMENT-REQUIRED value below the limit.

    Applies the reductions in `smaller` one after the other until the value fits; finally truncates the
    resource's description.
    """
    value = encode(document)
    for reduce in smaller:
        if len(value) < MAX_WRITE_CHARS:
            return value
        document = reduce(document)
        value = encode(document)
    resource = dict(document.get("resource") or {})
    text = str(resource.get("description", ""))
    while len(value) >= MAX_WRITE_CHARS and text:
        # A character takes up to 16 header characters, so each step overshoots only a little.
        over = len(value) - MAX_WRITE_CHARS + 1
        text = text[: max(0, len(text) - max(1, over // 16))]
        resource["description"] = text
        value = encode({**document, "resource": resource})
    return _bounded(value, PAYMENT_REQUIRED)


def stored_response_headers(text: str, network: str) -> dict[str, str]:
    """Return both headers for an outcome whose compact ASCII JSON is stored; it names this network."""
    found = {PAYMENT_RESPONSE: _bounded(_base64(text), PAYMENT_RESPONSE)}
    legacy = _legacy_text(text, network)
    if legacy is None:
        return found | response_headers(json.loads(text), version=1)
    return found | {X_PAYMENT_RESPONSE: _bounded(_base64(legacy), X_PAYMENT_RESPONSE)}


def _legacy_text(text: str, caip2: str) -> str | None:
    """The outcome with V1's name of its network, not encoded anew; None if the text may not be ours."""
    network = find_network(caip2)
    member = f'"network":"{caip2}"'
    at, nested = text.find(member), text.find("{", 1)
    if network is None or at < 0 or (0 < nested < at):
        return None
    return f'{text[:at]}"network":"{network.name}"{text[at + len(member) :]}'


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("ascii")).decode("ascii")


def response_headers(document: Mapping[str, Any], *, version: int = 2) -> dict[str, str]:
    """Return the header that reports the settlement outcome, in the dialect the payer used."""
    if version == 1:
        network = find_network(str(document.get("network", "")))
        legacy = {**document, "network": network.name} if network else document
        return {X_PAYMENT_RESPONSE: _bounded(encode(legacy), X_PAYMENT_RESPONSE)}
    return {PAYMENT_RESPONSE: _bounded(encode(document), PAYMENT_RESPONSE)}


def _bounded(value: str, name: str) -> str:
    if len(value) >= MAX_WRITE_CHARS:
        raise ValueError(f"{name} would take {len(value)} characters")
    return value


def decode(header: str, name: str) -> dict[str, Any]:
    if len(header) > MAX_READ_CHARS:
        refuse(name, f"at most {MAX_READ_CHARS} characters", len(header))
    standard = _STANDARD.fullmatch(header) is not None
    if not standard and _URL_SAFE.fullmatch(header) is None:
        refuse(name, "base64, standard or url-safe", "other characters")
    body = header.rstrip("=")
    padding = len(header) - len(body)
    if len(body) % 4 == 1 or (padding and len(header) % 4):
        refuse(name, "base64 of a whole number of bytes", "a wrong length")
    try:
        data = base64.b64decode(
            body + "=" * (-len(body) % 4), altchars=None if standard else b"-_", validate=True
        )
        text = data.decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        refuse(name, "base64 of UTF-8 text", "other bytes")
    if deeper_than(text, MAX_DEPTH):
        refuse(name, f"at most {MAX_DEPTH} levels", "more")
    try:
        document = _DECODER.decode(text)
    except ValueError:
        refuse(name, "one JSON object without duplicate keys", "something else")
    if not isinstance(document, dict):
        refuse(name, "a JSON object", document)
    # Text that was UTF-8 has half a surrogate only where one is escaped.
    if "\\u" in text:
        _check_text(document, name)
    return document


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def _no_constant(_: str) -> NoReturn:
    raise ValueError("not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_no_constant, parse_float=_finite)


def _check_text(value: Any, name: str) -> None:
    """Refuse lone surrogates, which cannot be encoded as UTF-8."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            refuse(name, "Unicode text", "a lone surrogate")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key, name)
            _check_text(item, name)
    elif isinstance(value, list):
        for item in value:
            _check_text(item, name)


def refuse(where: str, expected: str, received: Any, *, reason: str = "invalid_payload") -> NoReturn:
    """Refuse a payment header, naming the field; long or nested values are shown by their type."""
    raise BadRequest(
        "the payment header is malformed",
        code="PAYMENT_INVALID",
        field=where,
        expected=expected,
        received=shown(received),
        advice="Sign the payment as the 402 answer asks and send it again. You were not charged.",
        reason=reason,
    )


_KINDS = {dict: "an object", list: "an array", int: "a very large integer", float: "a fraction"}


def shown(received: Any) -> Any:
    """Return a short form to show; nested values and long texts only by their type."""
    if received is None:
        return "nothing"
    if isinstance(received, str):
        return received if len(received) <= 100 else f"{len(received)} characters"
    # An integer of thousands of digits is legal JSON, and must not be echoed in an error.
    if isinstance(received, bool) or (isinstance(received, int) and abs(received) < 10**18):
        return received
    return _KINDS.get(type(received), "something else")
