"""Stores with replicas: settlement requires the claim on one; lossless failovers hold no contracts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.forgetful import OldFile, Promoted, Stores
from tests.fakes.seeker import DoorAnswer
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually

PRICE, RICH = 10_000, 1_000_000
BODY = {"do": "ok"}

Place = Callable[[Stores], WorkerProcesses]


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[Place]:
    houses: list[WorkerProcesses] = []

    def running_worker(stores: Stores) -> WorkerProcesses:
        houses.append(WorkerProcesses(tmp_path, store=stores))
        return houses[-1].open()

    yield running_worker
    for processes in houses:
        processes.close()


def asked_within(seconds: float, ask: Callable[[], DoorAnswer]) -> float:
    """Seconds until the door answered 402 again."""
    began = time.monotonic()

    def asked() -> bool:
        response = ask()
        assert response.status in (402, 503), response.content
        return response.status == 402

    eventually(asked, seconds, "money that is asked for")
    return time.monotonic() - began


def test_lossless_restart_holds_no_contracts(place: Place, tmp_path: Path) -> None:
    """Every process finds its money writes again, so older contracts are sold again within seconds."""
    stores = OldFile(tmp_path / "stores")
    processes = place(stores)
    assert processes.seeker().hire().pay().status == 200
    older = processes.seeker().hire()
    processes.jump(1)
    stores.restart()
    assert older.execute(BODY).status == 503
    asked_within(30, lambda: older.execute(BODY))
    assert older.pay().status == 200
    assert processes.dollars(older.seeker.wallet) == RICH - PRICE


def test_lossy_restart_holds_older_contracts_only(place: Place, tmp_path: Path) -> None:
    """A process remembers a payment that the store lost: older contracts are held, newer ones are sold."""
    stores = OldFile(tmp_path / "stores")
    processes = place(stores)
    older = processes.seeker().hire()
    stores.fall_behind()
    assert processes.seeker().hire().pay().status == 200
    stores.fail()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        held = older.execute(BODY)
        assert held.status == 503 and held.header("PAYMENT-REQUIRED") is None, held.content
        time.sleep(0.5)
    assert int(held.header("Retry-After") or 0) > 60
    newer = processes.seeker().hire()
    assert newer.pay().status == 200
    processes.jump(2 * 3600 + 120)
    asked_within(30, lambda: older.execute(BODY))


def test_promoted_replica_holds_no_contracts(place: Place, tmp_path: Path) -> None:
    """No acknowledged write was lost, so contracts are held only until that is established."""
    stores = Promoted(tmp_path / "stores")
    processes = place(stores)
    assert processes.seeker().hire().pay().status == 200
    older = processes.seeker().hire()
    stores.fail()
    eventually(
        lambda: older.execute(BODY).json["error"]["code"] == "WORKER_BUSY", description="a store again"
    )
    asked_within(30, lambda: older.execute(BODY))
    assert older.pay().status == 200
    assert processes.dollars(older.seeker.wallet) == RICH - PRICE


def test_without_a_replica_nothing_is_settled(place: Place, tmp_path: Path) -> None:
    """No replica has the claim: no settle call, no new 402, and the clock keeps running."""
    stores = Promoted(tmp_path / "stores")
    processes = place(stores)
    assert processes.seeker().hire().pay().status == 200
    hired = processes.seeker().hire()
    payment = hired.sign()
    stores.no_replica()
    for header in (payment, None, hired.sign(hired.seeker.hire().offer()), None):
        response = hired.execute(BODY, header, Prefer="wait=2")
        assert response.status == 202 and response.header("PAYMENT-REQUIRED") is None, response.content
    id = processes.execution_of(hired.id)
    assert id is not None
    assert processes.payment(id).state == "claimed" and processes.dollars(hired.seeker.wallet) == RICH
    processes.jump(21)
    time.sleep(3)
    assert processes.payment(id).state == "claimed" and processes.dollars(hired.seeker.wallet) == RICH
    stores.replicas_again()
    assert hired.ended(id, 40).json["status"] == "completed"
    assert processes.dollars(hired.seeker.wallet) == RICH - PRICE
    processes.check_books()


def test_settlement_waits_for_a_replica(place: Place, tmp_path: Path) -> None:
    """The claim was replicated, then no replica is left: the settle call is made once one is back."""
    stores = Promoted(tmp_path / "stores")
    processes = place(stores)
    hired = processes.seeker().hire("long", "0.03")
    body = {"do": "sleep", "seconds": 3}
    response = hired.execute(body, hired.sign(hired.offer(body)), Prefer="respond-async")
    id = response.json["task_id"]
    eventually(lambda: processes.execution(id).state == "running", description="work under way")
    stores.no_replica()
    eventually(lambda: processes.execution(id).phase == "settling", 20, "sealed work")
    time.sleep(3)
    payment = processes.payment(id)
    assert (payment.state, payment.calls) == ("verified", 0)
    assert processes.dollars(hired.seeker.wallet) == RICH
    assert hired.execute(body).status == 202
    stores.replicas_again()
    assert hired.ended(id, 40).json["status"] == "completed"
    assert processes.dollars(hired.seeker.wallet) == RICH - 30_000
    processes.check_books()
