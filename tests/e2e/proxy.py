"""A proxy between seeker and worker that drops, delays or changes messages on request.

One request per connection. The worker's PUBLIC_URL is the proxy's, so all traffic passes through it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

CUT, SWALLOW = "cut", "swallow"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_PAYMENT = re.compile(rb"\r\n(?:payment-signature|x-payment): *([^\r]+)", re.IGNORECASE)


@dataclass
class Proxy:
    """Requests with a payment use up `on_payment`; `rewrite` gets every complete response."""

    target: int
    on_payment: list[str] = field(default_factory=list)
    rewrite: Callable[[bytes, bytes], bytes] | None = None
    payments: list[str] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._server.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ended = threading.Event()
        self.seen_payment = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        self.on_payment, self.rewrite, self.payments, self.requests = [], None, [], []
        self.seen_payment.clear()

    def close(self) -> None:
        self._ended.set()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(120)
            request = _whole_request(client)
            if not request:
                return
            head = request.partition(b"\r\n")[0]
            self.requests.append(head)
            paid = _PAYMENT.search(request)
            fault = ""
            if paid:
                self.payments.append(paid[1].decode())
                fault = self.on_payment.pop(0) if self.on_payment else ""
            with socket.create_connection(("127.0.0.1", self.target), timeout=120) as worker:
                worker.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                if paid:
                    self.seen_payment.set()
                if fault == SWALLOW:
                    self._ended.wait(60)
                elif fault != CUT:
                    self._relay(head, worker, client)

    def _relay(self, head: bytes, worker: socket.socket, client: socket.socket) -> None:
        held = b""
        while piece := worker.recv(65_536):
            if self.rewrite is None:
                client.sendall(piece)
            else:
                held += piece
        if self.rewrite is not None:
            client.sendall(self.rewrite(head, held))


def _whole_request(client: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := client.recv(65_536)):
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    # Keep-alive would mix requests on one connection; "Connection: close" in the response ends it.
    head = re.sub(rb"\r\nconnection: [^\r]*", b"", head, flags=re.IGNORECASE)
    length = _LENGTH.search(head)
    while length and len(body) < int(length[1]):
        if not (piece := client.recv(65_536)):
            return b""
        body += piece
    return head + b"\r\n\r\n" + body
