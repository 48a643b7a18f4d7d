"""What a hire costs the store: round trips, commands and bytes, which do not depend on the machine.

Clocks and heartbeats use the same store, so each cost is the smallest of several equal requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.fakes.paid_worker import PaidWorker
from tests.fakes.plain_buyer import PlainBuyer
from tests.fakes.seeker import DoorAnswer, FlaskDoor, Hired, Seeker
from worker.app import create_app
from worker.core.ids import new_id
from worker.payments.recheck import Rechecks

ASKS = 20
BODY = {"do": "ok"}


@dataclass(frozen=True)
class Cost:
    """`trips`: reads from clients' sockets; `commands` include those of scripts."""

    trips: int
    commands: int


def spent(paid_worker: PaidWorker) -> Cost:
    stats: Any = paid_worker.client.info("stats")
    commands: Any = paid_worker.client.info("commandstats")
    return Cost(int(stats["total_reads_processed"]), sum(int(each["calls"]) for each in commands.values()))


def least(paid_worker: PaidWorker, asks: list[Callable[[], DoorAnswer]], status: int) -> Cost:
    """The smallest cost of one of these requests, without that of looking."""
    found: list[Cost] = []
    nothing: list[Cost] = []
    for ask in asks:
        before = spent(paid_worker)
        looked = spent(paid_worker)
        answer = ask()
        after = spent(paid_worker)
        assert answer.status == status, answer.content
        nothing.append(Cost(looked.trips - before.trips, looked.commands - before.commands))
        found.append(Cost(after.trips - looked.trips, after.commands - looked.commands))
    return Cost(
        min(each.trips for each in found) - min(each.trips for each in nothing),
        min(each.commands for each in found) - min(each.commands for each in nothing),
    )


def paying(hired: list[Hired]) -> list[Callable[[], DoorAnswer]]:
    """The paid request of each contract, already signed."""
    return [partial(each.execute, None, each.sign()) for each in hired]


def buying(buyers: list[PlainBuyer], **headers: str) -> list[Callable[[], DoorAnswer]]:
    """A paid request of each buyer, already signed."""
    return [partial(each.send, BODY, each.sign(), **headers) for each in buyers]


@pytest.fixture(scope="module", name="hired")
def _hired(running_paid_worker: PaidWorker) -> list[Hired]:
    """Contracts of one seeker each, known to the web process."""
    return [running_paid_worker.seeker().hire("thrice") for _ in range(ASKS)]


def test_paid_inline_task(paid_worker: PaidWorker, hired: list[Hired]) -> None:
    """From the paid request to its answer: claim, verified, settled; take, seal.

    The lease of the settlement comes with the seal. The load was read a moment before; else the facts are
    read first.

    docs/performance.md says what each is for.
    """
    cost = least(paid_worker, paying(hired), 200)
    assert cost.trips <= 5
    assert cost.commands <= 176


def test_paid_purchase(paid_worker: PaidWorker) -> None:
    """The plain door takes the same trips: its claim tells that the payment has bought nothing yet."""
    buyers = [PlainBuyer(paid_worker.seeker(), "thrice") for _ in range(ASKS)]
    cost = least(paid_worker, buying(buyers), 200)
    assert cost.trips <= 5
    assert cost.commands <= 176


def test_paid_queued_task(paid_worker: PaidWorker) -> None:
    """Long work takes the same trips: its message is queued in the one that records its verification."""
    buyers = [PlainBuyer(paid_worker.seeker(), "long") for _ in range(ASKS)]
    assert least(paid_worker, buying(buyers, Prefer="wait=10"), 200).trips <= 6


def test_paid_task_with_one_attempt(paid_worker: PaidWorker) -> None:
    """Its lease is asked for by a process that is there, which costs a trip."""
    hired = [paid_worker.seeker().hire() for _ in range(ASKS)]
    assert least(paid_worker, paying(hired), 200).trips <= 6


def test_402_of_the_plain_door(paid_worker: PaidWorker) -> None:
    """One script reads all that decides about the request, whose input is checked."""
    buyer = PlainBuyer(paid_worker.seeker())
    buyer.ask({"do": "ok"})
    assert least(paid_worker, [lambda: buyer.ask({"do": "ok"})] * ASKS, 402).trips <= 1


def test_402_of_a_known_contract(paid_worker: PaidWorker) -> None:
    """One script reads all that decides about the request."""
    hired = paid_worker.seeker().hire()
    hired.offer()
    cost = least(paid_worker, [hired.execute] * ASKS, 402)
    assert cost.trips <= 1
    assert cost.commands <= 16


def test_402_of_a_contract_that_another_process_registered(paid_worker: PaidWorker) -> None:
    """The contract is read first, then all that decides about the request."""
    other = FlaskDoor(create_app(paid_worker.settings))
    contracts = [paid_worker.seeker().hire() for _ in range(6)]
    here = [Hired(Seeker(other, each.seeker.key, paid_worker.now), each.document) for each in contracts]
    assert here.pop().execute().status == 402
    assert least(paid_worker, [each.execute for each in here], 402).trips <= 2


def test_replay(paid_worker: PaidWorker) -> None:
    """A finished task that this process has answered before costs one round trip.

    The store is asked for its contract, its end and its payment.
    """
    hired = paid_worker.seeker().hire()
    assert hired.pay().status == 200
    cost = least(paid_worker, [hired.execute] * ASKS, 200)
    assert cost == Cost(1, 3)


def test_poll_of_a_finished_task(paid_worker: PaidWorker) -> None:
    """The same trip as a replay, in a process that has answered for the task before."""
    hired = paid_worker.seeker().hire()
    id = hired.pay().json["task_id"]
    assert hired.execute().status == 200
    assert least(paid_worker, [lambda: hired.poll(id)] * ASKS, 200) == Cost(1, 3)


def test_front_of_the_queues(paid_worker: PaidWorker) -> None:
    """Each second the clock looks at payments of what waits, in two trips however much that is."""
    queues = [f"{paid_worker.parts.keys.prefix}:front-{number}" for number in range(2)]
    for queue in queues:
        paid_worker.client.rpush(queue, *(new_id() for _ in range(20)))
    rechecks = Rechecks(paid_worker.client, paid_worker.parts.keys, queues=queues)
    rechecks.begin()
    costs = []
    for _ in range(ASKS):
        before = spent(paid_worker)
        assert rechecks.begin() == []
        costs.append(spent(paid_worker).trips - before.trips)
    paid_worker.client.delete(*queues)
    # Looking takes two itself.
    assert min(costs) <= 2 + 2


def test_bytes_of_a_finished_hire(paid_worker: PaidWorker) -> None:
    """What the store holds of a finished hire while it is kept, without the contract's document.

    A third of it are its entries in indexes, which take less while a store has few hires.
    """
    assert min(grown(paid_worker) for _ in range(4)) <= 4_400


def grown(paid_worker: PaidWorker) -> int:
    """Bytes that one more hire takes."""
    hired = paid_worker.seeker().hire()
    before = held(paid_worker)
    assert hired.pay().status == 200
    return sum(max(0, size - before.get(name, 0)) for name, size in held(paid_worker).items())


def held(paid_worker: PaidWorker) -> dict[str, int]:
    """Bytes by key."""
    client: Any = paid_worker.client
    return {
        name.decode(): int(client.memory_usage(name, samples=0) or 0)
        for name in client.scan_iter(f"{paid_worker.parts.keys.prefix}:*")
    }
