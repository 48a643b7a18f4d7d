"""The facilitator's HTTP client: every call returns an answer, whatever went wrong.

It never retries and never follows redirects: a settle call moves money, and only the caller knows
whether it may be sent again. `worker/x402/facilitator_answers.py` decides what an answer means.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from ssl import SSLError
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import structlog

from worker.core.nesting import deeper_than
from worker.core.version import __version__
from worker.payments.facilitator_auth import Auth, StaticAuth
from worker.payments.http_exchange import BadAnswer, HttpAnswer, Overlong, exchange, header_lines
from worker.payments.kept_links import PORTS, KeptLinks, NotConnected
from worker.x402.facilitator_answers import (
    EXTENSION_RESPONSES,
    FacilitatorAnswer,
    clean_code,
    read_catalog_status,
)
from worker.x402.headers import MAX_DEPTH
from worker.x402.wire import Journaled, sent_form

CONNECT_S = 5.0
VERIFY_S = 15.0
SETTLE_S = 100.0
MAX_BODY = 256 * 1024
# Calls that take as long have a line in the log even if they succeed.
SLOW_S = 1.0
# Idle connections that stay open: a slow facilitator has as many open calls as there are open payments.
KEPT = 512

_CATALOG = EXTENSION_RESPONSES.lower()
# What a path may contain as it is (RFC 3986).
_IN_PATHS = "/%!$&'()*+,;=:@"
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"hire-worker/{__version__}",
}

_log = structlog.get_logger(__name__)


class Facilitator(Protocol):
    """Verifies payments and settles them on the chain. Calls return, they never raise."""

    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer: ...

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer: ...

    def supported(self) -> FacilitatorAnswer: ...


class HttpFacilitator:
    """A facilitator behind a URL, over kept-alive connections."""

    def __init__(
        self,
        url: str,
        auth: Auth | None = None,
        *,
        connect_s: float = CONNECT_S,
        verify_s: float = VERIFY_S,
        settle_s: float = SETTLE_S,
        kept: int = KEPT,
        clock: Callable[[], float] = time.monotonic,
        count_failure: Callable[[str], None] = lambda operation: None,
    ) -> None:
        self._url = url.rstrip("/")
        self._auth = auth or StaticAuth()
        self._connect_s = connect_s
        self._verify_s = verify_s
        self._settle_s = settle_s
        self._clock = clock
        self._path = quote(urlsplit(self._url).path, safe=_IN_PATHS).encode("ascii")
        # Every open call has its own connection: a settle call that waited for one would outlive its
        # authorization.
        self._links = KeptLinks(self._url, connect_s=connect_s, kept=kept, clock=clock)
        self._count_failure = count_failure

    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        return self._call("POST", "verify", self._verify_s, _body(payload, requirements))

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        return self._call("POST", "settle", self._settle_s, _body(payload, requirements))

    def supported(self) -> FacilitatorAnswer:
        return self._call("GET", "supported", self._verify_s, None)

    def close(self) -> None:
        self._links.close()

    def _call(self, method: str, operation: str, read_s: float, body: bytes | None) -> FacilitatorAnswer:
        started = self._clock()
        answer = self._exchange(method, operation, started, read_s, body)
        document = answer.body or {}
        code = clean_code(document.get("errorReason") or document.get("invalidReason"))
        if answer.fault or ((answer.status or 0) >= 400 and not code):
            self._count_failure(operation)
        took = self._clock() - started
        agreed = answer.status == 200 and (document.get("isValid") is True or document.get("success") is True)
        # A payment that settles has a line of its own, with the time that its settle call took.
        if took >= SLOW_S or not agreed:
            _log.info(
                "facilitator.answered",
                operation=operation,
                status=answer.status,
                fault=answer.fault,
                code=code,
                duration_ms=round(took * 1_000),
            )
        return answer

    def _exchange(
        self, method: str, operation: str, started: float, read_s: float, body: bytes | None
    ) -> FacilitatorAnswer:
        auth = self._auth.headers(method, f"{self._url}/{operation}")
        try:
            link = self._links.take()
        except NotConnected as error:
            return FacilitatorAnswer(fault="tls" if isinstance(error.__cause__, SSLError) else "connect")
        kept = False
        try:
            link.settimeout(read_s)
            until = started + self._connect_s + read_s
            request = self._request(method, operation, auth, body)
            answer = exchange(link, request, most=MAX_BODY, until=until, clock=self._clock)
            kept = answer.stays
        except Overlong as error:
            return FacilitatorAnswer(status=error.status, fault="too_large")
        except (BadAnswer, OSError) as error:
            return FacilitatorAnswer(fault=_fault(error))
        finally:
            if kept:
                self._links.give_back(link)
            else:
                link.close()
        return _parse(answer)

    def _request(self, method: str, operation: str, auth: Mapping[str, str], body: bytes | None) -> bytes:
        head = b"%b %b/%b HTTP/1.1\r\n%b%b" % (
            method.encode(),
            self._path,
            operation.encode(),
            self._same_headers,
            header_lines(auth),
        )
        if body is None:
            return head + b"\r\n"
        about = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return b"%b%b%b" % (head, about % len(body), body)

    @cached_property
    def _same_headers(self) -> bytes:
        """What every call has. Made after a connection, without which nobody can tell the host's name."""
        where = urlsplit(self._url)
        name = where.hostname or ""
        host = f"[{name}]" if ":" in name else name.encode("idna").decode("ascii")
        port = where.port
        usual = port in (None, PORTS.get(where.scheme))
        return header_lines({"Host": host if usual else f"{host}:{port}", **_HEADERS})


def _body(payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> bytes:
    named = payload.get("x402Version", 2)
    version = b"2" if named == 2 and type(named) is int else json.dumps(named).encode("ascii")
    return b'{"x402Version":%b,"paymentPayload":%b,"paymentRequirements":%b}' % (
        version,
        _sent(payload),
        _sent(requirements),
    )


def _sent(document: Mapping[str, Any]) -> bytes:
    return document.sent if isinstance(document, Journaled) else sent_form(document)


def _parse(answer: HttpAnswer) -> FacilitatorAnswer:
    try:
        text = answer.body.decode("utf-8")
        document = None if deeper_than(text, MAX_DEPTH) else json.loads(text)
    except ValueError:
        document = None
    catalog = read_catalog_status(answer.headers.get(_CATALOG))
    if not isinstance(document, dict):
        fault = "garbage" if answer.body else "empty"
        return FacilitatorAnswer(status=answer.status, fault=fault, catalog=catalog)
    return FacilitatorAnswer(status=answer.status, body=document, catalog=catalog)


def _fault(error: Exception) -> str:
    """Return a short name for the fault; the exception's own text may contain addresses."""
    if isinstance(error, SSLError):
        return "tls"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionError | BadAnswer):
        return "dropped"
    return "transport"
