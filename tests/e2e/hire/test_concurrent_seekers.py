"""Many concurrent seekers while connections drop and work processes die: all are served, each pays once."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import requests

from tests.e2e.hire.hire_session import FEE_WALLET, HireSession, hire_tree
from tests.e2e.hire.webhook_receiver import Receiver
from worker.contracts.signatures import address_of

PRICE = 10_000
MONEY = 2 * PRICE


@pytest.fixture(name="session")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HireSession]:
    """A worker with two web processes and two work trees."""
    with hire_tree(tmp_path_factory.mktemp("worker"), "--web", "2", "--work", "2") as session:
        yield session


@dataclass
class Buyer:
    """One seeker that retries, disconnects and forgets, but signs only once."""

    session: HireSession
    key: str
    number: int

    def __post_init__(self) -> None:
        self.chance = random.Random(self.number)
        self.http = requests.Session()
        self.http.trust_env = False
        self.session = HireSession(self.session.local, self.http)
        self.capability, self.input = self.chance.choice(
            [
                ("text", {"text": f"for {self.number}"}),
                ("score", {"score": self.number}),
                ("logos", {}),
                ("napping", {"seconds": self.chance.uniform(0, 0.4)}),
                ("napping-inline", {"seconds": self.chance.uniform(0, 0.4)}),
            ]
        )

    def run(self) -> dict[str, Any]:
        contract = self.stubborn(lambda: self.session.contract(self.capability, key=self.key))
        asked = self.stubborn(lambda: self.offered(contract))
        payment = self.session.sign(asked, key=self.key)
        until = time.monotonic() + 150
        while time.monotonic() < until:
            reply = self.ask(contract, payment)
            if reply is None or reply.status_code in (202, 503, 504):
                time.sleep(self.chance.uniform(0.02, 0.3))
                continue
            assert reply.status_code == 200, reply.text
            body: dict[str, Any] = reply.json()
            if body["status"] == "completed":
                return body
            time.sleep(0.1)
        raise AssertionError(f"{self.capability} {contract} did not complete")

    def offered(self, contract: str) -> requests.Response:
        reply = self.session.execute(contract, self.input)
        assert reply.status_code == 402, reply.text
        return reply

    def ask(self, contract: str, payment: str) -> requests.Response | None:
        """Repeats the paid request, sometimes as two copies at once, and sometimes disconnects."""
        if self.chance.random() < 0.3:
            twin = threading.Thread(target=self.send, args=(contract, payment, 0.5))
            twin.start()
            reply = self.send(contract, payment, 3)
            twin.join()
            return reply
        return self.send(contract, payment, self.chance.choice([0.03, 0.2, 2, 12]))

    def send(self, contract: str, payment: str, patience: float) -> requests.Response | None:
        headers = {"X-Contract-ID": contract, "PAYMENT-SIGNATURE": payment}
        with contextlib.suppress(requests.RequestException), requests.Session() as http:
            http.trust_env = False
            return http.post(
                f"{self.session.url}/execute", json=self.input, headers=headers, timeout=patience
            )
        return None

    def stubborn(self, act: Any) -> Any:
        """Retries while a fresh worker is busy; no payment has been sent yet."""
        for _ in range(100):
            try:
                return act()
            except (AssertionError, requests.RequestException):
                time.sleep(self.chance.uniform(0.1, 0.5))
        return act()


def killer(session: HireSession, over: threading.Event, pause: float) -> list[int]:
    """Kills a work process at intervals; returns the pids."""
    killed: list[int] = []
    chance = random.Random(7)
    assert session.local.program is not None
    tree = psutil.Process(session.local.program.pid)
    while not over.wait(pause):
        with contextlib.suppress(psutil.Error):
            work = [each for each in tree.children() if "work" in each.cmdline()]
            victims = [child for each in work for child in each.children()]
            if victims:
                victim = chance.choice(victims)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim.pid, signal.SIGKILL)
                    killed.append(victim.pid)
    return killed


def all_are_served(session: HireSession, count: int, pause: float) -> None:
    keys = ["0x" + secrets.token_hex(32) for _ in range(count)]
    for key in keys:
        session.give(MONEY, address_of(key))
    earned = session.balance(session.facts["worker_wallet"])
    over = threading.Event()
    with ThreadPoolExecutor(count + 1) as pool:
        killing = pool.submit(killer, session, over, pause)
        buyers = [pool.submit(Buyer(session, key, number).run) for number, key in enumerate(keys)]
        try:
            bodies = [buyer.result() for buyer in buyers]
        finally:
            over.set()
        assert killing.result(), "nobody was killed"
    assert len({body["task_id"] for body in bodies}) == count
    assert [session.charges(body["task_id"]) for body in bodies] == [1] * count
    assert [session.balance(address_of(key)) for key in keys] == [MONEY - PRICE] * count
    paid_on = session.balance(FEE_WALLET)
    assert session.balance(session.facts["worker_wallet"]) - earned + paid_on == count * PRICE
    sums = {name.decode(): int(value) for name, value in session.store.hgetall(session.keys.sums).items()}  # type: ignore[union-attr]
    assert sums["settled"] == sums["claimed"] == count * PRICE and sums.get("open", 0) == 0
    for body in bodies:
        for each in body["deliverables"]:
            assert session.http.head(each["url"], timeout=20).status_code == 200


def test_30_seekers_are_served_while_processes_are_killed(session: HireSession) -> None:
    """Thirty are served, thirty pay, and every balance is exact."""
    all_are_served(session, 30, pause=0.3)


@pytest.mark.soak
def test_200_seekers_are_served_while_processes_are_killed(session: HireSession) -> None:
    """Two hundred are served, two hundred pay, and every balance is exact."""
    all_are_served(session, 200, pause=2.0)


def test_webhooks_are_delivered_after_the_clock_is_killed(session: HireSession, receiver: Receiver) -> None:
    """A webhook that a killed process could not send is sent by another."""
    assert session.local.program is not None
    tasks = {
        session.done("text", {"text": str(n)}, webhook={"url": receiver.url()})[1]["task_id"]
        for n in range(4)
    }
    tree = psutil.Process(session.local.program.pid)
    for work in [each for each in tree.children() if "work" in each.cmdline()][:1]:
        for child in work.children():
            child.kill()
    tasks |= {session.done("text", {"text": "x"}, webhook={"url": receiver.url()})[1]["task_id"]}
    until = time.monotonic() + 20
    while {call.payload["task_id"] for call in receiver.calls} != tasks:
        assert time.monotonic() < until, len(receiver.calls)
        time.sleep(0.1)
