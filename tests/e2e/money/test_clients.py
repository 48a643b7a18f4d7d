"""The published clients pay this worker on the local chain with their default settings."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from x402 import x402Client, x402ClientSync
from x402.http.clients.httpx import x402HttpxClient
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm.exact.register import register_exact_evm_client

from tests.fakes.house import House
from tests.fakes.seeker import FEE_WALLET, Hired

PRICE = 10_000
NODE = Path(__file__).parent / "node"
CACHE = Path(__file__).parents[3] / "var" / "node-money"
BODY = {"do": "ok", "hello": "wörld"}


class Balances:
    """What a payment moved: from the seeker to the worker, and the fee that the worker may pay meanwhile."""

    def __init__(self, house: House, seeker: str) -> None:
        self._house, self._wallets = house, (seeker, house.wallet, FEE_WALLET)
        self._before = [house.dollars(wallet) for wallet in self._wallets]

    def moved(self) -> tuple[int, int]:
        now = [self._house.dollars(wallet) for wallet in self._wallets]
        seeker, worker, fees = (b - a for a, b in zip(self._before, now, strict=True))
        return seeker, worker + fees


def check(house: House, hired: Hired, balances: Balances, status: int, content: Any) -> None:
    assert status == 200 and content["status"] == "completed", content
    assert content["output"]["content"]["asked"] == BODY
    assert balances.moved() == (-PRICE, PRICE)
    id = house.execution_of(hired.id)
    assert id is not None and house.runs(id) == 1 and len(house.money(id).payments) == 1
    again = hired.execute(BODY)
    assert again.json == content and again.header("Idempotent-Replayed") == "true"
    assert balances.moved() == (-PRICE, PRICE)


def test_python_requests(house: House) -> None:
    """x402[requests] pays by itself; the balances move by exactly the price."""
    seeker = house.seeker()
    hired, balances = seeker.hire(), Balances(house, seeker.wallet)
    client = register_exact_evm_client(x402ClientSync(), Account.from_key(seeker.key))
    with x402_requests(client) as session:
        answer = session.post(
            f"{house.url}/execute", json=BODY, headers={"X-Contract-ID": hired.id}, timeout=30
        )
    check(house, hired, balances, answer.status_code, answer.json())


def test_python_httpx(house: House) -> None:
    """x402[httpx] pays by itself; the balances move by exactly the price."""
    seeker = house.seeker()
    hired, balances = seeker.hire(), Balances(house, seeker.wallet)

    async def buy() -> tuple[int, Any]:
        client = register_exact_evm_client(x402Client(), Account.from_key(seeker.key))
        async with x402HttpxClient(client, timeout=30) as session:
            answer = await session.post(
                f"{house.url}/execute", json=BODY, headers={"X-Contract-ID": hired.id}
            )
            return answer.status_code, answer.json()

    check(house, hired, balances, *asyncio.run(buy()))


def missing(why: str) -> None:
    """Without node there is nothing to test here; in CI that is a failure."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session", name="node_clients")
def _node_clients() -> Path:
    """The published npm clients, installed once into a directory that git ignores."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("node and npm are not installed")
    wanted = (NODE / "package.json").read_text()
    mark = CACHE / "installed"
    if not mark.exists() or mark.read_text() != wanted:
        CACHE.mkdir(parents=True, exist_ok=True)
        shutil.copy(NODE / "package.json", CACHE)
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        done = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, timeout=600)
        if done.returncode:
            missing(f"the npm clients cannot be installed: {done.stderr[-300:]}")
        mark.write_text(wanted)
    shutil.copy(NODE / "pay.mjs", CACHE)
    return CACHE


@pytest.mark.parametrize("client", ["@x402/fetch", "@x402/axios", "x402-fetch"])
def test_node(house: House, node_clients: Path, client: str) -> None:
    """The npm clients, the legacy one included, pay by themselves; the balances move by exactly the price."""
    seeker = house.seeker()
    hired, balances = seeker.hire(), Balances(house, seeker.wallet)
    asked = {"url": f"{house.url}/execute", "contract": hired.id, "body": BODY}
    done = subprocess.run(
        ["node", "pay.mjs", client],
        input=json.dumps(asked),
        env={**os.environ, "SEEKER_KEY": seeker.key},
        cwd=node_clients,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    check(house, hired, balances, answer["status"], answer["body"])
    paid = answer["paid"]
    assert paid["success"] is True and paid["transaction"].startswith("0x")
