"""Flask without what no door uses: sessions, coroutines, subdomains and host names in routes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from flask import Flask, Request
from flask.sessions import NullSession, SessionInterface
from werkzeug.routing import MapAdapter

# Names that can be no error, without a port or with one that stays in an address.
_NAME = r"[0-9A-Za-z-]{1,63}"
_PORT = r"(?!:80$|:443$):(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3})"
_HOST = re.compile(rf"{_NAME}(?:\.{_NAME})*(?:{_PORT})?")


def is_plain(environ: Mapping[str, Any]) -> bool:
    """Whether neither the host's name nor a WebSocket can make Flask refuse the request."""
    return "HTTP_UPGRADE" not in environ and _HOST.fullmatch(environ.get("HTTP_HOST", "")) is not None


class _NoSessions(SessionInterface):
    """The same empty session for every request: writing to it is an error."""

    _empty = NullSession()

    def open_session(self, app: Flask, request: Request) -> NullSession:
        return self._empty

    def make_null_session(self, app: Flask) -> NullSession:
        return self._empty


class Application(Flask):
    session_interface = _NoSessions()

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Flask's, which parses the host's name twice, for names that need it and for WebSockets."""
        environ = request.environ if request is not None else {}
        path = environ.get("PATH_INFO", "")
        if request is None or not path.startswith("/") or not is_plain(environ):
            return super().create_url_adapter(request)
        return MapAdapter(
            self.url_map,
            environ["HTTP_HOST"].lower(),
            request.root_path,
            "",
            request.scheme,
            request.path,
            request.method,
            environ.get("QUERY_STRING"),
        )
