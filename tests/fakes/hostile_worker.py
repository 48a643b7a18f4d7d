"""A `FakeWorker` at a real address, a second address that must get no requests, and signed authorizations."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.fake_worker import FakeWorker
from worker.contracts.signatures import decode_signature, recover_digest
from worker.seeker.http import HttpAnswer
from worker.x402.headers import decode
from worker.x402.networks import Network
from worker.x402.typed_data import Authorization, transfer_digest


@dataclass(frozen=True)
class SignedAuthorization:
    """One authorization sent by a seeker: whoever has it may take the money."""

    nonce: str
    payer: str
    to: str
    value: int
    valid_after: int
    valid_before: int
    signature: str

    def signed_for(self, network: Network) -> bool:
        """Whether it moves this network's dollar and no other asset."""
        authorization = Authorization(
            payer=self.payer,
            to=self.to,
            value=self.value,
            valid_after=self.valid_after,
            valid_before=self.valid_before,
            nonce=self.nonce,
        )
        digest = transfer_digest(network.domain, authorization)
        return recover_digest(digest, decode_signature(self.signature)).lower() == self.payer.lower()


def authorizations(worker: FakeWorker) -> dict[str, SignedAuthorization]:
    """Every authorization that reached the worker at any path, by nonce: a repeated one counts once."""
    found = {}
    for got in worker.got:
        if got.payment is None:
            continue
        header = "PAYMENT-SIGNATURE" if "payment-signature" in got.headers else "X-PAYMENT"
        payload = decode(got.payment, header)["payload"]
        told = payload["authorization"]
        found[told["nonce"]] = SignedAuthorization(
            nonce=told["nonce"],
            payer=told["from"],
            to=told["to"],
            value=int(told["value"]),
            valid_after=int(told["validAfter"]),
            valid_before=int(told["validBefore"]),
            signature=payload["signature"],
        )
    return found


@dataclass
class Elsewhere:
    """Another server, not chosen by the seeker: it records every request."""

    url: str = ""
    requests: list[str] = field(default_factory=list)

    def send(self, method: str, url: str, **request: Any) -> HttpAnswer:
        self.requests.append(f"{method} {url}")
        return HttpAnswer(200, {}, b"{}")


@contextmanager
def served(site: FakeWorker | Elsewhere) -> Iterator[str]:
    """Serves the site on a free local port and yields its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = site.send(self.command, site.url + self.path, body=body, headers=dict(self.headers))
            self.send_response(reply.status)
            for name, value in {**reply.headers, "content-length": str(len(reply.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield site.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def rewritten(answer: HttpAnswer, **changes: Any) -> HttpAnswer:
    """The same response with other values in its JSON body."""
    return HttpAnswer(
        answer.status, answer.headers, json.dumps({**json.loads(answer.body), **changes}).encode()
    )
