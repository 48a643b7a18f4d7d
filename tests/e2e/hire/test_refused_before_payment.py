"""Refusals before payment: rate limits, overload, no work processes, forbidden webhook addresses."""

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

from tests.e2e.hire.hire_session import HireSession, hire_tree
from tests.waiting import eventually
from worker.contracts.signatures import address_of
from worker.delivery.addresses import UrlRefused, rules_for
from worker.delivery.outbound import Outbound

ORIGIN = "https://shop.example"


@pytest.fixture(name="session", scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HireSession]:
    """A worker with low limits and one allowed browser origin."""
    settings = {
        "LIMIT_CONTRACTS": "30",
        "LIMIT_EXECUTES": "12",
        "LIMIT_UNKNOWN": "5",
        "QUEUE_LIMIT": "2",
        "CORS_ORIGINS": ORIGIN,
    }
    with hire_tree(tmp_path_factory.mktemp("worker"), WORKER_ENV="test", **settings) as session:
        yield session


def kids(session: HireSession, words: str) -> list[psutil.Process]:
    """Processes of the tree whose command line contains these words."""
    assert session.local.program is not None
    tree = psutil.Process(session.local.program.pid)
    return [each for each in tree.children(recursive=True) if words in " ".join(each.cmdline())]


@contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Suspends these processes, as if they hung."""
    assert processes
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def test_no_402_without_work_processes_or_clock(session: HireSession) -> None:
    """Without a process that takes work, or a clock to recover failures, the response is 503, not 402."""
    contract = session.contract("text")
    assert session.execute(contract, {"text": "x"}).status_code == 402
    with stopped(kids(session, "worker work")):
        signs = {
            key: session.store.zrange(key, 0, -1, withscores=True)
            for key in (session.keys.takers("express"), session.keys.ticks)
        }
        for key, rows in signs.items():
            for member, score in rows:  # type: ignore[union-attr]
                session.store.zadd(key, {member: score - 60_000_000})
            reply = session.execute(contract, {"text": "x"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "WORKER_BUSY"), key
            assert int(reply.headers["Retry-After"]) > 0 and "PAYMENT-REQUIRED" not in reply.headers
            for member, score in rows:  # type: ignore[union-attr]
                session.store.zadd(key, {member: score})
    eventually(lambda: session.execute(contract, {"text": "x"}).status_code == 402, 10, "room again")


def test_full_queue_refuses_new_work_before_payment(session: HireSession) -> None:
    """With a full queue new work is refused before payment; sold work continues."""
    bearer = {"Authorization": f"Bearer {session.facts['kernel_token']}"}
    contract, task = session.begin("napping", {"seconds": 1})
    for _ in range(4):  # fill the queue with the operator's own work
        free = {"agent_id": "napping", "input": {"seconds": 0.5}}
        assert session.http.post(f"{session.url}/v0/executions", json=free, headers=bearer).status_code == 201
    reply = session.execute(session.contract("napping"), {"seconds": 0})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "WORKER_BUSY")
    assert "PAYMENT-REQUIRED" not in reply.headers
    assert session.execute(contract, {"seconds": 1}, Prefer="respond-async").status_code == 202
    assert session.ended(contract, task)["status"] == "completed"


def test_cors_allows_configured_origins_only(session: HireSession) -> None:
    """A browser from an allowed origin may request, pay and read the payment headers; others may not."""
    asking = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-contract-id,payment-signature,content-type",
    }
    before = requests.options(f"{session.url}/execute", headers=asking, timeout=10)
    assert before.status_code in (200, 204)
    assert before.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "POST" in before.headers["Access-Control-Allow-Methods"]
    allowed = before.headers["Access-Control-Allow-Headers"].lower()
    assert all(name in allowed for name in ("x-contract-id", "payment-signature", "content-type"))
    asked = session.execute(session.contract("text"), {"text": "x"}, Origin=ORIGIN)
    assert asked.status_code == 402 and asked.headers["Access-Control-Allow-Origin"] == ORIGIN
    exposed = asked.headers["Access-Control-Expose-Headers"]
    for name in ("PAYMENT-REQUIRED", "PAYMENT-RESPONSE", "Location", "Retry-After", "ETag"):
        assert name in exposed
    assert "Origin" in asked.headers["Vary"]
    other = session.http.get(f"{session.url}/manifest", headers={"Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in other.headers
    assert "Access-Control-Allow-Credentials" not in before.headers


def test_request_rate_limits_answer_429(session: HireSession) -> None:
    """Too many drafts, unpaid requests or unknown ids get a 429."""
    session.move_clock(61)
    contract = session.contract("text")
    asked = session.execute(contract, {"text": "x"})
    unknown = [session.execute("ctr_" + secrets.token_hex(16), {}).status_code for _ in range(7)]
    assert unknown == [404] * 5 + [429] * 2
    replies = [session.execute(contract, {"text": "x"}) for _ in range(14)]
    assert replies[-1].status_code == 429
    assert (replies[-1].json()["error"]["code"], replies[-1].headers["Retry-After"]) == ("RATE_LIMITED", "60")
    paid = session.execute(contract, {"text": "x"}, payment=session.sign(asked))
    assert paid.status_code == 200, "paid requests are not slowed down"
    drafts = [session.http.post(f"{session.url}/contracts", json={}).status_code for _ in range(31)]
    assert drafts[-1] == 429


def test_wallets_are_rate_limited_across_addresses(session: HireSession) -> None:
    """A wallet's rate limit applies across all client addresses."""
    session.move_clock(61)
    key = "0x" + secrets.token_hex(32)
    name = f"{session.keys.prefix}:rate:executes:127.0.0.1"
    contract = session.contract("text", key=key)
    seen = []
    for _ in range(14):
        seen.append(session.execute(contract, {"text": "x"}).status_code)
        session.store.delete(name)
    assert seen == [402] * 12 + [429] * 2
    assert session.store.exists(f"{session.keys.prefix}:rate:executes:{address_of(key).lower()}")


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
def test_non_public_webhook_addresses_are_refused_in_production(url: str) -> None:
    """Under production rules each of these is refused before anything is sent or sold."""
    with pytest.raises(UrlRefused):
        Outbound(rules_for("production")).check(url)


def test_webhook_host_is_resolved_and_checked_on_every_call() -> None:
    """A host name checked as public is refused when it later resolves to an internal address."""

    class ChangingResolver:
        def __init__(self) -> None:
            self.answers = ["93.184.216.34", "127.0.0.1"]

        def resolve(self, host: str, port: int, timeout: float) -> list[str]:
            return [self.answers.pop(0)]

    outbound = Outbound(rules_for("production"), resolver=ChangingResolver())
    outbound.check("https://hooks.example/")
    with pytest.raises(UrlRefused):
        outbound.call("POST", "https://hooks.example/", body=b"{}")


def test_stopping_work_processes_finish_sold_work_and_refuse_new(session: HireSession) -> None:
    """When the work processes are told to stop, sold work is finished and new work is refused."""
    session.move_clock(61)
    contract = session.contract("text")
    [work, *_] = kids(session, "worker work")
    begun = session.begin("napping", {"seconds": 1})
    os.kill(work.pid, signal.SIGTERM)
    until = time.monotonic() + 25
    while (reply := session.execute(contract, {"text": "x"})).status_code == 402 and time.monotonic() < until:
        time.sleep(0.3)
        if not work.is_running():
            break
    assert reply.status_code in (402, 503, 429)
    assert session.ended(*begun)["status"] == "completed"
    assert session.charges(begun[1]) == 1
