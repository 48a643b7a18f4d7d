"""Answers what is asked most often without Flask, whose routing and contexts take longer than the answer.

Only success and offers are answered here. What is out of the ordinary goes through Flask before anything was
done, and an error on the way is raised there once more, so that it is answered like every other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from werkzeug.http import HTTP_STATUS_CODES

from worker.core.logs import begin_request, end_request
from worker.doors.answers import PlainAnswer, add_common, request_id
from worker.doors.application import is_plain
from worker.doors.bodies import Body, of_length
from worker.doors.limits import BODY_BYTES, check_headers
from worker.store.request_counts import RequestCounts

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

# When a request began, and what came up.
BEGAN, _FAILED = "worker.began", "worker.failed"
_MOST_DIGITS = len(str(BODY_BYTES))
_STATUS_LINES = {status: f"{status} {name.upper()}" for status, name in HTTP_STATUS_CODES.items()}


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """A POST with a JSON answer. `needs`: the variable of a header without which Flask is asked."""

    endpoint: str
    answer: Callable[[dict[str, Any], Body], PlainAnswer]
    add_headers: Callable[[dict[str, str]], None] | None = None
    needs: str = ""


class DirectRoutes:
    """A WSGI application in front of Flask's; the routes, by path, are Flask's as well.

    A path that ends with a slash stands for those with one part more, as in `/buy/<capability>`.
    """

    def __init__(
        self, app: WSGIApplication, routes: Mapping[str, DirectRoute], counts: RequestCounts
    ) -> None:
        self._app = app
        self._routes = routes
        self._counts = counts

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        route, length = self._route(environ["PATH_INFO"]), environ.get("CONTENT_LENGTH", "")
        if route is None or environ["REQUEST_METHOD"] != "POST" or not _ordinary(length, environ):
            return self._app(environ, start_response)
        if route.needs and not environ.get(route.needs):
            return self._app(environ, start_response)
        began, id = time.monotonic(), request_id(environ)
        begin_request(id)
        try:
            check_headers(environ)
            answer = route.answer(environ, partial(of_length, environ, int(length)))
        except Exception as error:
            environ[BEGAN], environ[_FAILED] = began, error
            try:
                return self._app(environ, start_response)
            finally:
                # Else error, variables and body would hold each other until somebody looks for garbage.
                del environ[_FAILED]
        finally:
            end_request()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(answer.body))}
        headers |= answer.headers
        if route.add_headers is not None:
            route.add_headers(headers)
        add_common(headers, answer.status, environ)
        self._counts.count(route.endpoint, answer.status, time.monotonic() - began)
        start_response(_STATUS_LINES[answer.status], list(headers.items()))
        return [answer.body]

    def _route(self, path: str) -> DirectRoute | None:
        route = self._routes.get(path)
        if route is None:
            route = self._routes.get(path[: path.rfind("/") + 1])
        return None if path.endswith("/") or not (path.isascii() and path.isprintable()) else route


def raise_if_failed(environ: Mapping[str, Any]) -> None:
    """Called in Flask for each request: raises the error that came up here."""
    error = environ.get(_FAILED)
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback names this frame


def _ordinary(length: str, environ: Mapping[str, Any]) -> bool:
    """Whether the body is of a known, allowed length, and nothing else can be wrong before its route."""
    counted = length.isascii() and length.isdigit() and len(length) <= _MOST_DIGITS
    known = counted and int(length) <= BODY_BYTES and "HTTP_TRANSFER_ENCODING" not in environ
    return known and is_plain(environ)
