"""The bytes of a request's body: read within a time, and a sender's mistake when they cannot be read.

The server hands the body on as it comes, for as long as the sender takes; under gevent each reader has a
place among the process's connections, so nobody may take for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import request
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]
from werkzeug.exceptions import RequestEntityTooLarge

from worker.errors import BadRequest, Problem

BODY_SECONDS = 60.0
_BROKEN = "the body ends early, or its chunks are malformed"


class TooSlow(Problem):
    code, status = "REQUEST_TIMEOUT", 408
    message = "the request's body took too long"
    advice = "Send the whole body at once; nothing was charged."


def raw() -> bytes:
    """The whole body of the present request."""
    most, length = request.max_content_length, request.content_length
    with in_time(request.environ, BODY_SECONDS), _one_more(most):
        try:
            body = request.get_data()
        except (OSError, ParseException) as broken:
            raise BadRequest(_BROKEN) from broken
    if most is not None and len(body) > most:
        raise RequestEntityTooLarge()
    if length is not None and len(body) < length:
        raise BadRequest(_BROKEN)
    return body


@contextmanager
def _one_more(most: int | None) -> Iterator[None]:
    """Chunks are cut at the limit: a byte beyond it tells a body that is too long from one that just fits."""
    if most is not None:
        request.max_content_length = most + 1
    try:
        yield
    finally:
        request.max_content_length = most


@contextmanager
def in_time(environ: dict[str, Any], seconds: float) -> Iterator[None]:
    """Ends what the block does when it takes longer, where the server runs under gevent."""
    if not hasattr(environ.get("gunicorn.socket"), "hub"):
        yield
        return
    import gevent  # only a gunicorn with gevent comes here

    with gevent.Timeout(seconds, TooSlow()):
        yield
