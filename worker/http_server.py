"""gunicorn's HTTP in fewer steps: half of a short request's cost there is looking up the same again.

What is out of the ordinary goes gunicorn's own way, so that it is answered or refused as before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from gunicorn import util
from gunicorn.config import Config
from gunicorn.http import message, parser, wsgi

# Larger bodies are not copied behind their heads.
_MOST_BYTES = 64 << 10
# gunicorn would read every field that it allows, half a megabyte, again with each piece that arrives.
_MOST_HEAD = 64 << 10
# A name without an underscore, which a variable of the application could not tell from a hyphen, and a
# value without control characters.
_HEADER = re.compile(r"([0-9A-Za-z!#$%&'*+\-.^`|~]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_ONCE = frozenset({"HOST", "CONTENT-TYPE"})
_SPECIAL = frozenset({"EXPECT"})


def use(cfg: Config) -> None:
    """From now on gunicorn serves requests in this process with fewer steps."""
    # A setting costs two calls, and each request asks for about thirty.
    vars(cfg).update({name: setting.get() for name, setting in cfg.settings.items()})
    parser.RequestParser.mesg_class = Request
    wsgi.Response = Answer
    # Each makes a list of the log's handlers, under their lock.
    wsgi.WSGIErrorsWrapper = lru_cache(maxsize=1)(wsgi.WSGIErrorsWrapper)


class Request(message.Request):  # type: ignore[misc]
    """Reads ordinary headers with one expression each, and no endless heads."""

    max_buffer_headers: int

    def parse(self, unreader: Any) -> Any:
        self.max_buffer_headers = min(self.max_buffer_headers, _MOST_HEAD)
        return super().parse(unreader)

    def parse_headers(self, data: bytes, from_trailer: bool = False) -> list[tuple[str, str]]:
        found = None if from_trailer or self.cfg.secure_scheme_headers else self._ordinary(data)
        if found is None:
            found = super().parse_headers(data, from_trailer)
        return found

    def _ordinary(self, data: bytes) -> list[tuple[str, str]] | None:
        lines = data.decode("latin-1").split("\r\n")
        if len(lines) > self.limit_request_fields:
            return None
        headers: list[tuple[str, str]] = []
        seen: set[str] = set()
        longest = self.limit_request_field_size - len("\r\n")
        for line in lines:
            match = _HEADER.fullmatch(line)
            if match is None or len(line) > longest:
                return None
            name = match[1].upper()
            if name in _SPECIAL or (name in _ONCE and name in seen):
                return None
            seen.add(name)
            headers.append((name, match[2].strip(" \t")))
        return headers


class Answer(wsgi.Response):  # type: ignore[misc]
    """The same bytes as gunicorn's, a short answer in one piece."""

    headers_sent: bool

    def process_headers(self, headers: Iterable[tuple[str, str]]) -> None:
        for header in headers:
            name, value = header
            texts = type(name) is type(value) is str
            if texts and _is_plain(name) and wsgi.HEADER_VALUE_RE.fullmatch(value):
                self.headers.append((name, value.strip(" \t")))
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
        whole_answer = b"%b\r\n%b" % (head, data)
        # gevent's `sendall` first asks for the size of the socket's buffer.
        sent = self.sock.send(whole_answer)
        if sent < len(whole_answer):
            self.sock.sendall(whole_answer[sent:])


@lru_cache(maxsize=256)
def _is_plain(name: str) -> bool:
    """Whether gunicorn passes on the header as it is. Names come from our own code."""
    odd = name.lower() == "content-length" or util.is_hoppish(name)
    return not odd and message.TOKEN_RE.fullmatch(name) is not None


@lru_cache(maxsize=1)
def _date(second: int) -> Any:
    return util.http_date(second)
