"""The facilitator's HTTP client: every call returns an answer, whatever went wrong.

It never retries and never follows redirects: a settle call moves money, and only the caller knows
whether it may be sent again. `worker/x402/facilitator_answers.py` decides what an answer means.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from ssl import SSLError
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import structlog

from worker.core.version import __version__
from worker.payments.facilitator_auth import Auth, StaticAuth
from worker.payments.facilitator_call import Answered, HttpCall, OpenCall, fault_of
from worker.payments.http_exchange import Exchange, header_lines
from worker.payments.kept_links import PORTS, KeptLinks, NotConnected
from worker.x402.facilitator_answers import FacilitatorAnswer, clean_code
from worker.x402.wire import Journaled, sent_form

CONNECT_S = 5.0
VERIFY_S = 15.0
SETTLE_S = 100.0
MAX_BODY = 256 * 1024
# Calls that take as long have a line in the log even if they succeed.
SLOW_S = 1.0
# Idle connections that stay open: a slow facilitator has as many open calls as there are open payments.
KEPT = 512

# What a path may contain as it is (RFC 3986).
_IN_PATHS = "/%!$&'()*+,;=:@"
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"hire-worker/{__version__}",
}

_log = structlog.get_logger(__name__)


class Facilitator(Protocol):
    """Verifies payments and settles them on the chain. Calls return, they never raise.

    Those that begin a call leave their caller to other work while the facilitator does its own.
    """

    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer: ...

    def begin_verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> OpenCall | None:
        """None if a connection would have to be made first."""

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer: ...

    def begin_settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> OpenCall: ...

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
        return self._begin("verify", self._verify_s, _body(payload, requirements)).answer()

    def begin_verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> OpenCall | None:
        body, link = _body(payload, requirements), self._links.take_idle()
        return None if link is None else self._begin("verify", self._verify_s, body, link)

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        return self.begin_settle(payload, requirements).answer()

    def begin_settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> OpenCall:
        return self._begin("settle", self._settle_s, _body(payload, requirements))

    def supported(self) -> FacilitatorAnswer:
        return self._begin("supported", self._verify_s, None).answer()

    def close(self) -> None:
        self._links.close()

    def _begin(
        self, operation: str, read_s: float, body: bytes | None, link: socket.socket | None = None
    ) -> OpenCall:
        """`link`: a connected one; None if it must be taken."""
        began = self._clock()
        try:
            link = link or self._links.take()
        except NotConnected as error:
            fault = "tls" if isinstance(error.__cause__, SSLError) else "connect"
            return Answered(self._note(operation, began, FacilitatorAnswer(fault=fault)))
        try:
            link.settimeout(read_s)
            until = began + self._connect_s + read_s
            request = self._request(operation, body)
            exchange = Exchange(link, request, most=MAX_BODY, until=until, clock=self._clock)
        except OSError as error:
            link.close()
            return Answered(self._note(operation, began, FacilitatorAnswer(fault=fault_of(error))))
        except BaseException:
            link.close()
            raise
        return HttpCall(self._links, link, exchange, partial(self._note, operation, began))

    def _note(self, operation: str, began: float, answer: FacilitatorAnswer) -> FacilitatorAnswer:
        document = answer.body or {}
        code = clean_code(document.get("errorReason") or document.get("invalidReason"))
        if answer.fault or ((answer.status or 0) >= 400 and not code):
            self._count_failure(operation)
        took = self._clock() - began
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

    def _request(self, operation: str, body: bytes | None) -> bytes:
        method = "GET" if body is None else "POST"
        head = b"%b %b/%b HTTP/1.1\r\n%b%b" % (
            method.encode(),
            self._path,
            operation.encode(),
            self._same_headers,
            header_lines(self._auth.headers(method, f"{self._url}/{operation}")),
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
