"""The order in which store connections are handed out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.waiting import eventually
from worker.payments.safe_writes import Witness
from worker.store import pool
from worker.store.data_model import Keys
from worker.store.pool import Turns, Use


class WaitingCallers:
    """Callers that arrive one after another, and the order in which they were served."""

    def __init__(self, size: int) -> None:
        self.turns = Turns(size)
        self.served: list[Any] = []

    def hold(self, use: Use, times: int) -> None:
        for _ in range(times):
            assert self.turns.take(use, 0)

    def comes(self, name: Any, use: Use, patience: float | None = 30) -> None:
        """Return when the caller is queued or served."""
        before = self._standing() + len(self.served)

        def take() -> None:
            self.served += [name] if self.turns.take(use, patience) else []

        threading.Thread(target=take, daemon=True).start()
        eventually(lambda: self._standing() + len(self.served) > before)

    def _standing(self) -> int:
        return sum(map(len, self.turns._queues.values()))

    def leaves(self, use: Use) -> None:
        expected = len(self.served) + bool(self._standing())
        self.turns.give_back(use)
        eventually(lambda: len(self.served) == expected)


class FakeConnection:
    """A connection without a server."""

    def __init__(self, **_: Any) -> None:
        self.pid = os.getpid()

    def connect(self) -> None:
        pass

    def can_read(self) -> bool:
        return False

    def should_reconnect(self) -> bool:
        return False


def test_connections_are_served_in_order() -> None:
    """Waiting callers get a connection in order of arrival."""
    line = WaitingCallers(1)
    line.hold("request", 1)
    for number in range(50):
        line.comes(number, "request")
    for _ in range(50):
        line.leaves("request")
        assert not line.turns.take("request", 0), "a newcomer does not go before those in line"
    assert line.served == list(range(50))


@pytest.mark.parametrize("use", ["stream", "paid"])
def test_requests_leave_connections_for_streams_and_paid_work(use: Use) -> None:
    """Of eight connections six are shared; the other two are reserved, one for each of these uses."""
    line = WaitingCallers(8)
    line.hold("request", 6)
    assert not line.turns.take("request", 0)
    line.comes("a request", "request")
    assert line.turns.take(use, 0) and not line.served
    assert not line.turns.take(use, 0), "its reserve is one; the other is another's"


def test_each_use_has_its_reserve() -> None:
    """Streams do not use the reserve of paid work, nor paid work that of streams."""
    for one, other in (("stream", "paid"), ("paid", "stream")):
        turns = Turns(8)
        assert [turns.take(one, 0) for _ in range(8)] == [True] * 7 + [False]
        assert turns.take(other, 0)


def test_use_of_a_reserve_frees_the_shared_connections() -> None:
    """Only reserves not yet in use are kept free."""
    turns = Turns(8)
    assert turns.take("stream", 0) and turns.take("paid", 0)
    assert [turns.take("request", 0) for _ in range(7)] == [True] * 6 + [False]


def test_shared_connections_go_to_the_oldest_waiter() -> None:
    """Without a free reserve, a paid call is served in order of arrival, like a request."""
    line = WaitingCallers(2)
    line.hold("request", 2)
    for number, use in enumerate(("request", "paid", "stream", "request", "paid")):
        line.comes(number, use)  # type: ignore[arg-type]
    for _ in range(5):
        line.leaves("request")
    assert line.served == [0, 1, 2, 3, 4]


def test_timed_out_waiter_leaves_the_queue() -> None:
    """The next waiter is served instead, and no connection is lost."""
    line = WaitingCallers(1)
    line.hold("request", 1)
    line.comes("hasty", "request", 0.05)
    line.comes("calm", "paid", None)
    eventually(lambda: line._standing() == 1)
    line.leaves("request")
    assert line.served == ["calm"]
    line.turns.give_back("paid")
    assert line.turns.take("request", 0)


@pytest.mark.parametrize("served", [False, True])
def test_killed_waiter_takes_nothing(served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal or the caller's own time-out, before or just after its turn has come."""
    turns = Turns(1)
    assert turns.take("request", 0)

    def ended(self: pool._Waiter, patience: float | None) -> bool:
        if served:
            turns.give_back("request")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pool._Waiter, "wait", ended)
        with pytest.raises(KeyboardInterrupt):
            turns.take("request", 1)
    if not served:
        turns.give_back("request")
    assert turns.take("request", 0) and not turns.take("request", 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 20, 500])
def test_any_pool_size_serves_every_use(size: int) -> None:
    """At any size each use is served alone, and all finish when they run together."""
    uses: tuple[Use, ...] = ("request", "stream", "paid")
    for use in uses:
        assert Turns(size).take(use, 0)
    turns, done = Turns(size), []

    def work(use: Use) -> None:
        for _ in range(20):
            assert turns.take(use, 30)
            time.sleep(0.0001)
            turns.give_back(use)
        done.append(use)

    run_all([lambda use=use: work(use) for use in uses * 5])  # type: ignore[misc]
    assert len(done) == 15


def run_all(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def test_reused_connection_returns_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller takes the connection at the moment it is put back: no slot is lost."""
    connections = pool.FairPool(connection_class=FakeConnection, max_connections=2)  # type: ignore[no-untyped-call]
    first = connections.get_connection()
    taken: list[Any] = []
    put = connections.pool.put_nowait

    def put_and_take(connection: Any) -> None:
        put(connection)
        if not taken:
            with pool.used_for("paid"):
                taken.append(connections.get_connection())

    monkeypatch.setattr(connections.pool, "put_nowait", put_and_take)
    connections.release(first)
    assert taken == [first]
    connections.release(taken[0])
    assert [connections._turns.take("request", 0) for _ in range(3)] == [True, True, False]
    assert connections._turns._held["paid"] == 0


def test_witness_connection_does_not_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's claims wait for its answer, so it uses a paid connection."""
    used: list[Use] = []

    def once(self: Witness) -> None:
        used.append(pool._use.get())
        raise SystemExit

    monkeypatch.setattr(Witness, "vouch", once)
    Witness(redis.Redis(), Keys("unused")).keep_vouching()
    eventually(lambda: used == ["paid"])
