"""A paid worker with its web application in the test's process and its work in real processes.

The store is a real Valkey, the facilitator can be made to lie, and time can be moved. Every test hires with
new wallets, so that many tests and threads may share one worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import redis
from flask import Flask

from tests.fakes.execution_reads import ExecutionReads
from tests.fakes.facilitator_server import FacilitatorServer
from tests.fakes.seeker import FlaskDoor, Seeker
from tests.waiting import eventually
from worker.app import create_app
from worker.core.settings import Settings
from worker.local.valkey import EmbeddedStore
from worker.parts import Parts
from worker.queue.checks import LANE as CHECKS

ROOT = Path(__file__).parents[2]
WORKER_KEY = "0x" + "22" * 32
SECOND = 1_000_000
LANES = ("express", "queue", CHECKS)
T = TypeVar("T")


def paid_environ(home: Path, redis_url: str, facilitator_url: str, **settings: str) -> dict[str, str]:
    """The settings of a worker that sells these tests' agents."""
    agents = home / "agents"
    agents.mkdir(parents=True, exist_ok=True)
    return {
        "WORKER_ENV": "test",
        "WORKER_STATE_DIR": str(home),
        "REDIS_URL": redis_url,
        "FACILITATOR_URL": facilitator_url,
        "WORKER_KEY": WORKER_KEY,
        "SECRET_KEY": "s" * 40,
        "KERNEL_TOKEN": "k" * 40,
        "WORKER_AGENTS": "tests.fakes.money_agents",
        "MONEY_AGENTS_DIR": str(agents),
        "LOG_FORMAT": "json",
        **settings,
    }


def inherited() -> dict[str, str]:
    """A child's share of the test's environment: nothing that is a setting."""
    return {name: value for name, value in os.environ.items() if name not in Settings.names()}


class PaidWorker(ExecutionReads):
    """One worker, with everything that tests check about it."""

    def __init__(self, home: Path, store: EmbeddedStore, facilitator: FacilitatorServer, **more: str) -> None:
        self.home = home
        self.facilitator = facilitator
        self.environ = paid_environ(home, store.start(), facilitator.url, **more)
        self.settings = Settings.load(self.environ)
        self._work: subprocess.Popen[bytes] | None = None

    @cached_property
    def app(self) -> Flask:
        return create_app(self.settings)

    @cached_property
    def parts(self) -> Parts:
        return Parts(self.settings, "cli")

    @property
    def client(self) -> redis.Redis:
        return self.parts.client

    def start_work(self) -> None:
        """Starts warm processes and the clock; waits until they take work."""
        with (self.home / "work.log").open("ab") as log:
            self._work = subprocess.Popen(
                [sys.executable, "-m", "worker", "work"],
                env={**inherited(), **self.environ},
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually(self._ready, 30, "work that is ready")

    def _ready(self) -> bool:
        lanes = all(self.parts.store.takers(lane) for lane in LANES)
        # Contracts older than the moment at which the clock first sees the store are held back for a while.
        seen = self.client.exists(self.parts.keys.life)
        return bool(lanes and seen and self.parts.store.clock_age() is not None)

    def stop_work(self) -> None:
        if self._work is not None:
            self._work.send_signal(signal.SIGTERM)
            try:
                self._work.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._work.pid, signal.SIGKILL)
                self._work.wait()
            self._work = None

    # Time

    def now(self) -> float:
        return self.parts.store.now() / SECOND

    def jump(self, seconds: float) -> None:
        """Moves the store's clock ahead. Running work loses its lease."""
        self.client.incrby(self.parts.keys.test_clock, int(seconds * SECOND))
        if self._work is not None:
            for lane in LANES:
                # Its processes are alive, but would register in the new time only some seconds later.
                self.parts.store.sign_on(lane, "as-before-the-jump")
            eventually(lambda: (self.parts.store.clock_age() or 99) < 5, description="a tick after the jump")

    # Seekers

    def seeker(self, key: str | None = None) -> Seeker:
        door = FlaskDoor(self.app)
        return Seeker(door, key, self.now) if key else Seeker(door, now=self.now)

    # The money, and the facilitator that moves it

    def settles(self, payer: str) -> int:
        return len(self.calls("settle", payer))

    def calls(self, operation: str, payer: str) -> list[dict[str, Any]]:
        return [call for call in self.facilitator.calls(operation) if payer_of(call) == payer.lower()]

    def fault(self, operation: str, payer: str, *faults: Any, times: int = 1) -> None:
        self.facilitator.plan(operation, *faults, times=times, payer=payer)

    def charged(self, payer: str) -> int:
        return self.facilitator.charged(payer)

    def check_books(self) -> None:
        """Checks that every claim ever made is in exactly one place and agrees with the payments."""
        check_sums(self.parts)


def payer_of(call: dict[str, Any]) -> str:
    return str(call["body"]["paymentPayload"]["payload"]["authorization"]["from"]).lower()


def check_sums(parts: Parts) -> None:
    """Checks the sums against the payments, at one moment."""
    client, keys = parts.client, parts.keys
    names = [name.decode() for name in client.scan_iter(f"{keys.prefix}:money:*")]
    with client.pipeline(transaction=True) as pipe:
        pipe.hgetall(keys.sums)
        for name in names:
            pipe.hgetall(name)
        found: Any = pipe.execute()
    sums = {name.decode(): int(value) for name, value in found[0].items()}
    counted: Counter[str] = Counter()
    for raw in found[1:]:
        money = {name.decode(): value.decode() for name, value in raw.items()}
        for number in range(1, int(money.get("count", 0)) + 1):
            if f"{number} key" not in money:
                continue  # a wallet's fees, not payments
            amount, state = int(money[f"{number} amount"]), money[f"{number} state"]
            counted["claimed"] += amount
            counted[state if state in ("settled", "refused", "released") else "open"] += amount
    places = ("claimed", "settled", "refused", "released", "open")
    assert {name: sums.get(name, 0) for name in places} == {name: counted[name] for name in places}
    assert sums.get("claimed", 0) == sum(sums.get(name, 0) for name in places[1:])


def in_threads(*calls: Callable[[], T], seconds: float = 60.0) -> list[T]:
    """Runs all calls concurrently; returns their results in order."""
    results: dict[int, T] = {}
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(calls))

    def run(at: int, call: Callable[[], T]) -> None:
        try:
            barrier.wait(seconds)
            results[at] = call()
        except BaseException as failed:
            failures.append(failed)

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    if failures:
        raise failures[0]
    assert len(results) == len(calls), "a call did not end"
    return [results[at] for at in range(len(calls))]
