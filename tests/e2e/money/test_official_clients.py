"""The published clients pay this worker on the local chain with their default settings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from eth_account import Account
from x402 import x402Client, x402ClientSync
from x402.http.clients.httpx import x402HttpxClient
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm.exact.register import register_exact_evm_client

from tests.e2e.money.node_clients import NodeClients
from tests.fakes.seeker import FEE_WALLET, Hired
from tests.fakes.worker_processes import WorkerProcesses

PRICE = 10_000
BODY = {"do": "ok", "hello": "wörld"}


class Balances:
    """Balance changes of a payment: seeker to worker, and the fee that the worker may pay meanwhile."""

    def __init__(self, processes: WorkerProcesses, seeker: str) -> None:
        self._processes, self._wallets = processes, (seeker, processes.wallet, FEE_WALLET)
        self._before = [processes.dollars(wallet) for wallet in self._wallets]

    def moved(self) -> tuple[int, int]:
        now = [self._processes.dollars(wallet) for wallet in self._wallets]
        seeker, worker, fees = (b - a for a, b in zip(self._before, now, strict=True))
        return seeker, worker + fees


def check(processes: WorkerProcesses, hired: Hired, balances: Balances, status: int, content: Any) -> None:
    assert status == 200 and content["status"] == "completed", content
    assert content["output"]["content"]["asked"] == BODY
    assert balances.moved() == (-PRICE, PRICE)
    id = processes.execution_of(hired.id)
    assert id is not None and processes.runs(id) == 1 and len(processes.money(id).payments) == 1
    again = hired.execute(BODY)
    assert again.json == content and again.header("Idempotent-Replayed") == "true"
    assert balances.moved() == (-PRICE, PRICE)


def test_python_requests_client_pays(processes: WorkerProcesses) -> None:
    """x402[requests] pays automatically; the balances change by exactly the price."""
    seeker = processes.seeker()
    hired, balances = seeker.hire(), Balances(processes, seeker.wallet)
    client = register_exact_evm_client(x402ClientSync(), Account.from_key(seeker.key))
    with x402_requests(client) as session:
        answer = session.post(
            f"{processes.url}/execute", json=BODY, headers={"X-Contract-ID": hired.id}, timeout=30
        )
    check(processes, hired, balances, answer.status_code, answer.json())


def test_python_httpx_client_pays(processes: WorkerProcesses) -> None:
    """x402[httpx] pays automatically; the balances change by exactly the price."""
    seeker = processes.seeker()
    hired, balances = seeker.hire(), Balances(processes, seeker.wallet)

    async def buy() -> tuple[int, Any]:
        client = register_exact_evm_client(x402Client(), Account.from_key(seeker.key))
        async with x402HttpxClient(client, timeout=30) as session:
            answer = await session.post(
                f"{processes.url}/execute", json=BODY, headers={"X-Contract-ID": hired.id}
            )
            return answer.status_code, answer.json()

    check(processes, hired, balances, *asyncio.run(buy()))


@pytest.mark.parametrize("client", ["@x402/fetch", "@x402/axios", "x402-fetch"])
def test_node_clients_pay(processes: WorkerProcesses, node_clients: NodeClients, client: str) -> None:
    """The npm clients, the legacy one included, pay automatically; balances change by exactly the price."""
    seeker = processes.seeker()
    hired, balances = seeker.hire(), Balances(processes, seeker.wallet)
    answer = node_clients.pay(client, seeker, url=f"{processes.url}/execute", contract=hired.id, body=BODY)
    check(processes, hired, balances, answer["status"], answer["body"])
