"""Streams, files and requests with a payment header: each is limited without affecting others."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from tests.e2e.hire.hire_session import HireSession, hire_tree
from tests.e2e.hostile.heavy_agents import HEAVY
from worker.doors.hangup import WRITE_SECONDS
from worker.doors.stream_places import MOST_OF_ONE_TASK

HERE = Path(__file__).parent
LIMIT = 30
MEGABYTE = b"[" + b'{"a":{"b":{}}},' * 69_000 + b"0]"
MANY = 100


@pytest.fixture(name="session", scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HireSession]:
    """A worker with its chain and facilitator, and with production limits."""
    settings = {"WORKER_AGENTS": "heavy_agents", "PYTHONPATH": str(HERE), "LIMIT_EXECUTES": str(LIMIT)}
    settings["TRUSTED_PROXIES"] = "1"  # so that a test can send from other addresses
    home = tmp_path_factory.mktemp("worker")
    with hire_tree(home, WORKER_ENV="test", **settings) as session:
        yield session


def hire(session: HireSession, capability: str, body: object) -> tuple[str, str]:
    """Contract and task of paid work."""
    contract = session.contract(capability)
    payment = session.sign(session.execute(contract, body))
    reply = session.execute(contract, body, payment=payment, Prefer="respond-async")
    assert reply.status_code == 202, reply.text
    return contract, reply.json()["task_id"]


def stream(session: HireSession, contract: str, task: str) -> requests.Response:
    headers = {"X-Contract-ID": contract}
    return requests.get(f"{session.url}/stream/{task}", headers=headers, stream=True, timeout=10)


def test_a_contract_holds_only_its_own_streams(session: HireSession) -> None:
    """A contract's ninth stream is told to retry later; another contract's first one opens."""
    contract, task = hire(session, "slow", {"seconds": 8})
    other, other_task = hire(session, "slow", {"seconds": 1})
    with ExitStack() as open_streams:
        for _ in range(MOST_OF_ONE_TASK):
            reply = open_streams.enter_context(stream(session, contract, task))
            assert reply.status_code == 200
        refused = stream(session, contract, task)
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) > 0
        assert refused.json()["error"]["details"]["limit"] == "task"
        with stream(session, other, other_task) as reply:
            assert reply.status_code == 200


def test_a_payment_header_does_not_skip_the_limit(session: HireSession) -> None:
    """A flood of fake payments from one address is limited; a customer there still pays and is served."""
    statuses = [
        session.execute("ctr_" + secrets.token_hex(13), {}, payment="bm9uc2Vuc2U=").status_code
        for _ in range(LIMIT + 10)
    ]
    assert statuses.count(429) >= 10 and set(statuses) <= {404, 429}
    contract, task = hire(session, "slow", {"seconds": 0})
    assert session.http.get(f"{session.url}/tasks/{task}", headers={"X-Contract-ID": contract}).ok


def web_cpu(session: HireSession) -> float:
    """Seconds of processor time that the web processes have used."""
    total = 0.0
    for process in session.local.members():
        with suppress(psutil.NoSuchProcess):
            if any("gunicorn" in word for word in process.cmdline()):
                times = process.cpu_times()
                total += times.user + times.system
    return total


def test_refused_megabytes_cost_a_web_process_little(session: HireSession) -> None:
    """At most 30 ms of CPU time each, receiving included, so a few such clients delay nobody by 100 ms."""
    with requests.Session() as http:

        def refused(number: int) -> int:
            """The status of a megabyte of nested JSON for an unknown contract, from one of two addresses."""
            headers = {
                "X-Contract-ID": "ctr_" + secrets.token_hex(13),
                "X-Forwarded-For": f"203.0.113.{number % 2}",
                "Content-Type": "application/json",
            }
            return http.post(f"{session.url}/execute", MEGABYTE, headers=headers, timeout=60).status_code

        refused(0)
        before = web_cpu(session)
        statuses = [refused(number) for number in range(MANY)]
        assert web_cpu(session) - before < 0.030 * MANY
    assert set(statuses) == {404, 429}


def test_no_shared_cache_may_keep_an_answer(session: HireSession) -> None:
    """Offers, contracts, tasks, streams, files and refusals: each depends on a header or a secret."""
    contract = session.contract("slow")
    asked = session.execute(contract, {"seconds": 0})
    payment = session.sign(asked)
    paid = session.execute(contract, {"seconds": 0}, payment=payment)
    task = paid.json()["task_id"]
    done = session.ended(contract, task)
    headers = {"X-Contract-ID": contract}
    answers = [asked, paid, session.execute(contract, {"seconds": 9}, payment=payment)]
    answers += [session.http.get(f"{session.url}{path}", headers=headers) for path in (
        "/contracts", f"/tasks/{task}", "/tasks/unknown", f"/stream/{task}",
    )]  # fmt: skip
    answers += [session.http.get(each["url"]) for each in done["deliverables"]]
    for answer in answers:
        directives = answer.headers["Cache-Control"].split(", ")
        assert "private" in directives or "no-store" in directives, (answer.url, directives)


def test_two_payment_headers_are_one_payment(session: HireSession) -> None:
    """Headers merged by a proxy are refused as malformed; of two dialects one counts, on both sides."""
    contract = session.contract("slow")
    asked = session.execute(contract, {"seconds": 0})
    first, second = session.sign(asked), session.sign(asked)
    merged = session.execute(contract, {"seconds": 0}, payment=f"{first}, {second}")
    assert merged.status_code == 400 and merged.json()["error"]["code"] == "PAYMENT_INVALID"
    paid = session.execute(contract, {"seconds": 0}, payment=first, X_PAYMENT=second)
    assert paid.ok, paid.text
    task = paid.json()["task_id"]
    session.ended(contract, task)
    assert session.charges(task) == 1


@pytest.mark.soak
def test_a_client_that_does_not_read_is_let_go(session: HireSession) -> None:
    """A client that requests a large file and does not read is disconnected before the end."""
    contract, task = hire(session, "heavy", {})
    done = session.ended(contract, task)
    address = urlsplit(done["deliverables"][0]["url"])
    with socket.create_connection((address.hostname, address.port), timeout=60) as client:
        client.sendall(f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        assert client.recv(12) == b"HTTP/1.1 200"
        time.sleep(WRITE_SECONDS + 5)  # the client must read nothing for this long
        client.settimeout(20)
        received = 0
        with suppress(ConnectionResetError):
            while piece := client.recv(1 << 16):
                received += len(piece)
    assert received < HEAVY
