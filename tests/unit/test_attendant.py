"""The clock's threads for money: nothing twice at once, nothing blocks the tick, nothing kills it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import redis

from worker.payments.attendant import MOST_IN_LINE, Attendant
from worker.payments.leg_books import LegName
from worker.payments.legs import LegKind

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
    def __init__(self, legs: list[LegName]) -> None:
        self.legs = legs
        self.seen: list[tuple[int, LegName]] = []
        self.at = 0

    def due(self, at: int) -> list[LegName]:
        self.at = at
        return self.legs

    def attend(self, leg: LegName) -> None:
        self.seen.append((self.at, leg))


class Compares:
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


def test_a_tick_does_not_wait() -> None:
    """With every call hanging, the tick returns and the calls go on."""
    payments = Payments(["a", "b"])
    attendant = Attendant(payments, payments, None, Compares())
    attendant.chore(1)
    until(lambda: sorted(payments.begun) == ["a", "b"])
    assert not payments.gate.is_set()
    payments.gate.set()
    attendant.close(1)


def test_nothing_is_begun_twice_at_once() -> None:
    """What is under way is not begun again, and after its end it is."""
    payments, compares = Payments(["a"]), Compares()
    compares.gate.clear()
    attendant = Attendant(payments, payments, None, compares)
    for _ in range(5):
        attendant.chore(1)
    until(lambda: payments.begun == ["a"] and compares.runs == 1)
    payments.gate.set()
    until(lambda: "payment a" not in attendant._under_way)
    attendant.chore(1)
    until(lambda: payments.begun == ["a", "a"])
    assert compares.runs == 1
    compares.gate.set()
    attendant.close(1)


def test_legs_get_the_stores_time() -> None:
    """The time that is passed on is the store's, and each due leg is attended to."""
    legs = Legs([LegName(LegKind.REFUND, "x", 1), LegName(LegKind.FEE, "0xw", 2)])
    payments = Payments([])
    attendant = Attendant(payments, payments, legs, Compares())
    attendant.chore(77)
    until(lambda: len(legs.seen) == 2)
    assert {leg.member for _, leg in legs.seen} == {"refund x 1", "fee 0xw 2"}
    assert {at for at, _ in legs.seen} == {77}
    attendant.close(1)


def test_a_hanging_facilitator_does_not_stop_the_comparison() -> None:
    """With all threads of payments busy, the comparison still runs."""
    payments, compares = Payments([f"p{n}" for n in range(200)]), Compares()
    attendant = Attendant(payments, payments, None, compares, threads=2)
    for n in range(4):
        attendant.chore(1)
        until(lambda n=n: compares.runs == n + 1 and "comparison" not in attendant._under_way)
    assert len(payments.begun) == 2
    payments.gate.set()
    attendant.close(1)


def test_the_line_is_bounded() -> None:
    """However much is due, only so much stands in line; the rest stays due."""

    class Many(Payments):
        def due(self, at: int, most: int = 50) -> list[str]:
            return [f"{at} {n}" for n in range(most)]

    payments = Many([])
    attendant = Attendant(payments, payments, None, Compares(), threads=1)
    for at in range(5):
        attendant.chore(at)
    assert len(attendant._under_way) <= MOST_IN_LINE + 1
    payments.gate.set()
    attendant.close(1)


@pytest.mark.parametrize("error", [redis.ConnectionError(), ValueError("a bug")])
def test_a_failure_is_tried_again(error: Exception) -> None:
    """Neither a store that is away nor a bug ends the clock; the next tick begins anew."""
    payments = Payments(["a"])
    payments.error = error
    attendant = Attendant(payments, payments, None, Compares())
    attendant.chore(1)
    until(lambda: payments.begun == ["a"] and "payment a" not in attendant._under_way)
    attendant.chore(2)
    until(lambda: payments.begun == ["a", "a"])
    attendant.close(1)


def test_closing_lets_open_calls_end() -> None:
    """A call that is open gets its grace; what only stood in line is not begun."""
    payments = Payments(["a", "b", "c"])
    attendant = Attendant(payments, payments, None, Compares(), threads=1)
    attendant.chore(1)
    until(lambda: payments.begun == ["a"])
    threading.Timer(0.1, payments.gate.set).start()
    attendant.close(PATIENCE)
    assert payments.begun == ["a"] and not any(not each.done() for each in attendant._under_way.values())


def test_closing_does_not_wait_for_ever() -> None:
    """A facilitator that never answers does not keep the process."""
    payments = Payments(["a"])
    attendant = Attendant(payments, payments, None, Compares())
    attendant.chore(1)
    until(lambda: payments.begun == ["a"])
    began = time.monotonic()
    attendant.close(0.1)
    assert time.monotonic() - began < PATIENCE / 2
    payments.gate.set()
