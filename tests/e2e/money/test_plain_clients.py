"""The published clients buy at the plain door, on the local chain with their default settings."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
import requests
from eth_account import Account
from x402 import x402Client, x402ClientSync
from x402.http.clients.httpx import x402HttpxClient
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm.exact.register import register_exact_evm_client

from tests.e2e.money.node_clients import NodeClients
from tests.e2e.money.test_official_clients import BODY, PRICE, Balances
from tests.fakes.paid_worker import in_threads
from tests.fakes.plain_buyer import PlainBuyer
from tests.fakes.seeker import HttpDoor
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually


def check(processes: WorkerProcesses, balances: Balances, status: int, content: Any) -> None:
    """Checks for one run, one payment of the price, and the output in the response."""
    assert status == 200 and content["status"] == "completed", content
    assert content["output"]["content"]["asked"] == BODY
    assert balances.moved() == (-PRICE, PRICE)
    id = content["task_id"]
    assert processes.runs(id) == 1 and len(processes.money(id).payments) == 1


def test_python_requests_client_buys(processes: WorkerProcesses) -> None:
    """x402[requests] buys with one call."""
    seeker = processes.seeker()
    balances = Balances(processes, seeker.wallet)
    client = register_exact_evm_client(x402ClientSync(), Account.from_key(seeker.key))
    with x402_requests(client) as session:
        answer = session.post(f"{processes.url}/buy/echo", json=BODY, timeout=30)
    check(processes, balances, answer.status_code, answer.json())


def test_python_httpx_client_buys(processes: WorkerProcesses) -> None:
    """x402[httpx] buys with one call."""
    seeker = processes.seeker()
    balances = Balances(processes, seeker.wallet)

    async def buy() -> tuple[int, Any]:
        client = register_exact_evm_client(x402Client(), Account.from_key(seeker.key))
        async with x402HttpxClient(client, timeout=30) as session:
            answer = await session.post(f"{processes.url}/buy/echo", json=BODY)
            return answer.status_code, answer.json()

    check(processes, balances, *asyncio.run(buy()))


@pytest.mark.parametrize("client", ["@x402/fetch", "@x402/axios", "x402-fetch"])
def test_node_clients_buy(processes: WorkerProcesses, node_clients: NodeClients, client: str) -> None:
    """The npm clients, including the legacy one, buy with one call."""
    seeker = processes.seeker()
    balances = Balances(processes, seeker.wallet)
    answer = node_clients.pay(client, seeker, url=f"{processes.url}/buy/echo", body=BODY)
    check(processes, balances, answer["status"], answer["body"])


def test_twenty_copies_move_the_price_once(processes: WorkerProcesses) -> None:
    """Twenty parallel copies of a paid request run the work once and transfer the price once."""
    seeker = processes.seeker()
    seeker.door = HttpDoor(processes.url)
    balances, plain = Balances(processes, seeker.wallet), PlainBuyer(seeker)
    payment = plain.sign(BODY)
    answers = in_threads(*[lambda: plain.send(BODY, payment)] * 20)
    assert {answer.status for answer in answers} <= {200, 202, 401}
    done = next(answer.json for answer in answers if answer.status == 200)
    check(processes, balances, 200, done)


@pytest.mark.parametrize("point", ["after_claim", "after_settle"])
def test_a_killed_web_process_loses_no_purchase(processes: WorkerProcesses, point: str) -> None:
    """With the web process killed at any crash point, the payer is charged once and gets the result."""
    seeker = processes.seeker()
    seeker.door = HttpDoor(processes.url)
    balances, plain = Balances(processes, seeker.wallet), PlainBuyer(seeker)
    payment = plain.sign(BODY)
    armed, pid = processes.arm("web", point), processes.web_pid()
    with contextlib.suppress(requests.RequestException):
        plain.send(BODY, payment)
    eventually(lambda: not armed.exists(), 20, f"{point} was not reached")
    eventually(lambda: answers(processes), description="a new web process")
    eventually(lambda: processes.web_pid() != pid, description="another process")
    check(processes, balances, 200, insist(processes, plain, payment))


def answers(processes: WorkerProcesses) -> bool:
    with contextlib.suppress(requests.RequestException):
        return processes.door("GET", "/manifest").status == 200
    return False


def insist(processes: WorkerProcesses, plain: PlainBuyer, payment: str) -> Any:
    """Retries the identical request, signs in when told to, and returns the result."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(requests.RequestException):
            answer = plain.send(BODY, payment, Prefer="wait=1")
            assert answer.header("PAYMENT-REQUIRED") is None, "a second payment was invited"
            if answer.status == 401:
                id = answer.json["error"]["details"]["task_id"]
                answer = plain.read(id, SIGN_IN_WITH_X=plain.proof())
            if answer.json["status"] == "completed":
                return answer.json
            processes.jump(7)
    raise AssertionError(processes.logs())
