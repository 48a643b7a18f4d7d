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


class TooSlow(Problem):
    code, status = "REQUEST_TIMEOUT", 408
    message = "the request's body took too long"
    advice = "Send the whole body at once; nothing was charged."


def raw() -> bytes:
    """The whole body of the present request."""
    with in_time(request.environ, BODY_SECONDS):
        try:
            body = request.get_data()
        except (OSError, ParseException) as broken:
            raise BadRequest("the body ends early, or its chunks are malformed") from broken
    most = request.max_content_length
    if request.content_length is None and most is not None and len(body) >= most:
        # One that comes in chunks was cut at the limit, where others were refused.
        raise RequestEntityTooLarge()
    return body


@contextmanager
def in_time(environ: dict[str, Any], seconds: float) -> Iterator[None]:
    """Ends what the block does when it takes longer, where the server runs under gevent."""
    if not hasattr(environ.get("gunicorn.socket"), "hub"):
        yield
        return
    import gevent  # only a gunicorn with gevent comes here

    with gevent.Timeout(seconds, TooSlow()):
        yield
