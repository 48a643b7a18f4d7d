"""HTTP client for untrusted URLs, mainly webhooks.

Resolves a name once per call, checks every address, and connects only to checked addresses, while Host,
SNI and certificate stay those of the name. No redirects, no proxies from the environment, one time limit
for the whole call, a cap on the answer. Connections may be kept; lookup and check are each call's own.
"""

from __future__ import annotations

import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import urlsplit

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.exceptions import SSLError as WrappedSSLError
from urllib3.exceptions import TimeoutError as WrappedTimeout
from urllib3.response import BaseHTTPResponse

from worker.core.errors import Unavailable
from worker.core.version import __version__
from worker.delivery.addresses import AddressRules, UrlParts, UrlRefused, may_call, parse_target
from worker.delivery.kept_connections import KeptConnections
from worker.delivery.timed_sockets import TimedSocket, TimedTls

__all__ = [
    "AddressRules",
    "Outbound",
    "OutboundAnswer",
    "Resolver",
    "SystemResolver",
    "TimedOut",
    "Unreachable",
    "UrlRefused",
    "redact",
]

TOTAL_SECONDS = 20.0
BODY_CAP = 64 * 1024
MAX_ADDRESSES = 4

# urllib3's warning about bad response headers contains the whole URL, which may include a token.
logging.getLogger("urllib3.connection").addFilter(lambda record: "parse headers" not in str(record.msg))


class Unreachable(Unavailable):
    """No usable answer. `reason`: name, connect, tls, answer."""

    code = "UNREACHABLE"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, reason=reason)
        self.reason = reason


class TimedOut(Unavailable):
    """The call exceeded its time limit; the receiver may have got the request."""

    code = "TIMED_OUT"
    message = "the call took too long"


@dataclass(frozen=True)
class OutboundAnswer:
    """The response. Header names are lower case; `truncated`: the body exceeded the cap."""

    status: int
    headers: dict[str, str]
    body: bytes
    truncated: bool


class Resolver(Protocol):
    """Resolves a host name."""

    def resolve(self, host: str, port: int, timeout: float) -> Sequence[str]:
        """Returns all addresses, best first; raises Unreachable or TimedOut."""


class SystemResolver:
    """Resolves with getaddrinfo in a thread, because it takes no time limit."""

    def resolve(self, host: str, port: int, timeout: float) -> Sequence[str]:
        found: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()

        def look_up() -> None:
            try:
                rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                found.put(list(dict.fromkeys(str(row[4][0]) for row in rows)))
            except (OSError, UnicodeError):
                found.put(None)

        threading.Thread(target=look_up, name="resolver", daemon=True).start()
        try:
            addresses = found.get(timeout=max(timeout, 0.001))
        except queue.Empty as error:
            raise TimedOut() from error
        if not addresses:
            raise Unreachable("name", "the host name does not resolve")
        return addresses


class _Stale(Exception):
    """The server closed a kept connection as it was used again: no part of an answer came."""


class Outbound:
    """The client. `keeps`: a connection whose answer was read to its end serves further calls.

    A call whose kept connection turns out to be closed is made again on a new one, so `keeps` is for requests
    that may arrive twice.
    """

    def __init__(
        self,
        rules: AddressRules,
        *,
        resolver: Resolver | None = None,
        ca_file: str | None = None,
        total_seconds: float = TOTAL_SECONDS,
        body_cap: int = BODY_CAP,
        keeps: bool = False,
    ) -> None:
        self._rules, self._resolver = rules, resolver or SystemResolver()
        self._total, self._cap = total_seconds, body_cap
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._tls.sslsocket_class = TimedTls
        self._kept: KeptConnections[_Connection] | None = KeptConnections() if keeps else None

    def check_form(self, url: str) -> None:
        """Refuse URLs that `call` would refuse without a lookup."""
        target = parse_target(url, self._rules)
        with suppress(ValueError):
            if not may_call(str(ip_address(target.host)), self._rules):
                raise _no_public_address()

    def check(self, url: str) -> None:
        """Refuse URLs that `call` would refuse, before a webhook is stored."""
        self._addresses(parse_target(url, self._rules), time.monotonic() + self._total)

    def call(
        self, method: str, url: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> OutboundAnswer:
        """Send one request and return its answer for any status; raises UrlRefused, Unreachable, TimedOut."""
        target = parse_target(url, self._rules)
        request = _Request(method, target, body, _checked_headers(headers or {}))
        deadline = time.monotonic() + self._total
        addresses = self._addresses(target, deadline)
        kept = self._kept_connection(target, addresses, deadline)
        if kept is not None:
            with suppress(_Stale):
                return self._exchange(kept, request, again=True)
        return self._exchange(self._connection(target, addresses, deadline), request)

    def close(self) -> None:
        """Closes the connections that are kept."""
        if self._kept is not None:
            self._kept.close()

    def _exchange(self, connection: _Connection, request: _Request, *, again: bool = False) -> OutboundAnswer:
        """`again`: on a connection that was used before."""
        keeps = False
        try:
            response = _response(connection, request, again=again)
            data = self._read(response)
            # A server that wants no further request has made the library close it. After an interim answer
            # (1xx) the final one would be read as the next call's.
            whole = response.status >= 200 and len(data) <= self._cap
            keeps = whole and connection.sock is not None
            lower = {name.lower(): value for name, value in response.headers.items()}
            return OutboundAnswer(response.status, lower, data[: self._cap], len(data) > self._cap)
        except (TimeoutError, WrappedTimeout) as error:
            raise TimedOut() from error
        except (ssl.SSLError, WrappedSSLError, ssl.CertificateError) as error:
            raise Unreachable("tls", "no trusted TLS connection to the host") from error
        except (OSError, HTTPException, HTTPError) as error:
            raise Unreachable("answer", "the host's response is malformed") from error
        finally:
            if keeps and self._kept is not None:
                self._kept.keep(request.target.place, connection)
            else:
                connection.close()

    def _read(self, response: BaseHTTPResponse) -> bytes:
        """Read up to one byte beyond the cap. Reads to the end, where a truncated body is detected."""
        data = bytearray()
        while len(data) <= self._cap and (piece := response.read(self._cap + 1 - len(data))):
            data += piece
        return bytes(data)

    def _addresses(self, target: UrlParts, deadline: float) -> list[str]:
        """The host's addresses, all of which must be allowed: a mixed answer tries to bypass the check."""
        try:
            addresses: Sequence[str] = [str(ip_address(target.host))]
        except ValueError:
            addresses = self._resolver.resolve(target.host, target.port, deadline - time.monotonic())
        if not addresses:
            raise Unreachable("name", "the host name does not resolve")
        if not all(may_call(address, self._rules) for address in addresses):
            raise _no_public_address()
        return list(addresses[:MAX_ADDRESSES])

    def _kept_connection(self, target: UrlParts, addresses: list[str], deadline: float) -> _Connection | None:
        found = self._kept.take(target.place, addresses) if self._kept is not None else None
        if found is not None:
            found.pin = ([found.peer], deadline)
            sock: Any = found.sock
            sock.deadline = deadline
        return found

    def _connection(self, target: UrlParts, addresses: list[str], deadline: float) -> _Connection:
        left = max(deadline - time.monotonic(), 0.001)
        connection: _Connection
        if target.scheme == "https":
            connection = _PinnedHTTPS(target.host, target.port, timeout=left, ssl_context=self._tls)
        else:
            connection = _PinnedHTTP(target.host, target.port, timeout=left)
        connection.pin = (addresses, deadline)
        return connection


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    target: UrlParts
    body: bytes
    headers: dict[str, str]


def _response(connection: _Connection, request: _Request, *, again: bool) -> BaseHTTPResponse:
    """Sends the request, and reads the head of its answer."""
    try:
        connection.request(
            request.method,
            request.target.path,
            body=request.body or None,
            headers=request.headers,
            preload_content=False,
            decode_content=False,
        )
        return connection.getresponse()
    except (ConnectionError, ssl.SSLError) as error:
        if again:
            raise _Stale from error
        raise


def _no_public_address() -> UrlRefused:
    return UrlRefused("address", "the host resolves to an address that is not public")


def redact(url: str) -> str:
    """A URL for logs and journals: scheme, host and port; paths and queries often contain tokens."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(malformed URL)"
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not url.isascii()
        or not url.isprintable()
    ):
        return "(malformed URL)"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}/..."


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Values may come from contracts, so they must not contain line breaks. Only we set Host."""
    for name, value in headers.items():
        if not name.isascii() or not name.replace("-", "").isalnum() or name.lower() == "host":
            raise ValueError("a header name has letters, digits and hyphens, and is not Host")
        if not value.isascii() or not value.isprintable():
            raise UrlRefused("header", "a header value must be plain printable ASCII")
    return {"User-Agent": f"hire-worker/{__version__}", "Accept-Encoding": "identity", **headers}


class _Pinned:
    """Connects to checked addresses instead of resolving the name again."""

    pin: tuple[list[str], float]
    peer: str
    made: float

    def _new_conn(self: Any) -> socket.socket:
        addresses, deadline = self.pin
        for number, address in enumerate(addresses):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimedOut()
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = TimedSocket(family, socket.SOCK_STREAM)
            try:
                # Split the remaining time, so that a dead first address does not use it all.
                sock.settimeout(left / (len(addresses) - number))
                sock.connect((address, self.port))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                sock.close()
                continue
            sock.deadline = deadline
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            self.peer, self.made = address, time.monotonic()
            return sock
        if time.monotonic() >= deadline:
            raise TimedOut()
        raise Unreachable("connect", "the host refuses connections")


class _PinnedHTTP(_Pinned, HTTPConnection):
    pass


class _PinnedHTTPS(_Pinned, HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        # The handshake wrapped the socket in a new object.
        if isinstance(self.sock, TimedTls):
            self.sock.deadline = self.pin[1]


_Connection = _PinnedHTTP | _PinnedHTTPS
