"""Hanging receivers hold only their share of the webhook threads; an honest one is called at once."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.fakes.paid_door import PaidDoor
from tests.waiting import eventually
from worker.delivery.webhook_pool import MOST_OF_ONE_HOST, WebhookPool

BODY = {"do": "ok"}
HANGING = 20


@contextmanager
def hanging_server() -> Iterator[str]:
    """Accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook"


@contextmanager
def honest_server(received: list[str]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            received.append(self.headers["webhook-id"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://localhost:{server.server_port}/hook"
    finally:
        server.shutdown()
        server.server_close()


def bought(door: PaidDoor, key: str, url: str) -> str:
    """A completed and paid hire with a webhook to this URL."""
    deal = door.deal(key=key, webhook={"url": url})
    id = deal.execute(BODY, deal.payment()).execution.id
    door.step()
    taken = door.take(id)
    assert taken is not None and door.seal(taken) == "settling"
    door.hiring.settler.settle(id)
    return id


def test_hires_with_hanging_webhooks_do_not_delay_an_honest_one(door: PaidDoor) -> None:
    """Twenty hires of one wallet to one hanging host, then an honest hire: its call is in the first round."""
    received: list[str] = []
    webhooks = door.parts.webhooks
    assert webhooks is not None
    with hanging_server() as hanging, honest_server(received) as honest:
        attacker = "0x" + secrets.token_hex(32)
        for _ in range(HANGING):
            bought(door, attacker, hanging)
        id = bought(door, "0x" + secrets.token_hex(32), honest)
        pool = WebhookPool(webhooks)
        pool.chore(door.now())
        eventually(lambda: received, 15, "the honest webhook")
        assert received == [f"{id}-completed-0"]
        assert len(pool.under_way) <= MOST_OF_ONE_HOST + 1
    pool.close(10)


def test_the_store_knows_whose_notice_it_is(door: PaidDoor) -> None:
    """Host, wallet, whether the wallet has paid, and whether the host failed last time."""
    webhooks = door.parts.webhooks
    assert webhooks is not None
    key = "0x" + secrets.token_hex(32)
    bought(door, key, "http://127.0.0.1:9/closed")
    webhooks.collect(door.now())
    (notice,) = webhooks.outbox.due(door.now())
    (receiver,) = webhooks.receivers([notice])
    assert (receiver.host, receiver.failing, receiver.newcomer) == ("127.0.0.1", False, False)
    assert receiver.wallet.startswith("0x")
    webhooks.end([webhooks.send(leased) for leased in webhooks.begin([notice])])
    (receiver,) = webhooks.receivers([notice])
    assert receiver.failing
