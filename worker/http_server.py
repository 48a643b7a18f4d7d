"""gunicorn's HTTP in fewer steps: half of a short request's cost there is looking up the same again.

What is out of the ordinary goes gunicorn's own way, so that it is answered or refused as before.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from functools import lru_cache
from io import BytesIO
from typing import Any

from gunicorn import util
from gunicorn.config import Config
from gunicorn.http import message, parser, wsgi
from gunicorn.http.body import Body, LengthReader
from gunicorn.http.unreader import Unreader

# Larger bodies are not copied behind their heads.
_MOST_BYTES = 64 << 10
# gunicorn would read every field that it allows, half a megabyte, again with each piece that arrives.
_MOST_HEAD = 64 << 10
# A path, and perhaps a query, in which nothing has a meaning that depends on where it stands.
_LINE = re.compile(
    r"(GET|HEAD|POST|PUT|PATCH|DELETE) ((/(?!/)[0-9A-Za-z._~/-]*)(?:\?([0-9A-Za-z._~/=&%+,-]*))?) HTTP/1\.1"
)
# A name without an underscore, which a variable of the application could not tell from a hyphen, and a
# value without control characters.
_HEADER = re.compile(r"([0-9A-Za-z!#$%&'*+\-.^`|~]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_ONCE = frozenset({"HOST", "CONTENT-TYPE", "CONTENT-LENGTH"})
_SPECIAL = frozenset({"EXPECT", "TRANSFER-ENCODING"})
# More digits than any body that is read.
_LENGTH = re.compile(r"[0-9]{1,15}")


def use(cfg: Config) -> None:
    """From now on gunicorn serves requests in this process with fewer steps."""
    # A setting costs two calls, and each request asks for about thirty.
    vars(cfg).update({name: setting.get() for name, setting in cfg.settings.items()})
    parser.RequestParser.mesg_class = Request
    wsgi.Response = Answer
    if "SCRIPT_NAME" not in os.environ:
        wsgi.create = create
    # Each makes a list of the log's handlers, under their lock.
    wsgi.WSGIErrorsWrapper = lru_cache(maxsize=1)(wsgi.WSGIErrorsWrapper)


_create = wsgi.create


def create(
    req: Any, sock: Any, client: Any, server: Any, cfg: Config, **more: Any
) -> tuple[Any, dict[str, Any]]:
    """gunicorn's answer and variables for a request, made in one step if it was read so."""
    variables: dict[str, str] | None = getattr(req, "variables", None)
    if variables is None or more or not type(client) is type(server) is tuple:
        found: tuple[Any, dict[str, Any]] = _create(req, sock, client, server, cfg, **more)
        return found
    answer = Answer(req, sock, cfg)
    return answer, {
        **_variables_of_all(cfg),
        **variables,
        "wsgi.input": req.body,
        "gunicorn.socket": sock,
        "REQUEST_METHOD": req.method,
        "QUERY_STRING": req.query,
        "RAW_URI": req.uri,
        "PATH_INFO": req.path,
        "REMOTE_ADDR": client[0],
        "REMOTE_PORT": str(client[1]),
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "wsgi.early_hints": wsgi._make_early_hints_callback(req, sock, answer),
    }


@lru_cache(maxsize=1)
def _variables_of_all(cfg: Config) -> dict[str, Any]:
    also = {"SERVER_PROTOCOL": "HTTP/1.1", "SCRIPT_NAME": "", "wsgi.url_scheme": "http"}
    return {**wsgi.base_environ(cfg), **also}


class Request(message.Request):  # type: ignore[misc]
    """Reads an ordinary head that has arrived whole with one expression for each line."""

    max_buffer_headers: int

    # What gunicorn sets for each request.
    fragment, trailers, version = "", (), (1, 1)
    scheme, proxy_protocol_info = "http", None
    must_close = _expected_100_continue = False
    # Whether nothing in the head can make the connection close.
    _stays = False
    # What the headers are called in the application, if none comes twice.
    variables: dict[str, str] | None = None

    def __init__(self, cfg: Config, unreader: Unreader, peer_addr: Any, req_number: int = 1) -> None:
        data = unreader.read()
        if not data:
            raise StopIteration()
        if not self._read(cfg, unreader, data):
            unreader.unread(data)
            super().__init__(cfg, unreader, peer_addr, req_number)
            return
        self.cfg, self.unreader, self.req_number = cfg, unreader, req_number
        self.peer_addr = self.remote_addr = peer_addr

    def parse(self, unreader: Unreader) -> Any:
        self.max_buffer_headers = min(self.max_buffer_headers, _MOST_HEAD)
        return super().parse(unreader)

    def _read(self, cfg: Config, unreader: Unreader, data: bytes) -> bool:
        """Whether it was an ordinary request."""
        end = data.find(b"\r\n\r\n")
        line, *lines = data[: max(0, end)].decode("latin-1").split("\r\n")
        asked = _LINE.fullmatch(line)
        short = len(line) <= cfg.limit_request_line and len(lines) <= cfg.limit_request_fields
        if asked is None or not short or not lines or not _reads_plainly(cfg):
            return False
        headers: list[tuple[str, str]] = []
        variables: dict[str, str] = {}
        longest = cfg.limit_request_field_size - len("\r\n")
        for line in lines:
            match = _HEADER.fullmatch(line)
            if match is None or len(line) > longest:
                return False
            name, variable = _names(match[1])
            if name in _SPECIAL or (name in _ONCE and variable in variables):
                return False
            variables[variable] = value = match[2].strip(" \t")
            headers.append((name, value))
        length = variables.get("CONTENT_LENGTH", "0")
        if _LENGTH.fullmatch(length) is None:
            return False
        self.method, self.uri, self.path, query = asked.groups()
        self.query, self.headers, self._stays = query or "", headers, "HTTP_CONNECTION" not in variables
        if len(variables) == len(headers):
            self.variables = variables
        self._take_body(unreader, data[end + 4 :], int(length))
        return True

    def _take_body(self, unreader: Unreader, received: bytes, length: int) -> None:
        if len(received) < length:
            unreader.unread(received)
            self.body = Body(LengthReader(unreader, length))
            return
        # It has arrived with its head, so nobody need wait for it.
        self.body = BytesIO(received[:length])
        if len(received) > length:
            unreader.unread(received[length:])

    def should_close(self) -> bool:
        return self.must_close if self._stays else bool(super().should_close())


@lru_cache(maxsize=256)
def _names(name: str) -> tuple[str, str]:
    """A header's name for gunicorn, and for the application."""
    name = name.upper()
    variable = name.replace("-", "_")
    return name, variable if name in ("CONTENT-TYPE", "CONTENT-LENGTH") else f"HTTP_{variable}"


def _reads_plainly(cfg: Config) -> bool:
    """Whether no setting gives a line of a request another meaning."""
    return cfg.proxy_protocol == "off" and not cfg.secure_scheme_headers and not cfg.certfile


class Answer(wsgi.Response):  # type: ignore[misc]
    """The same bytes as gunicorn's, a short answer in one piece."""

    headers_sent: bool
    status: str | None

    def start_response(self, status: str, headers: Iterable[tuple[str, str]], exc_info: Any = None) -> Any:
        code = _code(status) if type(status) is str else None
        if code is None or exc_info or self.status is not None or self.req.method == "HEAD":
            return super().start_response(status, headers, exc_info)
        self.status, self.status_code = status, code
        self.process_headers(headers)
        self.chunked = self.is_chunked()
        return self.write

    def process_headers(self, headers: Iterable[tuple[str, str]]) -> None:
        for header in headers:
            name, value = header
            texts = type(name) is type(value) is str
            if texts and _is_plain(name) and wsgi.HEADER_VALUE_RE.fullmatch(value):
                self.headers.append((name, value.strip(" \t")))
            elif name == "Content-Length" and type(value) is str and _LENGTH.fullmatch(value):
                self.response_length = int(value)
                self.headers.append(header)
            else:
                super().process_headers((header,))

    def default_headers(self) -> list[str]:
        if self.upgrade or self.chunked:
            found: list[str] = super().default_headers()
            return found
        major, minor = self.req.version
        connection = "close" if self.should_close() else "keep-alive"
        return [
            f"HTTP/{major}.{minor} {self.status}\r\nServer: {self.version}\r\n"
            f"Date: {_date(int(time.time()))}\r\nConnection: {connection}\r\n"
        ]

    def write(self, data: bytes) -> None:
        whole = type(data) is bytes and len(data) == self.response_length and len(data) <= _MOST_BYTES
        if self.headers_sent or self._omits_body or not whole:
            super().write(data)
            return
        lines = [*self.default_headers(), *[f"{name}: {value}\r\n" for name, value in self.headers]]
        head = "".join(lines).encode("latin-1")
        # Before anything can be on the wire: after a failure gunicorn may then write no second head.
        self.headers_sent, self.sent = True, len(data)
        self._send(b"%b\r\n%b" % (head, data))

    def _emit_body(self, data: bytes) -> None:
        if self.chunked and len(data) <= _MOST_BYTES:
            self._send(b"%X\r\n%b\r\n" % (len(data), data))
        else:
            super()._emit_body(data)

    def _send(self, data: bytes) -> None:
        # gevent's `sendall` first asks for the size of the socket's buffer.
        sent = self.sock.send(data)
        if sent < len(data):
            self.sock.sendall(data[sent:])


@lru_cache(maxsize=64)
def _code(status: str) -> int | None:
    """The code of an answer that may have a body."""
    code = int(status[:3]) if wsgi.STATUS_RE.fullmatch(status) else 0
    return code if code >= 200 and code not in (204, 304) else None


@lru_cache(maxsize=256)
def _is_plain(name: str) -> bool:
    """Whether gunicorn passes on the header as it is. Names come from our own code."""
    odd = name.lower() == "content-length" or util.is_hoppish(name)
    return not odd and message.TOKEN_RE.fullmatch(name) is not None


@lru_cache(maxsize=1)
def _date(second: int) -> Any:
    return util.http_date(second)
