"""One HTTP/1.1 exchange on a connection, read strictly: an answer in another form is no answer.

`http.client` takes three times as long, most of it to read headers as those of an e-mail. Here an answer's
head and body are bounded in bytes and time, and a connection is used again only if the answer ended where
it said it would. All that arrives is bounded too, and read once, or once more by who has waited in part: an
answer in many small pieces keeps the other requests waiting hardly longer than one in few.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_HEAD = 64 * 1024
_MAX_LINE = 4 * 1024
_AT_ONCE = 64 * 1024
_CONTINUE = 100
# How much may arrive for each byte of a head and a body: chunks and interim answers add to them.
_MOST_OVERHEAD = 4

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n\x00]*)?")
_FIELD_LINES = re.compile(rb"(?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\x00]*)*")
_CHUNK_LINE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n\x00]*)?")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_FRAMING = ("content-length", "transfer-encoding")
_LENGTH = re.compile(r"[0-9]{1,15}")


class BadAnswer(Exception):
    """The answer is not HTTP as we read it, or it ended early."""


class Overlong(Exception):
    """The body of an answer with this status exceeds its limit."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer; names of headers are in lower case. `stays`: the connection can be used again."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    stays: bool


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Headers as they are sent; refuses a name or value that would end its line."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("a header cannot be sent as it is")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


class NotYet(Exception):
    """More must arrive, and did not while it was waited for."""


class Exchange:
    """A request that was sent, and what has arrived of its answer and was not read yet."""

    __slots__ = ("_at", "_clock", "_data", "_kept", "_left", "_link", "_most", "_soon", "_until")

    def __init__(
        self,
        link: socket.socket,
        request: bytes,
        *,
        most: int,
        until: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most`: bytes of the answer's body; `until`: when it must have arrived, by this clock."""
        self._link = link
        self._until = until
        self._clock = clock
        self._most = most
        self._left = _MOST_OVERHEAD * (MAX_HEAD + most)
        self._data = b""
        self._at = 0
        self._kept: list[bytes] = []
        self._soon: float | None = None
        sent = link.send(request)
        if sent < len(request):
            link.sendall(request[sent:])

    def answer(self) -> HttpAnswer:
        """Waits for the whole answer; raises BadAnswer, Overlong or OSError."""
        return _answer(self, self._most)

    def answer_within(self, seconds: float) -> HttpAnswer:
        """The same of what comes in this time, else NotYet is raised. Then it can be waited for again."""
        self._soon = self._clock() + seconds
        try:
            return _answer(self, self._most)
        except NotYet:
            # From the beginning.
            self._data, self._at, self._soon = b"".join(self._kept), 0, None
            raise

    @property
    def size(self) -> int:
        return len(self._data) - self._at

    def more(self) -> bool:
        """Waits for more; False at the end."""
        data = self._link.recv(_AT_ONCE) if self._soon is None else self._received_by(self._soon)
        if self._clock() > self._until:
            raise TimeoutError
        self._left -= len(data)
        if self._left < 0:
            raise BadAnswer
        self._data, self._at = self._data[self._at :] + data, 0
        return bool(data)

    def _received_by(self, soon: float) -> bytes:
        left = soon - self._clock()
        # However much there is to read, this ends.
        if left <= 0 and self._kept:
            raise NotYet
        patience = self._link.gettimeout()
        self._link.settimeout(max(0.0, left))
        try:
            data = self._link.recv(_AT_ONCE)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            raise NotYet from None
        finally:
            self._link.settimeout(patience)
        self._kept.append(data)
        return data

    def before(self, mark: bytes, most: int) -> bytes:
        """What stands before this mark, which is dropped."""
        searched = 0
        while (at := self._data.find(mark, self._at + searched, self._at + most)) < 0:
            searched = max(0, self.size - len(mark) + 1)
            if self.size >= most or not self.more():
                raise BadAnswer
        found, self._at = self._data[self._at : at], at + len(mark)
        return found

    def exactly(self, size: int) -> bytes:
        while self.size < size:
            if not self.more():
                raise BadAnswer
        found = self._data[self._at : self._at + size]
        self._at += size
        return found


def _answer(incoming: Exchange, most: int) -> HttpAnswer:
    status, headers, stays = _head(incoming)
    while status == _CONTINUE:
        status, headers, stays = _head(incoming)
    if status < 200 or status in (204, 304):
        # After an interim answer the final one would be read as the next call's; so would a forbidden body.
        ended = status >= 200 and headers.keys().isdisjoint(_FRAMING)
        stays, body = stays and ended, b""
    else:
        framed, body = _body(incoming, status, headers, most)
        stays = stays and framed
    return HttpAnswer(status, headers, body, stays and not incoming.size)


def _head(incoming: Exchange) -> tuple[int, dict[str, str], bool]:
    """Status and headers, and whether the server keeps the connection open."""
    head = incoming.before(b"\r\n\r\n", MAX_HEAD)
    start = _STATUS_LINE.match(head)
    if start is None or not _FIELD_LINES.fullmatch(head, start.end()):
        raise BadAnswer
    headers: dict[str, str] = {}
    for line in head[start.end() :].decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    stays = start[1] == b"1" and "close" not in headers.get("connection", "").lower()
    return int(start[2]), headers, stays


def _body(incoming: Exchange, status: int, headers: Mapping[str, str], most: int) -> tuple[bool, bytes]:
    """The body, and whether its end is known without closing the connection."""
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise BadAnswer
        # With a length, too, somebody on the way may see another end.
        return length is None, _chunks(incoming, status, most)
    if length is None:
        return False, _until_closed(incoming, status, most)
    if not _LENGTH.fullmatch(length):
        raise BadAnswer
    if int(length) > most:
        raise Overlong(status)
    return True, incoming.exactly(int(length))


def _chunks(incoming: Exchange, status: int, most: int) -> bytes:
    parts: list[bytes] = []
    left = most
    while True:
        line = _CHUNK_LINE.fullmatch(incoming.before(b"\r\n", _MAX_LINE))
        if line is None:
            raise BadAnswer
        size = int(line[1], 16)
        if size == 0:
            break
        left -= size
        if left < 0:
            raise Overlong(status)
        parts.append(incoming.exactly(size))
        if incoming.exactly(2) != b"\r\n":
            raise BadAnswer
    while incoming.before(b"\r\n", _MAX_LINE):
        pass  # trailers
    return b"".join(parts)


def _until_closed(incoming: Exchange, status: int, most: int) -> bytes:
    while incoming.size <= most:
        if not incoming.more():
            return incoming.exactly(incoming.size)
    raise Overlong(status)
