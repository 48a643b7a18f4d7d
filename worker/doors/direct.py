"""Answers what is asked most often without Flask, whose routing and contexts take longer than the answer.

Only success is answered here. What is out of the ordinary goes through Flask before anything was done, and an
error on the way is raised there once more, so that it is answered like every other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from worker.core.logs import begin_request, end_request
from worker.doors.answers import request_id
from worker.doors.bearers import Caller
from worker.doors.bodies import of_length
from worker.doors.limits import BODY_BYTES, check_headers
from worker.store.request_counts import RequestCounts

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

# When a request came in, for the count of its answer.
BEGAN = "worker.began"
_FAILED = "worker.failed"
_MOST_DIGITS = len(str(BODY_BYTES))


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """A POST with a JSON answer. `enter` runs before the body is read."""

    endpoint: str
    enter: Callable[[Mapping[str, Any], str], Caller]
    answer: Callable[[bytes, Caller], bytes]
    status: HTTPStatus = HTTPStatus.OK


class DirectRoutes:
    """A WSGI application in front of Flask's; the routes, by path, are Flask's as well."""

    def __init__(
        self, app: WSGIApplication, routes: Mapping[str, DirectRoute], counts: RequestCounts
    ) -> None:
        self._app = app
        self._routes = routes
        self._counts = counts

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        route, length = self._routes.get(environ["PATH_INFO"]), environ.get("CONTENT_LENGTH", "")
        if route is None or environ["REQUEST_METHOD"] != "POST" or not _ordinary(length, environ):
            return self._app(environ, start_response)
        began, id = time.monotonic(), request_id(environ.get("HTTP_X_REQUEST_ID"))
        begin_request(id)
        try:
            check_headers(environ)
            caller = route.enter(environ, route.endpoint)
            answer = route.answer(of_length(environ, int(length)), caller)
        except Exception as error:
            environ["HTTP_X_REQUEST_ID"], environ[BEGAN], environ[_FAILED] = id, began, error
            return self._app(environ, start_response)
        finally:
            end_request()
        self._counts.count(route.endpoint, route.status, time.monotonic() - began)
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(answer))),
            ("X-Request-Id", id),
            ("X-Content-Type-Options", "nosniff"),
        ]
        start_response(f"{route.status.value} {route.status.phrase.upper()}", headers)
        return [answer]


def raise_if_failed(environ: Mapping[str, Any]) -> None:
    """Called in Flask for each request: raises the error that came up here."""
    error = environ.get(_FAILED)
    if error is not None:
        raise error


def _ordinary(length: str, environ: Mapping[str, Any]) -> bool:
    """Whether the body is of a known, allowed length."""
    counted = length.isascii() and length.isdigit() and len(length) <= _MOST_DIGITS
    return counted and int(length) <= BODY_BYTES and "HTTP_TRANSFER_ENCODING" not in environ
