"""Reads a request's body under a time limit; an unreadable body is the sender's error.

The server passes the body on as it arrives, however slowly. Under gevent each reader occupies one of the
process's connections, so the time must be limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import BytesIO
from typing import Any

from flask import Request, request
from gunicorn.http.errors import ParseException
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import RequestEntityTooLarge

from worker.core.errors import BadRequest, Problem, TooLarge
from worker.doors.answers import this_request

BODY_SECONDS = 60.0
# Larger than any form with only a token and a name in it.
SHORT_FORM = 16 << 10
_MOST_FIELDS = 500
# Where a body that has been read is kept.
_BODY = "worker.body"
_FORM = "application/x-www-form-urlencoded"
# Reads a request's body.
Body = Callable[[], bytes]
_BROKEN = "the body ends early, or its chunks are malformed"


class TooSlow(Problem):
    code, status = "REQUEST_TIMEOUT", 408
    message = "the request's body took too long"
    advice = "Send the whole body at once. You were not charged."


def raw() -> bytes:
    """The whole body of the current request, which is then no form that Flask could read."""
    asked = this_request()
    environ = asked.environ
    body: bytes | None = environ.get(_BODY)
    if body is None:
        most, length = asked.max_content_length, asked.content_length
        ends = environ.get("wsgi.input_terminated", False)
        if ends and length is not None and (most is None or length <= most):
            body = environ[_BODY] = of_length(environ, length)
        else:
            body = _through_flask(asked)
    return body


def of_length(environ: dict[str, Any], length: int) -> bytes:
    """A server that ends the body where its length says needs no stream in between, and one call."""
    with in_time(environ, BODY_SECONDS):
        try:
            body: bytes = environ["wsgi.input"].read(length) if length else b""
        except (OSError, ParseException) as broken:
            raise BadRequest(_BROKEN) from broken
    if len(body) < length:
        raise BadRequest(_BROKEN)
    return body


def _through_flask(asked: Request) -> bytes:
    most, length = asked.max_content_length, asked.content_length
    # A body with a length that is too long is refused before it is read.
    limit = _one_more(most) if length is None else nullcontext()
    with in_time(asked.environ, BODY_SECONDS), limit:
        try:
            body = asked.get_data()
        except (OSError, ParseException) as broken:
            raise BadRequest(_BROKEN) from broken
    if most is not None and len(body) > most:
        raise RequestEntityTooLarge()
    if length is not None and len(body) < length:
        raise BadRequest(_BROKEN)
    return body


def form(most: int | None = None) -> MultiDict[str, str]:
    """The fields of the request's form; `most`: its bytes, if fewer than other bodies may have.

    Parsing a megabyte of separators takes a quarter of a second, so they are counted first.
    """
    if most is not None:
        request.max_content_length = most
    if _through_flask(this_request()).count(b"&") >= _MOST_FIELDS and request.mimetype == _FORM:
        raise TooLarge("the form has too many fields", expected=f"at most {_MOST_FIELDS} fields")
    return request.form


@contextmanager
def _one_more(most: int | None) -> Iterator[None]:
    """Raises the limit by one byte: chunked bodies are cut at it, so one byte more shows an overlong body."""
    if most is not None:
        request.max_content_length = most + 1
    try:
        yield
    finally:
        request.max_content_length = most


def in_time(environ: dict[str, Any], seconds: float) -> AbstractContextManager[object]:
    """Raises TooSlow if the block, which reads the body, takes longer; only under gevent."""
    arrived = type(environ.get("wsgi.input")) is BytesIO
    if arrived or not hasattr(environ.get("gunicorn.socket"), "hub"):
        return nullcontext()
    import gevent  # reached only under gunicorn with gevent

    timeout: AbstractContextManager[object] = gevent.Timeout(seconds, TooSlow)
    return timeout
