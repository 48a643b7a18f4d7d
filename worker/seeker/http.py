"""HTTP for a careful buyer: no redirects, no silent retries, bounded responses.

A request that may have been received but has no complete response raises `ConnectionDropped`; what that means
for a payment is decided elsewhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from ssl import SSLCertVerificationError
from typing import Any, Protocol
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from worker.core.errors import BadRequest
from worker.core.values import LOOPBACK
from worker.core.version import __version__
from worker.seeker.problems import CertificateUntrusted

CONNECT_SECONDS = 10.0
# Above any inline budget and above the 30 s of a router in front.
READ_SECONDS = 45.0
# A stream without any data for this long, not even a heartbeat, is dead.
SILENCE_SECONDS = 20.0
MOST_ANSWER = 64 << 20
_PIECE = 1 << 16


class ConnectionDropped(Exception):
    """No complete response. `received` is False only if the request cannot have reached anyone."""

    def __init__(self, why: str, *, received: bool = True) -> None:
        super().__init__(why)
        self.why = why
        self.received = received


@dataclass(frozen=True)
class HttpAnswer:
    """A complete response. Header names are lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def document(self) -> dict[str, Any] | None:
        """The JSON object in the body, if any."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    @property
    def retry_after(self) -> float | None:
        """The server's Retry-After in seconds, if it is a plain number."""
        text = self.headers.get("retry-after", "").strip()
        return float(text) if text.isdigit() and len(text) < 7 else None


class Transport(Protocol):
    """Sends one request and returns its complete response."""

    def send(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        most: int = MOST_ANSWER,
    ) -> HttpAnswer:
        """Return the response, whatever its status; raises `ConnectionDropped` if there is none."""
        ...

    def lines(self, url: str, headers: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of a stream; raises `ConnectionDropped` when it breaks off or is refused."""
        ...


class HttpTransport:
    """The real transport."""

    def __init__(self, *, read_seconds: float = READ_SECONDS) -> None:
        self._read_seconds = read_seconds
        self._pool = urllib3.PoolManager(maxsize=4, block=False, retries=False)

    def send(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        most: int = MOST_ANSWER,
    ) -> HttpAnswer:
        response = self._open(method, url, body, headers or {}, self._read_seconds)
        try:
            data = self._read(response, most)
        except BaseException:
            response.close()
            raise
        response.release_conn()
        lower = {name.lower(): value for name, value in response.headers.items()}
        if not _ends_by_itself(response, lower):
            raise ConnectionDropped("the answer's header was cut short")
        return HttpAnswer(response.status, lower, data)

    def lines(self, url: str, headers: Mapping[str, str]) -> Iterator[str]:
        wanted = {**headers, "Accept": "text/event-stream"}
        response = self._open("GET", url, None, wanted, SILENCE_SECONDS)
        try:
            if response.status != 200:
                raise ConnectionDropped(f"status {response.status}")
            waiting = b""
            while piece := response.read1(_PIECE):
                *whole, waiting = (waiting + piece).split(b"\n")
                for line in whole:
                    yield line.rstrip(b"\r").decode("utf-8", "replace")
                if len(waiting) > MOST_ANSWER:
                    raise ConnectionDropped("too large")
        except (HTTPError, HTTPException, OSError) as fault:
            raise ConnectionDropped("the stream broke off") from fault
        finally:
            response.close()

    def _open(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], read: float
    ) -> urllib3.BaseHTTPResponse:
        sent = {
            "User-Agent": f"hire-seeker/{__version__}",
            "Accept-Encoding": "identity",
            "Accept": "application/json",
            **headers,
        }
        try:
            return self._pool.request(
                method,
                url,
                body=body,
                headers=sent,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=read),
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
            )
        except (NewConnectionError, ConnectTimeoutError) as fault:
            raise ConnectionDropped("nobody listens there", received=False) from fault
        except (HTTPError, HTTPException, OSError) as fault:
            why = _untrusted(fault)
            if why is not None:
                raise CertificateUntrusted(
                    f"the certificate of {host_of(url)} is not trusted ({why})", host=host_of(url)
                ) from fault
            raise ConnectionDropped("the connection was lost") from fault

    def _read(self, response: urllib3.BaseHTTPResponse, most: int) -> bytes:
        data = bytearray()
        until = time.monotonic() + 10 * self._read_seconds
        try:
            while piece := response.read1(_PIECE):
                data += piece
                if len(data) > most or time.monotonic() > until:
                    raise ConnectionDropped("the answer does not end")
        except (HTTPError, HTTPException, OSError) as fault:
            raise ConnectionDropped("the answer was cut short") from fault
        return bytes(data)


def _untrusted(fault: BaseException | None) -> str | None:
    """What is wrong with the server's certificate, if that broke the connection."""
    while fault is not None:
        found = next(
            (each for each in (fault, *fault.args) if isinstance(each, SSLCertVerificationError)), None
        )
        if found is not None:
            return found.verify_message or "it does not fit the address"
        fault = fault.__cause__ or fault.__context__
    return None


def _ends_by_itself(response: urllib3.BaseHTTPResponse, headers: Mapping[str, str]) -> bool:
    """Whether closing the connection may have ended the response: a truncated header looks like one that says
    nothing about its body.
    """
    if "content-length" in headers or "transfer-encoding" in headers or response.status in (204, 304):
        return True
    return response.version == 10 or headers.get("connection", "").lower() == "close"


def checked_url(url: str, *, plain_http: bool = False) -> str:
    """The address without a trailing slash; refuses to send secrets over plain HTTP."""
    try:
        parts = urlsplit(url)
        port_fits = parts.port != 0
    except ValueError:
        raise _bad_url() from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or not port_fits:
        raise _bad_url()
    if any(ch.isspace() or not ch.isprintable() for ch in url) or parts.fragment:
        raise _bad_url()
    if parts.scheme == "http" and parts.hostname not in LOOPBACK and not plain_http:
        raise BadRequest(
            "contract ids and payments would travel unencrypted",
            field="url",
            expected="https://",
            advice="Use the https:// address, or allow plain HTTP if the network is your own.",
        )
    return url.rstrip("/")


def host_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: all three must match before a credential is sent."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return "", "", 0
    return parts.scheme, (parts.hostname or "").lower(), port


def _bad_url() -> BadRequest:
    return BadRequest(
        "the address cannot be used", field="url", expected="an address such as https://worker.example"
    )
