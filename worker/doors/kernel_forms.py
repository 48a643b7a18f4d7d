"""Request and error formats of the kernel door: lenient bodies, Rebuno's errors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from flask import Response, request
from werkzeug.exceptions import RequestEntityTooLarge

from worker.core.errors import BadRequest, Problem
from worker.core.json import NotJson
from worker.core.nesting import Bound, beyond
from worker.doors.answers import problem_answer, whole
from worker.doors.bodies import raw

MOST_ID = 256
MOST_DEPTH = 128
MOST_VALUES = 100_000

_CODES = {
    400: "VALIDATION_ERROR",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    409: "CONFLICT",
    413: "VALIDATION_ERROR",
    422: "VALIDATION_ERROR",
    429: "RATE_LIMITED",
    503: "SERVICE_UNAVAILABLE",
}
_KINDS = {
    "VALIDATION_ERROR": "validation error",
    "NOT_FOUND": "not found",
    "CONFLICT": "conflict",
    "RATE_LIMITED": "rate limited",
    "SERVICE_UNAVAILABLE": "service unavailable",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def refuse(problem: Problem) -> Response:
    """An error in Rebuno's format."""
    code = _CODES.get(problem.status, problem.code if problem.status < 500 else "INTERNAL_ERROR")
    kind = getattr(problem, "kind", _KINDS.get(code, ""))
    message = problem.message if not kind or problem.message == kind else f"{kind}: {problem.message}"
    if code == "INTERNAL_ERROR":
        message = "internal error"
    body = {"error": message, "code": code, "details": problem.details or None}
    return problem_answer(problem, body).response()


def body() -> dict[str, Any]:
    """The fields of the current request's body."""
    try:
        read = raw()
    except RequestEntityTooLarge as fault:
        raise BadRequest("request body too large") from fault
    return fields_of(read)


def fields_of(body: bytes) -> dict[str, Any]:
    """The first JSON value of a body, whatever its content type; `null` is an empty object."""
    value = _first_value(body)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest("invalid JSON: the body must be an object", expected="object")
    return value


def required(fields: dict[str, Any], name: str, *, shown: str = "", most: int = MOST_ID) -> str:
    """A required text."""
    value = text(fields, name, shown=shown, most=most)
    if not value:
        raise BadRequest(f"{shown or name} is required", field=shown or name)
    return value


def text(fields: dict[str, Any], name: str, *, shown: str = "", most: int = MOST_ID) -> str:
    """An optional text, '' if missing. Lengths count bytes."""
    value = fields.get(name)
    if value is None:
        return ""
    field = shown or name
    if not isinstance(value, str):
        raise BadRequest(f"{field} must be text", field=field, expected="string")
    if most and len(value.encode()) > most:
        raise BadRequest(f"{field} exceeds maximum length of {most} characters", field=field)
    return value


def plain(name: str, field: str) -> str:
    """A name of an agent, runner or tool without control characters: it appears in logs and lists."""
    if _CONTROL.search(name):
        raise BadRequest(f"{field} has a control character", field=field)
    return name


def flag(fields: dict[str, Any], name: str, *, shown: str = "") -> bool:
    value, field = fields.get(name), shown or name
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{field} must be true or false", field=field, expected="boolean")
    return bool(value)


def number(name: str, default: int, most: int = 2**53) -> int:
    """A number from the query; an invalid one gives the default."""
    return min(whole(request.args.get(name, ""), default), most)


def query(*names: str) -> list[str]:
    """Required query parameters."""
    values = [request.args.get(name, "") for name in names]
    if not all(values):
        raise BadRequest(f"{' and '.join(names)} query params are required")
    for name, value in zip(names, values, strict=True):
        if len(value.encode()) > MOST_ID:
            raise BadRequest(f"{name} exceeds maximum length of {MOST_ID} characters", field=name)
        plain(value, name)
    return values


@contextmanager
def storable() -> Iterator[None]:
    """Turns values without a JSON form into a BadRequest."""
    try:
        yield
    except NotJson as fault:
        raise BadRequest("invalid JSON: a value has no JSON form") from fault


def _first_value(raw: bytes) -> Any:
    try:
        content = raw.decode()
    except UnicodeDecodeError as fault:
        raise BadRequest("invalid JSON: not UTF-8") from fault
    content = content.lstrip(" \t\r\n")
    if not content:
        raise BadRequest("invalid JSON: EOF")
    over = beyond(content, levels=MOST_DEPTH, values=MOST_VALUES)
    if over is Bound.DEPTH:
        raise BadRequest("invalid JSON: nested too deeply", expected=f"at most {MOST_DEPTH} levels")
    if over is Bound.VALUES:
        raise BadRequest("invalid JSON: too many values", expected=f"at most {MOST_VALUES} values")
    try:
        value, end = _DECODER.raw_decode(content)
    except ValueError as fault:
        raise BadRequest("invalid JSON: not one JSON value") from fault
    if _SURROGATE.search(content):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as fault:
            raise BadRequest("invalid JSON: half of a surrogate pair") from fault
    return value


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(digits)
    return value


def _constant(word: str) -> NoReturn:
    raise ValueError(word)


_DECODER = json.JSONDecoder(parse_float=_float, parse_constant=_constant)
