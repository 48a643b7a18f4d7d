"""The clock's payment threads: no task runs twice at once, blocks the tick or kills the pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import redis

from worker.payments.leg import LegKey, LegKind
from worker.payments.pool import MOST_IN_LINE, MoneyPool

PATIENCE = 5.0


class Payments:
    """Ledger and settler in one: `due` ids, and a gate that holds each call open."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        self.begun: list[str] = []
        self.gate = threading.Event()
        self.error: Exception | None = None

    def due(self, at: int, most: int = 50) -> list[str]:
        return self.ids[:most]

    def attend(self, id: str) -> None:
        self.begun.append(id)
        if self.error is not None:
            raise self.error
        self.gate.wait(PATIENCE)


class Legs:
    def __init__(self, legs: list[LegKey]) -> None:
        self.legs = legs
        self.seen: list[tuple[int, LegKey]] = []
        self.at = 0

    def due(self, at: int) -> list[LegKey]:
        self.at = at
        return self.legs

    def attend(self, leg: LegKey) -> None:
        self.seen.append((self.at, leg))


class CountedComparison:
    def __init__(self) -> None:
        self.runs = 0
        self.gate = threading.Event()
        self.gate.set()

    def run(self) -> bool:
        self.runs += 1
        self.gate.wait(PATIENCE)
        return True


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def test_tick_does_not_wait() -> None:
    """While every call hangs, the tick returns and the calls continue."""
    payments = Payments(["a", "b"])
    pool = MoneyPool(payments, payments, None, CountedComparison())
    pool.chore(1)
    until(lambda: sorted(payments.begun) == ["a", "b"])
    assert not payments.gate.is_set()
    payments.gate.set()
    pool.close(1)


def test_running_task_is_not_started_twice() -> None:
    """A running task is not started again; after it ends it is."""
    payments, compares = Payments(["a"]), CountedComparison()
    compares.gate.clear()
    pool = MoneyPool(payments, payments, None, compares)
    for _ in range(5):
        pool.chore(1)
    until(lambda: payments.begun == ["a"] and compares.runs == 1)
    payments.gate.set()
    until(lambda: "payment a" not in pool.under_way)
    pool.chore(1)
    until(lambda: payments.begun == ["a", "a"])
    assert compares.runs == 1
    compares.gate.set()
    pool.close(1)


def test_leg_schedule_uses_the_stores_time() -> None:
    """Each due leg is processed with the store's time."""
    legs = Legs([LegKey(LegKind.REFUND, "x", 1), LegKey(LegKind.FEE, "0xw", 2)])
    payments = Payments([])
    pool = MoneyPool(payments, payments, legs, CountedComparison())
    pool.chore(77)
    until(lambda: len(legs.seen) == 2)
    assert {leg.member for _, leg in legs.seen} == {"refund x 1", "fee 0xw 2"}
    assert {at for at, _ in legs.seen} == {77}
    pool.close(1)


def test_hanging_facilitator_does_not_block_the_comparison() -> None:
    """While all payment threads are busy, the comparison still runs."""
    payments, compares = Payments([f"p{n}" for n in range(200)]), CountedComparison()
    pool = MoneyPool(payments, payments, None, compares, threads=2)
    for n in range(4):
        pool.chore(1)
        until(lambda n=n: compares.runs == n + 1 and "comparison" not in pool.under_way)
    assert len(payments.begun) == 2
    payments.gate.set()
    pool.close(1)


def test_task_queue_is_bounded() -> None:
    """However much is due, the queue is limited; the rest stays due."""

    class ManyPayments(Payments):
        def due(self, at: int, most: int = 50) -> list[str]:
            return [f"{at} {n}" for n in range(most)]

    payments = ManyPayments([])
    pool = MoneyPool(payments, payments, None, CountedComparison(), threads=1)
    for at in range(5):
        pool.chore(at)
    assert len(pool.under_way) <= MOST_IN_LINE + 1
    payments.gate.set()
    pool.close(1)


def begun_after(error: Exception, ticks: int, rest: float) -> int:
    """Return how often a failing payment is started in this many ticks, each after the last start ended."""
    payments = Payments(["a"])
    payments.error = error
    pool = MoneyPool(payments, payments, None, CountedComparison(), rest=rest)
    for _ in range(ticks):
        pool.chore(1)
        until(lambda: "payment a" not in pool.under_way)
    pool.close(1)
    return len(payments.begun)


def test_task_after_an_outage_is_retried_each_tick() -> None:
    """A store outage ends only the attempt; the next tick retries."""
    assert begun_after(redis.ConnectionError(), 5, rest=60) == 5


@pytest.mark.parametrize("bug", [ValueError("a bug"), redis.ResponseError("WRONGTYPE Operation")])
def test_task_after_a_bug_is_delayed(bug: Exception) -> None:
    """A task that hit a bug is retried after a delay, not at each tick."""
    assert begun_after(bug, 5, rest=60) == 1
    assert begun_after(bug, 5, rest=0) == 5


def test_closing_waits_for_open_calls() -> None:
    """An open call gets a grace period; queued tasks are not started."""
    payments = Payments(["a", "b", "c"])
    pool = MoneyPool(payments, payments, None, CountedComparison(), threads=1)
    pool.chore(1)
    until(lambda: payments.begun == ["a"])
    threading.Timer(0.1, payments.gate.set).start()
    pool.close(PATIENCE)
    assert payments.begun == ["a"] and not pool.under_way


def test_closing_gives_up_after_a_timeout() -> None:
    """A facilitator that never answers does not block the process's exit."""
    payments = Payments(["a"])
    pool = MoneyPool(payments, payments, None, CountedComparison())
    pool.chore(1)
    until(lambda: payments.begun == ["a"])
    began = time.monotonic()
    pool.close(0.1)
    assert time.monotonic() - began < PATIENCE / 2
    payments.gate.set()
