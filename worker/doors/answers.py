"""Shared by all doors: request ids, JSON bodies, errors in a door's own form, SSE frames."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from flask import Request, Response, request
from werkzeug.datastructures import Headers

from worker.core.errors import Problem
from worker.core.ids import new_id
from worker.core.json import text_of
from worker.engine.events import Event, one_line

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

# Where a request's id is kept.
_ID = "worker.request_id"
_REQUEST_ID = re.compile(r"^[\x20-\x7e]{1,128}$")
_OWN_HEADERS = frozenset({"Content-Type", "Content-Length"})
# Statuses of answers that have a body.
_WITH_BODY = frozenset({200, 201, *range(400, 600)})
# Payloads up to this are kept encoded.
_SMALL = 4_096
SSE_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Connection": "keep-alive"}
_RETRY_SECONDS = "5"
# Those of an answer that is being made, with Flask or without.
AnswerHeaders = dict[str, str] | Headers


def this_request() -> Request:
    """The current request itself: each use of Flask's name for it looks it up."""
    found: Request = cast(Any, request)._get_current_object()
    return found


def request_id(environ: dict[str, Any]) -> str:
    """The id of a request: the one that was sent, or a new one, which it keeps."""
    found: str | None = environ.get(_ID)
    if found is None:
        received: str | None = environ.get("HTTP_X_REQUEST_ID")
        found = environ[_ID] = received if received and _REQUEST_ID.match(received) else new_id()
    return found


def add_common(headers: AnswerHeaders, status: int, environ: dict[str, Any]) -> None:
    """Adds the headers that all answers have."""
    headers.setdefault("X-Request-Id", request_id(environ))
    headers.setdefault("X-Content-Type-Options", "nosniff")
    if status == 503:
        # Temporary refusals and transient failures say when to retry.
        headers.setdefault("Retry-After", _RETRY_SECONDS)


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """JSON in one piece, without the headers that its door and the application add."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        return JsonAnswer(self.body, self.status, self.headers)


class _Headers(Headers):
    """Headers that are added without an expression's look at each character."""

    def add(self, key: str, value: Any, /, **options: Any) -> None:
        if type(value) is not str or options or "\n" in value or "\r" in value:
            super().add(key, value, **options)
        else:
            self._list.append((key, value))

    def setdefault(self, key: str, default: Any) -> str:
        wanted = key.lower()
        for name, found in self._list:
            if name.lower() == wanted:
                return found
        self.add(key, default)
        return str(default)


class JsonAnswer(Response):
    """JSON in one piece. Its headers are sent as they are, not copied and checked once more."""

    def __init__(self, text: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        made = _Headers()
        made.add("Content-Type", "application/json")
        made.add("Content-Length", str(len(text)))
        if headers:
            for name, value in headers.items():
                if name not in _OWN_HEADERS:
                    made.add(name, value)
        super().__init__([text], status, made)

    def get_wsgi_response(
        self, environ: WSGIEnvironment
    ) -> tuple[Iterable[bytes], str, list[tuple[str, str]]]:
        headers = self.headers.to_wsgi_list()
        whole = self.status_code in _WITH_BODY and environ["REQUEST_METHOD"] != "HEAD"
        if not whole or self._on_close or any(name == "Location" for name, _ in headers):
            return super().get_wsgi_response(environ)
        return cast(list[bytes], self.response), self.status, headers


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JsonAnswer(json_text(body), status, headers)


def json_text(body: Any) -> bytes:
    return text_of(body).encode() + b"\n"


def problem_answer(
    problem: Problem, body: dict[str, Any], headers: Mapping[str, str] | None = None
) -> PlainAnswer:
    headers = dict(headers or {})
    if problem.retry_after is not None:
        headers["Retry-After"] = str(problem.retry_after)
    return PlainAnswer(json_text(body), problem.status, headers)


def whole(text: str, default: int) -> int:
    """Parses a count from a client; invalid text gives the default."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 17 else default


def sse(batches: Iterable[list[Event]]) -> Iterator[str]:
    """Events as server-sent events; an empty batch becomes a heartbeat."""
    yield "retry: 5000\n\n"
    for batch in batches:
        if not batch:
            yield ":heartbeat\n\n"
        for event in batch:
            yield _kept_frame(event) if len(event.payload) <= _SMALL else _frame(event)


def _frame(event: Event) -> str:
    data = one_line(json.dumps(event.shown(), ensure_ascii=False, separators=(",", ":")))
    return f"id: {event.sequence}\nevent: {event.kind}\ndata: {data}\n\n"


@lru_cache(maxsize=1_024)
def _kept_frame(event: Event) -> str:
    """An event is encoded once for all that follow it."""
    return _frame(event)
