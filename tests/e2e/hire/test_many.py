"""Many seekers at once while connections drop and work processes die: all are served, each pays once."""

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

from tests.e2e.hire.exchange import FEE_WALLET, Shop, hire_tree
from tests.e2e.hire.receiver import Receiver
from worker.contracts.signatures import address_of

PRICE = 10_000
MONEY = 2 * PRICE


@pytest.fixture(name="shop")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A worker with two web processes and two trees of work."""
    with hire_tree(tmp_path_factory.mktemp("shop"), "--web", "2", "--work", "2") as shop:
        yield shop


@dataclass
class Buyer:
    """One seeker: stubborn, impatient and forgetful, but it signs once."""

    shop: Shop
    key: str
    number: int

    def __post_init__(self) -> None:
        self.chance = random.Random(self.number)
        self.http = requests.Session()
        self.http.trust_env = False
        self.shop = Shop(self.shop.local, self.http)
        self.capability, self.given = self.chance.choice(
            [
                ("text", {"text": f"for {self.number}"}),
                ("score", {"score": self.number}),
                ("logos", {}),
                ("napping", {"seconds": self.chance.uniform(0, 0.4)}),
                ("napping-inline", {"seconds": self.chance.uniform(0, 0.4)}),
            ]
        )

    def run(self) -> dict[str, Any]:
        contract = self.stubborn(lambda: self.shop.contract(self.capability, key=self.key))
        asked = self.stubborn(lambda: self.offered(contract))
        payment = self.shop.sign(asked, key=self.key)
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
        reply = self.shop.execute(contract, self.given)
        assert reply.status_code == 402, reply.text
        return reply

    def ask(self, contract: str, payment: str) -> requests.Response | None:
        """Sends the paid request once more, sometimes twice at once, and sometimes hangs up on it."""
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
            return http.post(f"{self.shop.url}/execute", json=self.given, headers=headers, timeout=patience)
        return None

    def stubborn(self, act: Any) -> Any:
        """A fresh worker may be busy for a moment; nothing is at stake yet."""
        for _ in range(100):
            try:
                return act()
            except (AssertionError, requests.RequestException):
                time.sleep(self.chance.uniform(0.1, 0.5))
        return act()


def killer(shop: Shop, over: threading.Event, pause: float) -> list[int]:
    """Kills a work process now and then; says which."""
    killed: list[int] = []
    chance = random.Random(7)
    assert shop.local.program is not None
    tree = psutil.Process(shop.local.program.pid)
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


def all_are_served(shop: Shop, count: int, pause: float) -> None:
    keys = ["0x" + secrets.token_hex(32) for _ in range(count)]
    for key in keys:
        shop.give(MONEY, address_of(key))
    earned = shop.balance(shop.facts["worker_wallet"])
    over = threading.Event()
    with ThreadPoolExecutor(count + 1) as pool:
        killing = pool.submit(killer, shop, over, pause)
        buyers = [pool.submit(Buyer(shop, key, number).run) for number, key in enumerate(keys)]
        try:
            bodies = [buyer.result() for buyer in buyers]
        finally:
            over.set()
        assert killing.result(), "nobody was killed"
    assert len({body["task_id"] for body in bodies}) == count
    assert [shop.charges(body["task_id"]) for body in bodies] == [1] * count
    assert [shop.balance(address_of(key)) for key in keys] == [MONEY - PRICE] * count
    paid_on = shop.balance(FEE_WALLET)
    assert shop.balance(shop.facts["worker_wallet"]) - earned + paid_on == count * PRICE
    sums = {name.decode(): int(value) for name, value in shop.store.hgetall(shop.keys.sums).items()}  # type: ignore[union-attr]
    assert sums["settled"] == sums["claimed"] == count * PRICE and sums.get("open", 0) == 0
    for body in bodies:
        for each in body["deliverables"]:
            assert shop.http.head(each["url"], timeout=20).status_code == 200


def test_thirty_seekers_while_processes_die(shop: Shop) -> None:
    """Thirty are served, thirty pay, and every balance is exact."""
    all_are_served(shop, 30, pause=0.3)


@pytest.mark.soak
def test_two_hundred_seekers_while_processes_die(shop: Shop) -> None:
    """Two hundred are served, two hundred pay, and every balance is exact."""
    all_are_served(shop, 200, pause=2.0)


def test_webhooks_come_though_the_clock_dies(shop: Shop, receiver: Receiver) -> None:
    """A notice that its process could not send is sent by another."""
    assert shop.local.program is not None
    tasks = {
        shop.done("text", {"text": str(n)}, webhook={"url": receiver.url()})[1]["task_id"] for n in range(4)
    }
    tree = psutil.Process(shop.local.program.pid)
    for work in [each for each in tree.children() if "work" in each.cmdline()][:1]:
        for child in work.children():
            child.kill()
    tasks |= {shop.done("text", {"text": "x"}, webhook={"url": receiver.url()})[1]["task_id"]}
    until = time.monotonic() + 20
    while {call.told["task_id"] for call in receiver.calls} != tasks:
        assert time.monotonic() < until, len(receiver.calls)
        time.sleep(0.1)
