"""CORS: which origins may call the worker, and which headers they may send and read."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Flask, Response, request

_METHODS = "GET, POST, PUT, DELETE, OPTIONS"
# The x402 client sends the last one, as a hint of the headers it wants to read.
_SENT = (
    "Content-Type, Authorization, X-Request-ID, X-Contract-ID, PAYMENT-SIGNATURE, X-PAYMENT, X-Webhook-URL, "
    "SIGN-IN-WITH-X, Prefer, Last-Event-ID, Range, If-Range, If-Match, If-None-Match, "
    "Access-Control-Expose-Headers"
)
_READ = "X-Request-Id, Retry-After, Location"
_SECONDS = "86400"


def add(app: Flask, origins: Sequence[str]) -> None:
    """Does nothing if no origin is configured."""
    if not origins:
        return

    def allowed() -> str:
        origin = request.headers.get("Origin", "")
        if "*" in origins:
            return "*" if origin else ""
        return origin if origin in origins else ""

    @app.before_request
    def preflight() -> Response | None:
        return Response(status=204) if request.method == "OPTIONS" else None

    @app.after_request
    def tell(response: Response) -> Response:
        if "*" not in origins:
            response.vary.add("Origin")
        origin = allowed()
        if origin:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Methods"] = _METHODS
            response.headers["Access-Control-Allow-Headers"] = _SENT
            response.headers["Access-Control-Max-Age"] = _SECONDS
            response.headers.setdefault("Access-Control-Expose-Headers", _READ)
        return response
