"""What is refused before money is mentioned: too many, too busy, nobody there, addresses not to be called."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
import requests

from tests.e2e.hire.exchange import Shop, hire_tree
from tests.waiting import eventually
from worker.contracts.signatures import address_of
from worker.delivery.addresses import Refused, rules_for
from worker.delivery.outbound import Outbound

ORIGIN = "https://shop.example"


@pytest.fixture(name="shop", scope="module")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A worker with narrow limits and one friend on the web."""
    settings = {
        "LIMIT_CONTRACTS": "30",
        "LIMIT_EXECUTES": "12",
        "LIMIT_UNKNOWN": "5",
        "QUEUE_LIMIT": "2",
        "CORS_ORIGINS": ORIGIN,
    }
    with hire_tree(tmp_path_factory.mktemp("shop"), WORKER_ENV="test", **settings) as shop:
        yield shop


def kids(shop: Shop, words: str) -> list[psutil.Process]:
    """Processes of the tree whose command line has these words."""
    assert shop.local.program is not None
    tree = psutil.Process(shop.local.program.pid)
    return [each for each in tree.children(recursive=True) if words in " ".join(each.cmdline())]


@contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """As if these had hung."""
    assert processes
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def test_nobody_works_or_no_clock_ticks(shop: Shop) -> None:
    """When no process takes work, or no clock would finish what breaks, there is a 503 instead of a 402."""
    contract = shop.contract("text")
    assert shop.execute(contract, {"text": "x"}).status_code == 402
    with stopped(kids(shop, "worker work")):
        signs = {
            key: shop.store.zrange(key, 0, -1, withscores=True)
            for key in (shop.keys.takers("express"), shop.keys.ticks)
        }
        for key, rows in signs.items():
            for member, score in rows:  # type: ignore[union-attr]
                shop.store.zadd(key, {member: score - 60_000_000})
            reply = shop.execute(contract, {"text": "x"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "WORKER_BUSY"), key
            assert int(reply.headers["Retry-After"]) > 0 and "PAYMENT-REQUIRED" not in reply.headers
            for member, score in rows:  # type: ignore[union-attr]
                shop.store.zadd(key, {member: score})
    eventually(lambda: shop.execute(contract, {"text": "x"}).status_code == 402, 10, "room again")


def test_a_full_queue(shop: Shop) -> None:
    """When the queue is full new work is refused before money; what was sold goes on."""
    bearer = {"Authorization": f"Bearer {shop.facts['kernel_token']}"}
    contract, task = shop.begin("napping", {"seconds": 1})
    for _ in range(4):  # the operator's own work takes up the room
        free = {"agent_id": "napping", "input": {"seconds": 0.5}}
        assert shop.http.post(f"{shop.url}/v0/executions", json=free, headers=bearer).status_code == 201
    reply = shop.execute(shop.contract("napping"), {"seconds": 0})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "WORKER_BUSY")
    assert "PAYMENT-REQUIRED" not in reply.headers
    assert shop.execute(contract, {"seconds": 1}, Prefer="respond-async").status_code == 202
    assert shop.ended(contract, task)["status"] == "completed"


def test_cors(shop: Shop) -> None:
    """A browser of an allowed origin may ask, pay and read the payment headers; others may not."""
    asking = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-contract-id,payment-signature,content-type",
    }
    before = requests.options(f"{shop.url}/execute", headers=asking, timeout=10)
    assert before.status_code in (200, 204)
    assert before.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "POST" in before.headers["Access-Control-Allow-Methods"]
    allowed = before.headers["Access-Control-Allow-Headers"].lower()
    assert all(name in allowed for name in ("x-contract-id", "payment-signature", "content-type"))
    asked = shop.execute(shop.contract("text"), {"text": "x"}, Origin=ORIGIN)
    assert asked.status_code == 402 and asked.headers["Access-Control-Allow-Origin"] == ORIGIN
    exposed = asked.headers["Access-Control-Expose-Headers"]
    for name in ("PAYMENT-REQUIRED", "PAYMENT-RESPONSE", "Location", "Retry-After", "ETag"):
        assert name in exposed
    assert "Origin" in asked.headers["Vary"]
    other = shop.http.get(f"{shop.url}/manifest", headers={"Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in other.headers
    assert "Access-Control-Allow-Credentials" not in before.headers


def test_limits(shop: Shop) -> None:
    """Who asks too often is slowed down with 429: for drafts, unpaid requests and unknown ids."""
    shop.move_clock(61)
    contract = shop.contract("text")
    asked = shop.execute(contract, {"text": "x"})
    unknown = [shop.execute("ctr_" + secrets.token_hex(16), {}).status_code for _ in range(7)]
    assert unknown == [404] * 5 + [429] * 2
    replies = [shop.execute(contract, {"text": "x"}) for _ in range(14)]
    assert replies[-1].status_code == 429
    assert (replies[-1].json()["error"]["code"], replies[-1].headers["Retry-After"]) == ("RATE_LIMITED", "60")
    paid = shop.execute(contract, {"text": "x"}, payment=shop.sign(asked))
    assert paid.status_code == 200, "paid requests are not slowed down"
    drafts = [shop.http.post(f"{shop.url}/contracts", json={}).status_code for _ in range(31)]
    assert drafts[-1] == 429


def test_a_wallet_has_limits_of_its_own(shop: Shop) -> None:
    """Another address does not help a wallet that asks too often."""
    shop.move_clock(61)
    key = "0x" + secrets.token_hex(32)
    name = f"{shop.keys.prefix}:rate:executes:127.0.0.1"
    contract = shop.contract("text", key=key)
    seen = []
    for _ in range(14):
        seen.append(shop.execute(contract, {"text": "x"}).status_code)
        shop.store.delete(name)
    assert seen == [402] * 12 + [429] * 2
    assert shop.store.exists(f"{shop.keys.prefix}:rate:executes:{address_of(key).lower()}")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://example.com:8443/",
        "https://127.0.0.1/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://[::1]/",
        "https://[::127.0.0.1]/",
        "https://[fec0::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://169.254.169.254/latest",
        "https://user@example.com/",
        "https://localhost/",
        "file:///etc/passwd",
        "gopher://example.com/",
    ],
)
def test_addresses_that_production_does_not_call(url: str) -> None:
    """Under the rules of production each of these is refused before anything is sent or sold."""
    with pytest.raises(Refused):
        Outbound(rules_for("production")).check(url)


def test_a_name_that_changes_between_look_ups_is_judged_each_time() -> None:
    """A name that stood for a public address when it was checked is refused when it leads inside."""

    class Turning:
        def __init__(self) -> None:
            self.answers = ["93.184.216.34", "127.0.0.1"]

        def resolve(self, host: str, port: int, timeout: float) -> list[str]:
            return [self.answers.pop(0)]

    outbound = Outbound(rules_for("production"), resolver=Turning())
    outbound.check("https://hooks.example/")
    with pytest.raises(Refused):
        outbound.call("POST", "https://hooks.example/", body=b"{}")


def test_work_that_leaves_is_refused_at_once(shop: Shop) -> None:
    """When the work processes are told to go, what was sold is finished, and what is new waits for others."""
    shop.move_clock(61)
    contract = shop.contract("text")
    [work, *_] = kids(shop, "worker work")
    begun = shop.begin("napping", {"seconds": 1})
    os.kill(work.pid, signal.SIGTERM)
    until = time.monotonic() + 25
    while (reply := shop.execute(contract, {"text": "x"})).status_code == 402 and time.monotonic() < until:
        time.sleep(0.3)
        if not work.is_running():
            break
    assert reply.status_code in (402, 503, 429)
    assert shop.ended(*begun)["status"] == "completed"
    assert shop.charges(begun[1]) == 1
