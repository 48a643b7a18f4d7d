"""Receives a worker's webhooks on this machine; accepts only those proven by the key in its manifest."""

from __future__ import annotations

import base64
import binascii
import json
import queue
import secrets
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

TOLERANCE_SECONDS = 300
MOST_BODY = 1 << 20


def proven(headers: Mapping[str, str], body: bytes, public_key: str, now_s: float) -> bool:
    """Whether the owner of this `whpk_` key sent exactly this within the last minutes."""
    message, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not message or not (at.isdigit() and len(at) < 12) or abs(now_s - int(at)) > TOLERANCE_SECONDS:
        return False
    try:
        raw = base64.b64decode(public_key.removeprefix("whpk_"), validate=True)
        key = Ed25519PublicKey.from_public_bytes(raw)
    except (binascii.Error, ValueError):
        return False
    content = f"{message}.{at}.".encode() + body
    return any(_signed(key, each, content) for each in headers.get("webhook-signature", "").split()[:20])


def _signed(key: Ed25519PublicKey, signature: str, content: bytes) -> bool:
    version, _, text = signature.partition(",")
    if version != "v1a":
        return False
    try:
        key.verify(base64.b64decode(text, validate=True), content)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


class Listener:
    """A receiver on a loopback port, under an unguessable path."""

    def __init__(self, public_key: str) -> None:
        self._public_key = public_key
        self._path = f"/hooks/{secrets.token_hex(16)}"
        self._came: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{self._path}"

    def __enter__(self) -> Listener:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self, contract_id: str, seconds: float) -> dict[str, Any] | None:
        """The next proven webhook about this contract; None if none arrives in time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                came = self._came.get(timeout=left)
            except queue.Empty:
                break
            if came.get("contract_id") == contract_id:
                return came
        return None

    def take(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        """The status for one call; a proven webhook is queued for `wait`."""
        if not secrets.compare_digest(path.encode(), self._path.encode()):
            return 404
        if not proven(headers, body, self._public_key, time.time()):
            return 401
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return 400
        if isinstance(document, dict):
            self._came.put(document)
        return 204

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        listener = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 20

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "")
                status, size = 413, int(length) if length.isdigit() and len(length) < 9 else MOST_BODY + 1
                if size <= MOST_BODY:
                    lower = {name.lower(): value for name, value in self.headers.items()}
                    status = listener.take(self.path, lower, self.rfile.read(size))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Silent: proven webhooks are reported to the owner instead."""

        return Handler
