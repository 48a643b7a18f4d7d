"""The official x402 client pays our offers; our parser and checks accept its payments."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
import requests
from eth_account import Account
from x402 import x402Client, x402ClientSync
from x402.http import x402HTTPClientSync
from x402.http.clients.httpx import x402HttpxClient
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm.exact.register import register_exact_evm_client

from tests.fakes.facilitator_server import FacilitatorServer
from worker.payments.facilitator import HttpFacilitator
from worker.x402.facilitator_answers import Settled, Valid, classify_settle, classify_verify
from worker.x402.headers import response_headers
from worker.x402.networks import BASE, BASE_SEPOLIA, Network
from worker.x402.offer import Offer, OfferMismatch, mismatch, signature_mismatch
from worker.x402.receipts import Settlement, settled_response
from worker.x402.typed_data import receipt_digest
from worker.x402.wire import PaymentPayload, read_payment

SEEKER = Account.from_key("0x" + "11" * 32)
WORKER_KEY = "0x" + "22" * 32
WORKER = Account.from_key(WORKER_KEY).address


def recover(digest: bytes, signature: bytes) -> str:
    """Recover like the worker, here with eth_account."""
    return str(Account._recover_hash(digest, signature=signature))


def sign(digest: bytes) -> bytes:
    """Sign like the worker."""
    return bytes(Account.unsafe_sign_hash(digest, WORKER_KEY).signature)


@dataclass
class PaidResource:
    """A paid endpoint that records what it receives."""

    offer: Offer
    facilitator: HttpFacilitator
    dialects: tuple[int, ...] = (1, 2)
    payments: list[PaymentPayload] = field(default_factory=list)
    refusals: list[OfferMismatch] = field(default_factory=list)

    def serve(self, headers: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
        payment = read_payment(headers, self.offer.requirements())
        if payment is None:
            sent = self.offer.headers("payment required")
            if 2 not in self.dialects:
                del sent["PAYMENT-REQUIRED"]
            body = self.offer.v1_body("payment required") if 1 in self.dialects else {}
            return 402, sent, body
        self.payments.append(payment)
        refusal = mismatch(payment, self.offer, int(time.time())) or signature_mismatch(
            payment, self.offer, recover
        )
        if refusal is not None:
            self.refusals.append(refusal)
            return 402, {}, {}
        terms = self.offer.requirements()
        assert classify_verify(self.facilitator.verify(payment.raw, terms)) == Valid()
        found = classify_settle(self.facilitator.settle(payment.raw, terms), earlier_unknown=False)
        assert isinstance(found, Settled)
        settlement = Settlement(
            self.offer.network.caip2,
            self.offer.resource_url,
            payment.authorization.payer,
            found.transaction,
            int(time.time()),
        )
        return 200, response_headers(settled_response(settlement, sign), version=payment.version), {"ok": 1}


def serve_resource(resource: PaidResource) -> tuple[ThreadingHTTPServer, str]:
    """Serve the resource on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Stay silent."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, body = resource.serve(self.headers)
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}/execute"


@pytest.fixture(name="facilitator")
def _facilitator() -> Iterator[FacilitatorServer]:
    with FacilitatorServer() as server:
        yield server


def make_resource(
    facilitator: FacilitatorServer, network: Network = BASE_SEPOLIA, **changes: Any
) -> PaidResource:
    """Return a resource that costs one cent, far below the clients' own limit of one dollar."""
    offer = Offer(
        network=network,
        price="0.01",
        pay_to=WORKER,
        payer=SEEKER.address,
        max_timeout_s=300,
        needed_s=200,
        resource_url="https://worker.example/execute",
        description="Summarise a text, ü 😀",
    )
    return PaidResource(offer, HttpFacilitator(facilitator.url), **changes)


def check_receipt(resource: PaidResource, headers: Any) -> None:
    """Let the official client parse the response, and recover the worker's address from the receipt."""
    http = x402HTTPClientSync(x402ClientSync())
    settled = http.get_payment_settle_response(headers.get)
    assert settled.success and settled.extensions is not None
    receipt = settled.extensions["offer-receipt"]["info"]["receipt"]
    digest = receipt_digest(receipt["payload"])
    assert Account._recover_hash(digest, signature=receipt["signature"]) == WORKER
    assert receipt["payload"]["network"] == resource.offer.network.caip2
    assert receipt["payload"]["transaction"] == settled.transaction


@pytest.mark.parametrize("network", [BASE_SEPOLIA, BASE], ids=lambda network: network.name)
@pytest.mark.parametrize("dialects", [(1, 2), (2,), (1,)], ids=["both", "v2-only", "v1-only"])
def test_requests_client_pays(
    facilitator: FacilitatorServer, network: Network, dialects: tuple[int, ...]
) -> None:
    """With default settings it pays once: V2 if offered, V1 if only V1 is offered."""
    resource = make_resource(facilitator, network, dialects=dialects)
    server, url = serve_resource(resource)
    try:
        client = register_exact_evm_client(x402ClientSync(), SEEKER)
        with x402_requests(client) as session:
            answer = session.post(url, json={"text": "hello"}, headers={"X-Contract-ID": "ctr_1"}, timeout=10)
    finally:
        server.shutdown()
        server.server_close()
    assert resource.refusals == [] and answer.status_code == 200 and answer.json() == {"ok": 1}
    assert [payment.version for payment in resource.payments] == [max(dialects)]
    assert facilitator.charged(SEEKER.address) == facilitator.charged() == 10_000
    for call in facilitator.calls():
        assert call["body"]["x402Version"] == 2 and call["body"]["paymentPayload"]["x402Version"] == 2
    check_receipt(resource, answer.headers)


def test_httpx_client_pays(facilitator: FacilitatorServer) -> None:
    """The asynchronous client pays the same offer."""
    import asyncio

    resource = make_resource(facilitator)
    server, url = serve_resource(resource)

    async def buy() -> httpx.Response:
        client = register_exact_evm_client(x402Client(), SEEKER)
        async with x402HttpxClient(client) as session:
            return await session.post(url, json={"text": "hello"})

    try:
        answer = asyncio.run(buy())
    finally:
        server.shutdown()
        server.server_close()
    assert resource.refusals == [] and answer.status_code == 200
    assert facilitator.charged() == 10_000
    check_receipt(resource, answer.headers)


def test_payment_from_another_wallet_is_refused(facilitator: FacilitatorServer) -> None:
    """A correctly signed payment from a wallet other than the contract's seeker moves nothing."""
    resource = make_resource(facilitator)
    server, url = serve_resource(resource)
    try:
        client = register_exact_evm_client(x402ClientSync(), Account.from_key("0x" + "33" * 32))
        with x402_requests(client) as session:
            answer = session.post(url, json={}, timeout=10)
    finally:
        server.shutdown()
        server.server_close()
    assert answer.status_code == 402
    assert [refusal.code for refusal in resource.refusals] == ["PAYMENT_PAYER_MISMATCH"]
    assert facilitator.calls() == []


def test_402_is_read_by_the_official_decoder(facilitator: FacilitatorServer) -> None:
    """The official decoder reads from our header the terms we compare payments with."""
    resource = make_resource(facilitator)
    server, url = serve_resource(resource)
    try:
        answer = requests.post(url, json={}, timeout=10)
    finally:
        server.shutdown()
        server.server_close()
    required = x402HTTPClientSync(x402ClientSync()).get_payment_required_response(
        answer.headers.get, answer.json()
    )
    (accepts,) = required.accepts
    assert accepts.model_dump(by_alias=True) == resource.offer.requirements()
    assert required.extensions is not None and list(required.extensions) == ["payment-identifier"]
    assert answer.headers["X-Payment-Amount"] == "0.01"
