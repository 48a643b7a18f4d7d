"""The queue of input checks before payment, and the process that runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.fakes.no_money import NO_MONEY
from tests.fakes.paid_worker import in_threads
from worker.core.errors import InvalidInput, Problem, Unavailable
from worker.core.settings import Settings
from worker.engine.transitions import ExecutionStore
from worker.engine.watch import Watcher
from worker.local.valkey import EmbeddedStore
from worker.queue import checks as checks_module
from worker.queue.check_process import CheckProcess, run_apart
from worker.queue.checks import (
    CALLER_CPU,
    LANE,
    MICROSECONDS,
    MOST_WAITING,
    PAID_CPU,
    UNPROVEN_CPU,
    CheckOutcome,
    CheckQueue,
    CheckRequester,
)
from worker.queue.presence import Presence
from worker.store.client import connect_blocking
from worker.store.data_model import Keys


class Place:
    """Both ends of the queue; checks run when a test says so."""

    def __init__(self, client: redis.Redis, url: str) -> None:
        self.client, self.keys = client, Keys()
        self.store = ExecutionStore(client, keys=self.keys, hooks=NO_MONEY)
        settings = Settings(redis_url=url, worker_env="test")
        self.waiting = connect_blocking(settings, role="web", wait=30.0)
        self.queue = CheckQueue(client, self.keys, Watcher(self.waiting))
        self.process = CheckProcess(
            self.queue,
            {"double": lambda job: job.input * 2, "refuse": refuse, "break": broken, "hang": hang},
            now=self.store.now,
            presence=Presence(self.store, LANE, "a-check-process"),
        )

    def open(self) -> None:
        self.store.sign_on(LANE, "a-check-process")

    def ask(
        self, kind: str, input: Any = None, requester: CheckRequester | None = None
    ) -> CheckOutcome | Problem:
        try:
            return self.queue.ask(kind, input, requester or CheckRequester("192.0.2.1", "0xaa"))
        except Problem as refused:
            return refused

    def run(
        self, kind: str, input: Any = None, requester: CheckRequester | None = None
    ) -> CheckOutcome | Problem:
        """A check together with its process."""
        found: list[CheckOutcome | Problem] = []
        in_threads(lambda: found.append(self.ask(kind, input, requester)), self.process._next)
        return found[0]

    def spent(self, account: str) -> int:
        return int(self.client.get(self.keys.check_cpu(account)) or 0)


def refuse(job: Any) -> None:
    raise InvalidInput("odd", field="n")


def broken(job: Any) -> None:
    raise RuntimeError("a secret of the author")


def hang(job: Any) -> None:
    while True:
        pass


@pytest.fixture(name="place")
def _place(client: redis.Redis, valkey: EmbeddedStore) -> Iterator[Place]:
    place = Place(client, valkey.url)
    yield place
    place.waiting.close()


def test_a_check_is_answered_and_leaves_nothing(place: Place) -> None:
    """The first poll returns the result, and the unused time is credited back."""
    place.open()
    assert place.run("double", 21) == CheckOutcome(answer={"value": 42})
    assert place.spent("network:192.0.2.1") < MICROSECONDS // 2
    left = {key.decode() for key in place.client.keys("w:check*")}
    accounts = ("network:192.0.2.1", "wallet:0xaa", "unproven")
    assert left == {place.keys.check_cpu(account) for account in accounts}
    assert all(place.client.ttl(key) > 0 for key in left)


def test_a_refusal_and_a_bug_look_different(place: Place) -> None:
    """The author's own message is passed on; a bug's message goes to the log only."""
    place.open()
    refused = place.run("refuse")
    assert isinstance(refused, CheckOutcome) and refused.problem is not None
    assert (refused.problem["error"], refused.problem["details"]) == ("odd", {"field": "n"})
    bug = place.run("break")
    assert isinstance(bug, CheckOutcome) and bug.problem is not None
    assert bug.problem["code"] == "INTERNAL_ERROR" and "secret" not in str(bug)


def test_an_endless_check_costs_a_second_of_cpu_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kills it, and the whole second is charged."""
    # On a busy machine a second of CPU time may take many.
    monkeypatch.setattr(checks_module, "PATIENCE", 60.0)
    monkeypatch.setattr("worker.queue.check_process.WALL_SECONDS", 50.0)
    place.open()
    assert place.run("hang") == CheckOutcome(too_long=True)
    assert place.spent("network:192.0.2.1") >= 0.8 * MICROSECONDS


def test_without_a_check_process_nobody_waits(place: Place) -> None:
    """Refused immediately; nothing is queued or charged."""
    began = time.monotonic()
    refused = place.ask("double", 1)
    assert isinstance(refused, Unavailable) and refused.code == "WORKER_BUSY"
    assert refused.message == "no process makes checks at the moment"
    assert time.monotonic() - began < checks_module.PATIENCE / 2
    assert place.client.keys("w:check*") == []


def test_budgets_are_by_caller(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets are per network, per wallet and for all new wallets; wallets that have paid have their own."""
    monkeypatch.setattr(checks_module, "PATIENCE", 0.0)
    place.open()

    def code(requester: CheckRequester) -> str:
        refused = place.ask("double", 1, requester)
        assert isinstance(refused, Problem)
        place.client.delete(place.keys.checks)
        return refused.code

    same = [code(CheckRequester("192.0.2.1", f"0x{n}")) for n in range(CALLER_CPU + 1)]
    assert same == ["WORKER_BUSY"] * CALLER_CPU + ["RATE_LIMITED"]
    wallet = [code(CheckRequester(f"192.0.3.{n}", "0xbb")) for n in range(CALLER_CPU + 1)]
    assert wallet == ["WORKER_BUSY"] * CALLER_CPU + ["RATE_LIMITED"]
    others = [code(CheckRequester(f"192.0.4.{n}", f"0xc{n}")) for n in range(UNPROVEN_CPU)]
    assert others[-1] == "RATE_LIMITED"
    assert code(CheckRequester("192.0.5.1", "0xdd", paid=True)) == "WORKER_BUSY"
    signed = [code(CheckRequester(wallet="0xee", paid=True, signed=True)) for _ in range(PAID_CPU + 1)]
    assert signed == ["WORKER_BUSY"] * PAID_CPU + ["RATE_LIMITED"], "one payment buys no whole process"


def test_the_queue_is_short_and_payers_come_first(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further checks are refused; a wallet that has paid goes ahead of those waiting."""
    monkeypatch.setattr(checks_module, "PATIENCE", 0.0)
    place.open()
    for n in range(MOST_WAITING - 1):
        place.ask("double", n, CheckRequester(f"192.0.2.{n}"))
    place.ask("double", 99, CheckRequester("192.0.2.99", "0xpaid", paid=True))
    refused = place.ask("double", 100, CheckRequester("192.0.2.100", "0xpaid", paid=True))
    assert isinstance(refused, Unavailable) and refused.message == "too many checks wait"
    assert place.client.llen(place.keys.checks) == MOST_WAITING
    first = place.queue.take(1.0)
    assert first is not None and first.input == 99


def test_a_check_that_nobody_waits_for_is_not_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller has disconnected; its CPU time is credited back."""
    monkeypatch.setattr(checks_module, "PATIENCE", 0.0)
    place.open()
    place.ask("hang")
    late = place.store.now() + 60 * MICROSECONDS
    monkeypatch.setattr(place.process, "_now", lambda: late)
    place.process._next()
    assert place.spent("network:192.0.2.1") == 0


def test_a_fork_is_gone_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeping uses no CPU time, so the wall clock ends the fork."""
    monkeypatch.setattr("worker.queue.check_process.WALL_SECONDS", 0.2)
    read, write = os.pipe()

    def work() -> bytes:
        os.write(write, str(os.getpid()).encode())
        time.sleep(60)
        return b"{}"

    ended = run_apart(work)
    assert (ended.well, ended.late) == (False, True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(os.read(read, 20)), 0)
