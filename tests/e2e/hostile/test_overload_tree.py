"""Overload of a complete worker over HTTP: `test_overload.py` in real time instead of the store's."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from tests.e2e.hire.hire_session import HireSession, hire_tree
from worker.contracts.signatures import address_of

HERE = Path(__file__).parent
RUN_S = 1.0
SECONDS = 30
WALLETS = 12
LATENCY_MS = 60_000


@pytest.fixture(name="session")
def _session(tmp_path: Path) -> Iterator[HireSession]:
    """A worker with one process that takes a second per run."""
    settings = {"WORKER_AGENTS": "heavy_agents", "PYTHONPATH": str(HERE), "QUEUE_PROCESSES": "1"}
    with hire_tree(tmp_path, WORKER_ENV="test", **settings) as session:
        yield session


@dataclass
class Market:
    """Buyers who arrive at a steady rate, each in its own thread."""

    session: HireSession
    keys: list[str]
    refused: int = 0
    paid: int = 0
    in_time: int = 0
    finished: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def buyer(self, number: int) -> None:
        http = requests.Session()
        session = HireSession(self.session.local, http)
        key = self.keys[number % len(self.keys)]
        body = {"seconds": RUN_S}
        contract = session.contract("slow", key=key, sla={"max_latency_ms": LATENCY_MS})
        asked = session.execute(contract, body, http=http)
        if asked.status_code == 402:
            payment = session.sign(asked, key=key)
            claimed = time.monotonic()
            reply = session.execute(contract, body, payment=payment, http=http, Prefer="respond-async")
        if asked.status_code == 503 or reply.status_code == 503:
            with self._lock:
                self.refused += 1
            return
        assert reply.status_code in (200, 202), reply.text
        done = session.ended(contract, reply.json()["task_id"], 2 * LATENCY_MS / 1_000)
        with self._lock:
            self.paid += 1
            if done["status"] == "completed" and time.monotonic() - claimed <= LATENCY_MS / 1_000:
                self.in_time += 1
                self.finished.append(time.monotonic())

    def run(self, buyers_a_second: float) -> float:
        """Returns the completed runs per second while buyers arrived."""
        began = time.monotonic()
        threads = []
        for number in range(int(buyers_a_second * SECONDS)):
            time.sleep(max(0.0, began + number / buyers_a_second - time.monotonic()))
            threads.append(threading.Thread(target=self.buyer, args=(number,)))
            threads[-1].start()
        ended = time.monotonic()
        for thread in threads:
            thread.join()
        return sum(began <= at <= ended for at in self.finished) / (ended - began)


@pytest.mark.soak
def test_goodput_under_overload(session: HireSession) -> None:
    """At two and five times capacity the goodput stays the same, and paid work is done in time."""
    keys = ["0x" + secrets.token_hex(32) for _ in range(WALLETS)]
    for key in keys:
        session.give(50_000_000, address_of(key))
        session.store.hincrby(session.keys.wallets, f"paid {address_of(key).lower()}", 100_000_000)
    rates, market = {}, Market(session, keys)
    for times in (1, 2, 5):
        rates[times] = market.run(times / RUN_S)
    print(f"runs a second {rates}, {market.paid} paid, {market.in_time} in time, {market.refused} refused")
    assert min(rates[2], rates[5]) >= 0.8 * max(rates.values())
    assert market.in_time >= 0.99 * market.paid
    assert market.refused > 0
