"""A request's headers, as services read them."""

from __future__ import annotations

from werkzeug.datastructures import EnvironHeaders

from worker.doors.request_headers import RequestHeaders

ENVIRON = {
    "REQUEST_METHOD": "POST",
    "CONTENT_TYPE": "application/json",
    "CONTENT_LENGTH": "7",
    "HTTP_X_CONTRACT_ID": "ctr_1",
    "HTTP_PAYMENT_SIGNATURE": "e30=",
    "wsgi.url_scheme": "http",
}


def test_headers_are_found_in_any_case() -> None:
    """Each header is found as werkzeug finds it, and nothing else of the environ is."""
    headers, usual = RequestHeaders(ENVIRON), EnvironHeaders(ENVIRON)
    for name in ("X-Contract-ID", "x-contract-id", "PAYMENT-SIGNATURE", "Content-Type", "content-length"):
        assert headers[name] == headers.get(name) == usual[name] and name in headers
    for name in ("X-PAYMENT", "REQUEST-METHOD", "wsgi.url_scheme", ""):
        assert name not in headers and name not in usual
        assert headers.get(name) is None and headers.get(name, "-") == "-"
    assert dict(headers) == dict(usual) and len(headers) == 4
