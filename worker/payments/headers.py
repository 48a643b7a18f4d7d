"""The x402 headers themselves: base64 JSON, read strictly and written short.

Reading refuses whatever could mean two things or could not be written again; writing keeps
every header under what gunicorn and node accept.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from worker.errors import BadRequest
from worker.nesting import deeper_than
from worker.payments.networks import find_network

PAYMENT_REQUIRED = "PAYMENT-REQUIRED"
PAYMENT_SIGNATURE = "PAYMENT-SIGNATURE"
PAYMENT_RESPONSE = "PAYMENT-RESPONSE"
X_PAYMENT = "X-PAYMENT"
X_PAYMENT_RESPONSE = "X-PAYMENT-RESPONSE"

MAX_READ_CHARS = 16_384
MAX_WRITE_CHARS = 7_600
MAX_DEPTH = 32

_STANDARD = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_URL_SAFE = re.compile(r"[A-Za-z0-9_-]+={0,2}")


def encode(document: Mapping[str, Any]) -> str:
    """Return padded standard base64 of compact ASCII JSON, which every published client reads."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(text.encode("ascii")).decode("ascii")


def required_header(document: Mapping[str, Any]) -> str:
    """Return a PAYMENT-REQUIRED value below the limit, the resource's description cut to fit."""
    value = encode(document)
    resource = dict(document.get("resource") or {})
    text = str(resource.get("description", ""))
    while len(value) >= MAX_WRITE_CHARS and text:
        # A character takes up to 16 header characters, so this steps down without overshooting much.
        over = len(value) - MAX_WRITE_CHARS + 1
        text = text[: max(0, len(text) - max(1, over // 16))]
        resource["description"] = text
        value = encode({**document, "resource": resource})
    return _bounded(value, PAYMENT_REQUIRED)


def response_headers(document: Mapping[str, Any], *, version: int = 2) -> dict[str, str]:
    """Return the header that tells a payer how settling went, in the dialect they paid in."""
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
        document = json.loads(
            text, object_pairs_hook=_pairs, parse_constant=_no_constant, parse_float=_finite
        )
    except ValueError:
        refuse(name, "one JSON object without duplicate keys", "something else")
    if not isinstance(document, dict):
        refuse(name, "a JSON object", document)
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


def _check_text(value: Any, name: str) -> None:
    """Refuse lone surrogates, which could not be written as UTF-8 again."""
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
    """Refuse a payment header, naming the field; long or nested values are shown by their kind."""
    raise BadRequest(
        "the payment header is malformed",
        code="PAYMENT_INVALID",
        field=where,
        expected=expected,
        received=shown(received),
        advice="Sign the payment as the 402 answer asks and send it again; nothing was charged.",
        reason=reason,
    )


_KINDS = {dict: "an object", list: "an array", int: "a very large integer", float: "a fraction"}


def shown(received: Any) -> Any:
    """Return something short to show; nested values and long texts only by their kind."""
    if received is None:
        return "nothing"
    if isinstance(received, str):
        return received if len(received) <= 100 else f"{len(received)} characters"
    # An integer of thousands of digits is legal JSON, and must not come back in an error.
    if isinstance(received, bool) or (isinstance(received, int) and abs(received) < 10**18):
        return received
    return _KINDS.get(type(received), "something else")
