"""The facilitator's HTTP client: every call returns an answer, whatever went wrong.

It never retries and never follows redirects: a settle call moves money, and only the caller knows
whether it may be sent again. `worker/x402/facilitator_answers.py` decides what an answer means.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.client import HTTPException, HTTPResponse, IncompleteRead
from ssl import SSLError
from typing import Any, Protocol
from urllib.parse import urlsplit

import structlog

from worker.core.nesting import deeper_than
from worker.core.version import __version__
from worker.payments.facilitator_auth import Auth, StaticAuth
from worker.payments.kept_links import KeptLinks, NotConnected
from worker.x402.facilitator_answers import (
    EXTENSION_RESPONSES,
    FacilitatorAnswer,
    clean_code,
    read_catalog_status,
)
from worker.x402.headers import MAX_DEPTH
from worker.x402.wire import with_checksums

CONNECT_S = 5.0
VERIFY_S = 15.0
SETTLE_S = 100.0
MAX_BODY = 256 * 1024
# Idle connections that stay open: a slow facilitator has as many open calls as there are open payments.
KEPT = 512

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
        self._path = urlsplit(self._url).path
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
        _log.info(
            "facilitator.answered",
            operation=operation,
            status=answer.status,
            fault=answer.fault,
            code=code,
            duration_ms=round((self._clock() - started) * 1_000),
        )
        return answer

    def _exchange(
        self, method: str, operation: str, started: float, read_s: float, body: bytes | None
    ) -> FacilitatorAnswer:
        headers = {**_HEADERS, **self._auth.headers(method, f"{self._url}/{operation}")}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            link = self._links.take()
        except NotConnected as error:
            return FacilitatorAnswer(fault="tls" if isinstance(error.__cause__, SSLError) else "connect")
        kept = False
        try:
            link.sock.settimeout(read_s)
            link.request(method, f"{self._path}/{operation}", body=body, headers=headers)
            response = link.getresponse()
            data = self._read(response, started + self._connect_s + read_s)
            # After an interim answer (1xx) the final one would be read as the next call's.
            kept = response.status >= 200 and not response.will_close
            response.close()
        except _Overlong:
            return FacilitatorAnswer(status=response.status, fault="too_large")
        except (HTTPException, OSError) as error:
            return FacilitatorAnswer(fault=_fault(error))
        finally:
            if kept:
                self._links.give_back(link)
            else:
                link.close()
        catalog = read_catalog_status(response.headers.get(EXTENSION_RESPONSES))
        return replace(_parse(response.status, data), catalog=catalog)

    def _read(self, response: HTTPResponse, until: float) -> bytes:
        data = bytearray()
        while chunk := response.read1(65_536):
            data += chunk
            if len(data) > MAX_BODY:
                raise _Overlong
            if self._clock() > until:
                raise TimeoutError
        if response.length:
            raise IncompleteRead(bytes(data), response.length)
        return bytes(data)


class _Overlong(Exception):
    """The body exceeds the size limit for an answer."""


def _body(payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> bytes:
    document = {
        "x402Version": payload.get("x402Version", 2),
        "paymentPayload": with_checksums(payload),
        "paymentRequirements": with_checksums(requirements),
    }
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _parse(status: int, data: bytes) -> FacilitatorAnswer:
    try:
        text = data.decode("utf-8")
        document = None if deeper_than(text, MAX_DEPTH) else json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return FacilitatorAnswer(status=status, fault="empty" if not data else "garbage")
    return FacilitatorAnswer(status=status, body=document)


def _fault(error: Exception) -> str:
    """Return a short name for the fault; the exception's own text may contain addresses."""
    if isinstance(error, SSLError):
        return "tls"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionError | HTTPException):
        return "dropped"
    return "transport"
