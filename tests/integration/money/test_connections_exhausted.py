"""A paid request gets a store connection even when other requests have exhausted the pool."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.fakes.paid_door import PaidDoor, asked
from worker.store import pool as store_pool
from worker.store.pool import used_for

BODY = {"do": "ok"}


class BusyConnections:
    """Requests that hold every connection of the door's pool available to them."""

    def __init__(self, paid_door: PaidDoor) -> None:
        pool: Any = paid_door.parts.client.connection_pool
        self._turns = pool._turns
        self._held = 0

    def comes(self) -> None:
        while self._turns.take("request", 0):
            self._held += 1

    def goes(self) -> None:
        for _ in range(self._held):
            self._turns.give_back("request")
        self._held = 0


@pytest.fixture(name="busy_connections")
def _busy_connections(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> Iterator[BusyConnections]:
    monkeypatch.setattr(store_pool, "PATIENCE", 0.05)
    busy_connections = BusyConnections(paid_door)
    yield busy_connections
    busy_connections.goes()


@contextmanager
def a_request() -> Iterator[None]:
    """As the web application starts each request."""
    with used_for("request"):
        yield


def test_claimed_payment_always_gets_a_store_connection(
    paid_door: PaidDoor, busy_connections: BusyConnections
) -> None:
    """From just before the claim until the response, no store call is refused."""
    deal = paid_door.deal()
    payment = deal.payment()
    points: list[str] = []

    def checkpoint(point: str) -> None:
        points.append(point)
        if point == "before_claim":
            busy_connections.comes()

    paid_door.web_settler.checkpoint = checkpoint
    with a_request():
        task = deal.execute(BODY, payment)
        assert paid_door.step(), "verified meanwhile"
        shown = paid_door.parts.tasks.wait(task, time.monotonic() + 0.2)
        assert shown.execution.id == task.execution.id and "before_claim" in points
        busy_connections.goes()
    with a_request():
        again = deal.execute(BODY, payment)
        assert again.execution.id == task.execution.id


def test_request_without_a_payment_gets_503_when_connections_run_out(
    paid_door: PaidDoor, busy_connections: BusyConnections
) -> None:
    """An unpaid request times out before anything is claimed; a later retry finds nothing changed."""
    deal = paid_door.deal()
    busy_connections.comes()
    with a_request(), pytest.raises(redis.ConnectionError):
        deal.execute(BODY, "any")
    busy_connections.goes()
    with a_request():
        asked(lambda: deal.execute(BODY))
        assert deal.id is None
