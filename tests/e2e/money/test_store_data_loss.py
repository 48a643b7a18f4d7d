"""The store loses writes during settle calls, under load: each contract is charged once.

The seekers here are the worst case: they drop every payment whose response was not clear, and sign
another one whenever they are asked to.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis
import requests

from tests.fakes.forgetful import KINDS, Stores
from tests.fakes.seeker import DoorAnswer, Hired
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually

PRICE, RICH = 10_000, 1_000_000
BODY = {"do": "ok"}
# The shortest window for work of 20 s plus 60 s to settle; contracts are held for two windows plus 60 s.
WINDOW_S, HELD_S = 150, 2 * 150 + 60
FEW, MANY = 2, 20


class InsistentSeeker(threading.Thread):
    """Hires, and pays whenever it gets a 402, until it has its result."""

    def __init__(self, hired: Hired) -> None:
        super().__init__(daemon=True)
        self.hired = hired
        self.answers: Counter[str] = Counter()
        self.result: DoorAnswer | None = None
        self.last = b""
        self._ended = threading.Event()

    def run(self) -> None:
        payment: str | None = None
        while self.result is None and not self._ended.wait(0.05):
            response = tried(lambda header=payment: self.hired.execute(BODY, header, Prefer="wait=1"))  # type: ignore[misc]
            payment = None
            self.last = response.content if response else b""
            self.answers[str(response.status) if response else "none"] += 1
            if response is not None and response.status == 402:
                with contextlib.suppress(redis.RedisError):  # the seeker's clock is the store's
                    payment = self.hired.sign(response.payment_required)
                    self.answers["signed"] += 1
            elif response is not None and response.status == 404:
                # The store lost the contract too.
                tried(lambda: self.hired.seeker.door("PUT", "/contracts", self.hired.document))
            elif response is not None and ended(response):
                self.result = response

    def end(self) -> None:
        self._ended.set()
        self.join(60)


def ended(answer: DoorAnswer) -> bool:
    """Whether this response is final: the result, or failed work.

    Time moves faster here than leases are renewed, so running work may time out or lose its worker on
    every allowed attempt; it then costs nothing.
    """
    with contextlib.suppress(ValueError):
        body = json.loads(answer.content)
        return isinstance(body, dict) and {"task_id", "expires_at"} <= body.keys()  # both only when final
    return False


def tried(call: Callable[[], DoorAnswer]) -> DoorAnswer | None:
    with contextlib.suppress(requests.RequestException, AssertionError):
        return call()
    return None


class Load(threading.Thread):
    """Hires one contract after another, each with a new wallet, until stopped."""

    def __init__(self, processes: WorkerProcesses) -> None:
        super().__init__(daemon=True)
        self._processes = processes
        self._ended = threading.Event()
        self.hires: list[InsistentSeeker] = []

    def run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(requests.RequestException, AssertionError, KeyError, ValueError):
                each = InsistentSeeker(self._processes.seeker(RICH).hire())
                self.hires.append(each)
                each.start()
                while each.is_alive() and not self._ended.is_set():
                    each.join(0.2)

    def end(self) -> None:
        self._ended.set()
        self.join(60)


@pytest.fixture(scope="module", name="place", params=list(KINDS))
def _place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkerProcesses, Stores]]:
    home = tmp_path_factory.mktemp("worker")
    stores: Stores = KINDS[request.param](home / "stores")
    processes = WorkerProcesses(home, store=stores, MAX_PAYMENT_WINDOW=str(WINDOW_S))
    try:
        yield processes.open(), stores
    finally:
        processes.close()


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=[] if n < FEW else pytest.mark.soak) for n in range(MANY)],
)
def test_store_losing_writes_during_settle_charges_once(
    place: tuple[WorkerProcesses, Stores], number: int
) -> None:
    """The latest claims and settlements are lost; every wallet pays for its contract once."""
    processes, stores = place
    loads = [Load(processes) for _ in range(3)]
    for load in loads:
        load.start()
    eventually(lambda: all(any(each.result for each in load.hires) for load in loads), 30, "load")
    targets = [InsistentSeeker(processes.seeker(RICH).hire()) for _ in range(3)]
    stores.fall_behind()
    with processes.block_time(1.5):
        for each in targets:
            each.start()
        eventually(lambda: any(calls(processes, each) for each in targets), 30, "a settle call under way")
        stores.fail()
        time.sleep(4)
    for load in loads:
        load.end()
    hires = [*targets, *(each for load in loads for each in load.hires)]
    stores.mend()
    # Contracts that were neither paid nor lost may continue once no authorization can land any more.
    processes.jump(HELD_S + WINDOW_S)
    done = time.monotonic() + 60
    while any(each.is_alive() for each in hires) and time.monotonic() < done:
        processes.jump(5)
        time.sleep(1)
    for each in hires:
        each.end()
    paid = {each: RICH - processes.dollars(each.hired.seeker.wallet) for each in hires}
    charges = [(each.answers, amount) for each, amount in paid.items()]
    assert set(paid.values()) <= {0, PRICE}, charges
    open_still = [each for each in hires if each.result is None]
    charged = [each.hired.id for each in open_still if paid[each]]
    assert not charged, f"charged, and without a result: {charged}"
    assert not open_still, [
        (each.hired.id, each.answers, each.last, paid[each], failures(processes, each)) for each in open_still
    ]
    for each in hires:
        assert paid[each] in allowed(processes, each), (each.hired.id, each.answers, each.last, charges)
    print(f"run {number}: {len(hires)} contracts, {len(targets)} in mid-settle, all charged once")


def allowed(processes: WorkerProcesses, each: InsistentSeeker) -> set[int]:
    """What its wallet may have lost: the price for a result, unless all it sent came back; else nothing.

    Who had its result before the store forgot it may be refunded too: the work ran again, and failed.
    """
    assert each.result is not None
    if each.result.status != 200:
        return {0}
    wallet = each.hired.seeker.wallet
    sent = processes.rpc.transferred(wallet, processes.wallet)
    refunded = sent > 0 and processes.rpc.transferred(processes.wallet, wallet) == sent
    return {0, PRICE} if refunded else {PRICE}


def failures(processes: WorkerProcesses, each: InsistentSeeker) -> list[tuple[str, str]]:
    """State and code of its payments."""
    id = processes.execution_of(each.hired.id)
    found = processes.parts.ledger.read(id) if id else None
    return [(payment.state, payment.code) for payment in found.money.payments] if found else []


def calls(processes: WorkerProcesses, each: InsistentSeeker) -> int:
    with contextlib.suppress(Exception):
        id = processes.execution_of(each.hired.id)
        return processes.payment(id).calls if id else 0
    return 0
