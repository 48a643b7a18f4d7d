"""More buyers than capacity: paid work is done in time, other requests are refused before payment.

Two processes need ten seconds for each run, in the store's time, which the test moves: the result
does not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.fakes.paid_door import Deal, PaidDoor
from tests.fakes.paid_worker import SECOND
from worker.core.errors import Unavailable
from worker.core.states import Lane
from worker.engine.load import LoadMeter
from worker.engine.record import Execution
from worker.hiring.task import PaymentRequired
from worker.store.client import as_bytes

BODY = {"do": "ok"}
PROCESSES = 2
RUN_S = 10
STEP_S = 5
LATENCY_MS = 60_000


@dataclass
class Hour:
    """A period of the store's time in which buyers arrive at a steady rate."""

    door: PaidDoor
    latency_ms: int | None = LATENCY_MS
    refused: int = 0
    signed_in_vain: int = 0
    promised: dict[str, int] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)
    _busy: list[tuple[int, Execution] | None] = field(default_factory=lambda: [None] * PROCESSES)

    def now(self) -> int:
        return self.door.now()

    def buyer(self) -> None:
        """Requests an offer and pays at once, unless refused for lack of capacity."""
        sla = {} if self.latency_ms is None else {"max_latency_ms": self.latency_ms}
        deal = self.door.deal(sla=sla)
        try:
            within_ms = self._ask(deal)
            self.signed_in_vain += 1
            id = deal.execute(BODY, deal.payment()).execution.id
            self.signed_in_vain -= 1
        except Unavailable as busy:
            assert busy.charged is False and busy.retry_after
            self.refused += 1
        else:
            self.promised[id] = self.now() + within_ms * 1_000

    def _ask(self, deal: Deal) -> int:
        with pytest.raises(PaymentRequired) as asked:
            deal.execute(BODY)
        return int(asked.value.details["served_within_ms"])

    def step(self) -> None:
        """Verifications end, the clock ticks, each free process takes the next work."""
        while self.door.beside:
            self.door.step()
        self.door.tick()
        for process in range(PROCESSES):
            self._work(process)
        self.door.jump(STEP_S)
        for name in range(PROCESSES):
            self.door.parts.store.sign_on("express", f"w{name}")

    def _work(self, process: int) -> None:
        job = self._busy[process]
        if job is not None:
            until, execution = job
            if self.now() < until:
                self.door.parts.store.renew(execution.id, execution.fence, lease_us=60 * SECOND)
                return
            if self.door.seal(execution) == "settling":
                self.door.hiring.settler.settle(execution.id)
            if self.door.execution(execution.id).state == "completed":
                self.served[execution.id] = self.now()
            self._busy[process] = None
        while (id := self.door.parts.client.lpop(self.door.parts.keys.express)) is not None:
            taken = self.door.parts.store.take(
                as_bytes(id).decode(), lease_us=60 * SECOND, worker=f"w{process}", session="s"
            )
            if taken is not None:
                self._busy[process] = self.now() + RUN_S * SECOND, taken[0]
                return

    def run(self, buyers_a_step: int, steps: int) -> float:
        """Returns the goodput: completed runs as a share of the capacity."""
        began = self.now()
        for _ in range(steps):
            for _ in range(buyers_a_step):
                self.buyer()
            self.step()
        ended = self.now()
        for _ in range(40):
            self.step()
        done = sum(1 for at in self.served.values() if began <= at <= ended)
        return done / (steps * STEP_S * PROCESSES / RUN_S)

    def in_time(self) -> float:
        """The share of paid requests that were done within the latency stated in the 402."""
        good = sum(1 for id, by in self.promised.items() if self.served.get(id, by + 1) <= by)
        return good / len(self.promised)


@pytest.fixture(name="hour")
def _hour(door: PaidDoor) -> Hour:
    """A worker with known run times."""
    client = door.parts.client
    client.hset(
        door.parts.keys.stats, mapping={"mean_us echo": RUN_S * SECOND, "lane_us express": RUN_S * SECOND}
    )
    client.zrem(door.parts.keys.takers("express"), "w")
    for name in range(PROCESSES):
        door.parts.store.sign_on("express", f"w{name}")
    return Hour(door)


@pytest.mark.parametrize("latency_ms", [LATENCY_MS, None], ids=["with a latency", "without"])
@pytest.mark.parametrize("times", [2, 5])
def test_who_paid_is_served_in_time_under_overload(hour: Hour, times: int, latency_ms: int | None) -> None:
    """At two and five times capacity the goodput stays the same, all paid work is done in time, and who is
    refused was never asked for a payment."""
    hour.latency_ms = latency_ms
    goodput = hour.run(times, steps=24)
    assert goodput >= 0.8
    assert hour.in_time() >= 0.99
    assert hour.refused > 0 and hour.signed_in_vain == 0


@pytest.mark.parametrize("all_saw_it_empty", [False, True], ids=["one by one", "at once"])
def test_a_burst_is_admitted_only_as_far_as_it_can_be_done(
    hour: Hour, all_saw_it_empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty buyers who asked while the queue was empty; if all claim at once, the script counts them."""
    deals = [hour.door.deal(sla={"max_latency_ms": LATENCY_MS}) for _ in range(30)]
    payments = [(deal, deal.payment()) for deal in deals]
    with monkeypatch.context() as patched:
        if all_saw_it_empty:
            empty = hour.door.parts.conditions.load.read("echo", Lane.EXPRESS)
            patched.setattr(LoadMeter, "read", lambda *_: empty)
        for deal, payment in payments:
            try:
                id = deal.execute(BODY, payment).execution.id
            except Unavailable as busy:
                assert busy.code == "WORKER_BUSY" and busy.charged is False
                hour.refused += 1
            else:
                hour.promised[id] = hour.now() + LATENCY_MS * 1_000
    for _ in range(20):
        hour.step()
    assert hour.refused >= 10 and len(hour.promised) >= PROCESSES
    assert hour.in_time() == 1


def test_an_idle_worker_refuses_nobody(hour: Hour) -> None:
    """With an empty queue the shortest offered latency is accepted."""
    hour.latency_ms = 2_000 * RUN_S
    hour.buyer()
    assert hour.refused == 0 and len(hour.promised) == 1


@pytest.mark.soak
def test_an_hour_of_overload(hour: Hour) -> None:
    """A longer run with a varying rate."""
    for times in (1, 5, 2, 10, 1):
        assert hour.run(times, steps=48) >= 0.8
    assert hour.in_time() >= 0.99
