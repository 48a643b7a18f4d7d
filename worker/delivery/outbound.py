"""Calls to URLs that strangers chose: webhooks, above all.

A name is looked up once per call, every address it stands for is judged, and the connection goes to
exactly what was judged, while Host, SNI and certificate stay those of the name. No redirects, no
proxies from the environment, one time limit for everything, a cap on the answer.
"""

from __future__ import annotations

import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
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

from worker import __version__
from worker.delivery.addresses import Refused, Rules, Target, may_call, parse_target
from worker.errors import Unavailable

__all__ = [
    "Answer",
    "Outbound",
    "Refused",
    "Resolver",
    "Rules",
    "SystemResolver",
    "TimedOut",
    "Unreachable",
    "redact",
]

TOTAL_SECONDS = 20.0
BODY_CAP = 64 * 1024
MAX_ADDRESSES = 4

# urllib3 warns about a receiver's bad headers with the whole URL, which may hold a token.
logging.getLogger("urllib3.connection").addFilter(lambda record: "parse headers" not in str(record.msg))


class Unreachable(Unavailable):
    """No usable answer came. `reason`: name, connect, tls, answer."""

    code = "UNREACHABLE"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, reason=reason)
        self.reason = reason


class TimedOut(Unavailable):
    """The time for the whole call was used up; the receiver may have got it."""

    code = "TIMED_OUT"
    message = "the call took too long"


@dataclass(frozen=True)
class Answer:
    """What came back. Header names are lower case; `truncated` says that the body had more than the cap."""

    status: int
    headers: dict[str, str]
    body: bytes
    truncated: bool


class Resolver(Protocol):
    """Finds the addresses of a name."""

    def resolve(self, host: str, port: int, timeout: float) -> Sequence[str]:
        """All addresses, best first; raises Unreachable or TimedOut."""


class SystemResolver:
    """The machine's own look-up, in a thread, because it cannot be given a time limit."""

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
            raise Unreachable("name", "the host name stands for no address")
        return addresses


class Outbound:
    """The client. It keeps no connections: each call judges its address anew."""

    def __init__(
        self,
        rules: Rules,
        *,
        resolver: Resolver | None = None,
        ca_file: str | None = None,
        total_seconds: float = TOTAL_SECONDS,
        body_cap: int = BODY_CAP,
    ) -> None:
        self._rules, self._resolver = rules, resolver or SystemResolver()
        self._total, self._cap = total_seconds, body_cap
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._tls.sslsocket_class = _TimedTLS

    def check(self, url: str) -> None:
        """Refuse now what `call` would refuse: before a webhook is stored or money is mentioned."""
        self._addresses(parse_target(url, self._rules), time.monotonic() + self._total)

    def call(
        self, method: str, url: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and return its answer, whatever the status; Refused, Unreachable, TimedOut."""
        target = parse_target(url, self._rules)
        sent = _checked_headers(headers or {})
        deadline = time.monotonic() + self._total
        addresses = self._addresses(target, deadline)
        connection = self._connection(target, addresses, deadline)
        try:
            connection.request(
                method,
                target.path,
                body=body or None,
                headers=sent,
                preload_content=False,
                decode_content=False,
            )
            response = connection.getresponse()
            data = self._read(response)
            lower = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, lower, data[: self._cap], len(data) > self._cap)
        except (TimeoutError, WrappedTimeout) as error:
            raise TimedOut() from error
        except (ssl.SSLError, WrappedSSLError, ssl.CertificateError) as error:
            raise Unreachable("tls", "no trusted TLS connection to the host") from error
        except (OSError, HTTPException, HTTPError) as error:
            raise Unreachable("answer", "the host did not answer properly") from error
        finally:
            connection.close()

    def _read(self, response: BaseHTTPResponse) -> bytes:
        """Up to one byte beyond the cap. Read to the end: only there a body cut short shows."""
        data = bytearray()
        while len(data) <= self._cap and (piece := response.read(self._cap + 1 - len(data))):
            data += piece
        return bytes(data)

    def _addresses(self, target: Target, deadline: float) -> list[str]:
        """The addresses of the host, all of them allowed: a mixed answer is an attempt to slip through."""
        try:
            addresses: Sequence[str] = [str(ip_address(target.host))]
        except ValueError:
            addresses = self._resolver.resolve(target.host, target.port, deadline - time.monotonic())
        if not addresses:
            raise Unreachable("name", "the host name stands for no address")
        if not all(may_call(address, self._rules) for address in addresses):
            raise Refused("address", "the host does not stand for public addresses only")
        return list(addresses[:MAX_ADDRESSES])

    def _connection(self, target: Target, addresses: list[str], deadline: float) -> HTTPConnection:
        left = max(deadline - time.monotonic(), 0.001)
        connection: _PinnedHTTP | _PinnedHTTPS
        if target.scheme == "https":
            connection = _PinnedHTTPS(target.host, target.port, timeout=left, ssl_context=self._tls)
        else:
            connection = _PinnedHTTP(target.host, target.port, timeout=left)
        connection.pin = (addresses, deadline)
        return connection


def redact(url: str) -> str:
    """A URL for logs and journals: scheme, host and port; paths and queries often hold tokens."""
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
    """Values may come from contracts: they must not end the line. Host is ours alone."""
    for name, value in headers.items():
        if not name.isascii() or not name.replace("-", "").isalnum() or name.lower() == "host":
            raise ValueError("a header name has letters, digits and hyphens, and is not Host")
        if not value.isascii() or not value.isprintable():
            raise Refused("header", "a header value must be plain printable ASCII")
    return {"User-Agent": f"hire-worker/{__version__}", "Accept-Encoding": "identity", **headers}


class _Timed:
    """Makes every single send and receive of a socket respect the end of the whole call."""

    deadline: float | None = None

    def _arm(self: Any) -> None:
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the whole call took too long")
            self.settimeout(left)

    def recv_into(self, *args: Any, **options: Any) -> int:
        self._arm()
        return int(super().recv_into(*args, **options))  # type: ignore[misc]

    def send(self, *args: Any, **options: Any) -> int:
        self._arm()
        return int(super().send(*args, **options))  # type: ignore[misc]

    def sendall(self, *args: Any, **options: Any) -> None:
        self._arm()
        super().sendall(*args, **options)  # type: ignore[misc]


class _TimedSocket(_Timed, socket.socket):
    pass


class _TimedTLS(_Timed, ssl.SSLSocket):
    pass


class _Pinned:
    """Connects to judged addresses instead of looking the name up again."""

    pin: tuple[list[str], float]

    def _new_conn(self: Any) -> socket.socket:
        addresses, deadline = self.pin
        for number, address in enumerate(addresses):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimedOut()
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = _TimedSocket(family, socket.SOCK_STREAM)
            try:
                # A dead first address leaves time for the others.
                sock.settimeout(left / (len(addresses) - number))
                sock.connect((address, self.port))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                sock.close()
                continue
            sock.deadline = deadline
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            return sock
        if time.monotonic() >= deadline:
            raise TimedOut()
        raise Unreachable("connect", "nothing accepts connections at the host")


class _PinnedHTTP(_Pinned, HTTPConnection):
    pass


class _PinnedHTTPS(_Pinned, HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        # The handshake made a new socket object around the old one.
        if isinstance(self.sock, _TimedTLS):
            self.sock.deadline = self.pin[1]
