"""Admission of swarm tasks, decided by a script on a real store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis

from tests.waiting import eventually
from worker.core.errors import Problem
from worker.core.ids import new_id
from worker.core.states import Lane
from worker.engine.creation import NewExecution
from worker.engine.load import LoadMeter
from worker.engine.transitions import ExecutionStore
from worker.payments.money_store import HOOKS
from worker.store.data_model import Keys
from worker.swarm.admission import (
    DOOR,
    Admission,
    AdmissionRequest,
    AdmittedExecution,
    DailyLimitReached,
    NoPlaceFree,
    StillWaiting,
    TaskExpired,
)
from worker.swarm.kernels import Kernel

ALPHA = Kernel("alpha", 1000, 100)
BETA = Kernel("beta kernel", 1000, 50)


class AdmissionSetup:
    """A store with processes that only report their presence."""

    def __init__(self, client: redis.Redis) -> None:
        self.store = ExecutionStore(client, hooks=HOOKS, test_clock=True)
        self.places = Admission(self.store, LoadMeter(self.store), patience=0.1)
        self.tick()

    def tick(self) -> None:
        self.store.due(tree="t", retention_us=10**15)

    def processes(self, count: int, lane: str = "express") -> None:
        for number in range(count):
            self.store.sign_on(lane, f"p{number}")

    def take(
        self, key: str, kernel: Kernel = ALPHA, *, hold: float = 10, **changes: object
    ) -> AdmittedExecution:
        request = AdmissionRequest(kernel, Lane.EXPRESS, "s", key, agent="a")
        until = time.monotonic() + hold
        return self.places.take(replace(request, **changes), until=until)  # type: ignore[arg-type]

    def patience(self, seconds: float) -> None:
        """How long a kernel waits."""
        self.places = Admission(self.store, LoadMeter(self.store), patience=seconds)

    def usual(self, seconds: float) -> None:
        """How long the agent's work has taken so far."""
        self.store.client.hset(self.store.keys.stats, "mean_us a", int(seconds * 1e6))

    def make(self, taken: AdmittedExecution, key: str, door: str = DOOR, *, popped: bool = True) -> str:
        """Creates the execution admitted to a place, as taken from the lane by its process."""
        new = NewExecution(
            id=taken.id,
            agent="a",
            door=door,
            lane=Lane.EXPRESS,
            input=b"{}",
            labels={},
            timeout_us=10**9,
            run_limit_us=10**9,
            scope="s",
            key=key,
        )
        _, id = self.store.create(new)
        if popped:
            self.store.client.lrem(self.store.keys.express, 0, id)
        return id

    def other(self, *, running: bool) -> str:
        """Another door's work in the same lane."""
        id = self.make(AdmittedExecution(new_id(), False), "", door="hire", popped=running)
        if running:
            assert self.store.take(id, lease_us=10**9, worker="p", session="s")
        return id

    def end(self, id: str) -> None:
        self.store.cancel(id, b"{}", by="operator")

    def move_time(self, microseconds: int) -> None:
        self.store.client.set(Keys().test_clock, microseconds)
        self.tick()

    def client_waits(self) -> int:
        """How many requests were told to wait."""
        return len(self.store.client.keys(f"{self.store.keys.prefix}:swarm:waits:*"))

    def held(self) -> int:
        return int(self.store.client.zcard(self.store.keys.swarm_places("express")))


@pytest.fixture(name="setup")
def _setup(client: redis.Redis) -> AdmissionSetup:
    return AdmissionSetup(client)


def refused(call: Callable[[], object]) -> Problem:
    with pytest.raises(Problem) as caught:
        call()
    return caught.value


def test_one_process_stays_free(setup: AdmissionSetup) -> None:
    """Of three processes the swarm gets two, and one again after one is released."""
    setup.processes(3)
    first, second = setup.take("1"), setup.take("2")
    assert not first.known and first.id != second.id
    busy = refused(lambda: setup.take("3"))
    assert isinstance(busy, NoPlaceFree) and busy.status == 503 and busy.retry_after
    setup.places.release(Lane.EXPRESS, first.id, ALPHA.name)
    setup.take("3")
    assert setup.held() == 2


def test_running_work_of_others_counts(setup: AdmissionSetup) -> None:
    """The last free process is kept, whoever holds the others; once another is freed, the swarm gets one."""
    setup.processes(2)
    paid = setup.other(running=True)
    assert isinstance(refused(lambda: setup.take("1")), NoPlaceFree)
    setup.end(paid)
    assert not setup.take("1").known


def test_waiting_work_of_others_goes_first(setup: AdmissionSetup) -> None:
    """While other work waits in the lane, the swarm gets no place."""
    setup.processes(4)
    paid = setup.other(running=False)
    assert isinstance(refused(lambda: setup.take("1")), NoPlaceFree)
    setup.store.client.lrem(setup.store.keys.express, 0, paid)
    setup.take("1")


def test_settling_execution_uses_no_process(setup: AdmissionSetup) -> None:
    """Sealed work that waits for its settlement does not block the swarm."""
    setup.processes(2)
    paid = setup.other(running=True)
    setup.store.client.hset(setup.store.keys.record(paid), "phase", "settling")
    setup.take("1")


def test_single_process_is_used_while_idle(setup: AdmissionSetup) -> None:
    """With one process the swarm has one place, and none while other work runs."""
    setup.processes(1)
    first = setup.take("1")
    assert isinstance(refused(lambda: setup.take("2")), NoPlaceFree)
    setup.places.release(Lane.EXPRESS, first.id, ALPHA.name)
    paid = setup.other(running=True)
    assert isinstance(refused(lambda: setup.take("2")), NoPlaceFree)
    setup.end(paid)
    setup.take("2")


def test_kernels_share_the_processes(setup: AdmissionSetup) -> None:
    """Half of four places are two; another kernel still gets one, and its name may contain a space."""
    setup.processes(5)
    setup.take("1", BETA)
    setup.take("2", BETA)
    assert isinstance(refused(lambda: setup.take("3", BETA)), NoPlaceFree)
    setup.take("4")
    setup.take("5")
    assert setup.held() == 4


def test_every_kernel_gets_at_least_one_process(setup: AdmissionSetup) -> None:
    """A share below one place counts as one."""
    setup.processes(2)
    setup.take("1", Kernel("small", 10, 1))


def test_repeated_request_takes_nothing_more(setup: AdmissionSetup) -> None:
    """Twenty concurrent copies get one id, one place and one count of the daily limit."""
    setup.processes(2)
    day = Kernel("alpha", 1, 100)
    with ThreadPoolExecutor(20) as pool:
        taken = list(pool.map(lambda _: setup.take("same", day), range(20)))
    assert len({each.id for each in taken}) == 1
    assert setup.held() == 1
    id = setup.make(taken[0], "same")
    assert setup.take("same", day) == AdmittedExecution(id, True)
    assert setup.places.known("s", "same") == id
    assert setup.places.known("other", "same") is None


def test_existing_record_answers_before_any_limit(setup: AdmissionSetup) -> None:
    """A known task is answered without processes, clock, time or memory."""
    setup.processes(1)
    id = setup.make(setup.take("1"), "1")
    setup.store.client.delete(setup.store.keys.takers("express"), setup.store.keys.ticks)
    assert setup.take("1", Kernel("alpha", 1, 1), expires_us=1) == AdmittedExecution(id, True)


def test_daily_limit_resets(setup: AdmissionSetup) -> None:
    """A limit of executions per UTC day, per kernel; the next day starts at zero."""
    setup.processes(9)
    two = Kernel("alpha", 2, 100)
    setup.take("1", two)
    setup.take("2", two)
    spent = refused(lambda: setup.take("3", two))
    assert isinstance(spent, DailyLimitReached) and spent.status == 503
    assert spent.retry_after is not None and 0 < spent.retry_after <= 86_400
    setup.take("4", BETA)
    setup.take("5", two, counted=False)
    setup.move_time(spent.retry_after * 1_000_000)
    setup.processes(9)
    setup.take("3", two)


def test_expired_task_is_not_started(setup: AdmissionSetup) -> None:
    """By the store's clock, to the microsecond."""
    setup.processes(2)
    now = setup.store.now()
    expired = refused(lambda: setup.take("1", expires_us=now))
    assert isinstance(expired, TaskExpired) and expired.status == 422
    assert setup.held() == 0
    assert setup.take("1", expires_us=now + 60_000_000).at >= now


def test_overload_without_work_processes(setup: AdmissionSetup) -> None:
    """Without processes, or without clock ticks, a kernel is told to retry."""
    assert isinstance(refused(lambda: setup.take("1")), NoPlaceFree)
    setup.processes(2)
    setup.store.client.set(Keys().test_clock, 60_000_000)
    setup.processes(2)
    assert isinstance(refused(lambda: setup.take("1")), NoPlaceFree)
    setup.tick()
    setup.take("1")


def test_remote_agents_need_no_local_process(setup: AdmissionSetup) -> None:
    """A remote agent's work uses no local process."""
    for number in range(5):
        setup.take(str(number), lane=Lane.REMOTE)


def test_place_of_ended_work_is_reclaimed(setup: AdmissionSetup) -> None:
    """The place was not released; the next request that lacks a place frees it."""
    setup.processes(2)
    id = setup.make(setup.take("1"), "1")
    assert isinstance(refused(lambda: setup.take("2")), NoPlaceFree)
    setup.end(id)
    setup.take("2")
    assert setup.held() == 1


def test_place_without_a_record_is_kept_for_a_minute(setup: AdmissionSetup) -> None:
    """The admitted process may still be writing the record; later the place counts as lost."""
    setup.processes(2)
    setup.take("lost")
    assert isinstance(refused(lambda: setup.take("2")), NoPlaceFree)
    setup.move_time(61_000_000)
    setup.processes(2)
    setup.take("2")
    assert setup.held() == 1


def test_request_waits_for_a_place(setup: AdmissionSetup) -> None:
    """A place released in the same process is taken immediately, oldest request first."""
    setup.processes(2)
    setup.patience(150)
    setup.usual(0.1)
    first = setup.take("0")
    order: list[int] = []

    def one(number: int) -> None:
        taken = setup.take(str(number))
        order.append(number)
        setup.make(taken, str(number))
        setup.end(taken.id)
        setup.places.release(Lane.EXPRESS, taken.id, ALPHA.name)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(1, 9)]
    for waiting, thread in enumerate(threads, 1):
        thread.start()
        eventually(lambda n=waiting: setup.client_waits() == n)
    assert order == []
    setup.places.release(Lane.EXPRESS, first.id, ALPHA.name)
    for thread in threads:
        thread.join(30)
    assert order == list(range(1, 9))
    assert setup.held() == 0


def test_unservable_task_is_refused_at_once(setup: AdmissionSetup) -> None:
    """The task's work must fit behind the waiting ones; the task's expiry is a limit as well."""
    setup.processes(2)
    setup.patience(150)
    setup.usual(100)
    first = setup.take("0")
    now = setup.store.now()
    began = time.monotonic()
    assert isinstance(refused(lambda: setup.take("soon", expires_us=now + 99_000_000)), NoPlaceFree)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(setup.take, "1")
        eventually(lambda: setup.client_waits() == 2)
        assert isinstance(refused(lambda: setup.take("2")), NoPlaceFree)
        assert time.monotonic() - began < 5
        setup.places.release(Lane.EXPRESS, first.id, ALPHA.name)
        assert waits.result(10).id != first.id


def test_repeated_request_keeps_its_queue_position(setup: AdmissionSetup) -> None:
    """A request is held for a while and the next one keeps its position; in the end it is too late."""
    setup.processes(2)
    setup.patience(1.5)
    setup.usual(0.1)
    setup.take("0")
    began = time.monotonic()
    assert isinstance(refused(lambda: setup.take("1", hold=0.5)), StillWaiting)
    assert isinstance(refused(lambda: setup.take("1", hold=0.5)), StillWaiting)
    assert isinstance(refused(lambda: setup.take("1", hold=20)), NoPlaceFree)
    assert 1.2 < time.monotonic() - began < 10


def test_resubmitted_task_joins_its_open_execution(setup: AdmissionSetup) -> None:
    """Whether its record exists or is being created; once that has ended the task may run again."""
    setup.processes(9)
    setup.patience(150)
    first = setup.take("1", task="t")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(setup.take, "2", task="t")
        time.sleep(0.3)
        assert not second.done()
        id = setup.make(first, "1")
        assert second.result(10) == AdmittedExecution(id, True)
    assert setup.take("3", task="t") == AdmittedExecution(id, True)
    assert not setup.take("4", task="other").known
    setup.end(id)
    again = setup.take("5", task="t")
    assert not again.known and again.id != id
    assert setup.take("2", task="t") == AdmittedExecution(id, True)
    assert setup.take("1", task="t") == AdmittedExecution(id, True)


def test_task_whose_first_execution_was_not_created_runs_again(setup: AdmissionSetup) -> None:
    """The admission of a lost process blocks the task no longer than a place."""
    setup.processes(9)
    first = setup.take("1", task="t")
    key = setup.store.keys.swarm_task("s", "t")
    left = setup.store.client.pttl(key)
    assert left > 0
    setup.store.client.pexpire(key, left - 61_000)
    assert setup.take("2", task="t").id != first.id


def test_full_store_refuses_new_tasks(setup: AdmissionSetup, client: redis.Redis) -> None:
    """Above three quarters of memory only outcomes are written: nothing new begins."""
    setup.processes(2)
    used = int(client.info("memory")["used_memory"])  # type: ignore[index]
    client.config_set("maxmemory", used + used // 10)
    try:
        assert isinstance(refused(lambda: setup.take("1")), NoPlaceFree)
    finally:
        client.config_set("maxmemory", 0)
