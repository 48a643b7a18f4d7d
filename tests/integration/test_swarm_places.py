"""Room for the swarm's work, decided by a script on a real store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis

from worker.errors import Problem
from worker.executions.keys import Keys
from worker.executions.load import LoadMeter
from worker.executions.states import Lane
from worker.executions.store import ExecutionStore, New
from worker.ids import new_id
from worker.swarm.kernels import Kernel
from worker.swarm.places import DOOR, Busy, DayUsedUp, Expired, Places, Request, Taken

ALPHA = Kernel("alpha", 1000, 100)
BETA = Kernel("beta kernel", 1000, 50)


class Room:
    """A store with processes that only say that they are there."""

    def __init__(self, client: redis.Redis) -> None:
        self.store = ExecutionStore(client, test_clock=True)
        self.places = Places(self.store, LoadMeter(self.store), patience=0.1)
        self.tick()

    def tick(self) -> None:
        self.store.due(tree="t", queued_age_us=10**12, retention_us=10**15)

    def processes(self, count: int, lane: str = "express") -> None:
        for number in range(count):
            self.store.sign_on(lane, f"p{number}")

    def take(self, key: str, kernel: Kernel = ALPHA, **changes: object) -> Taken:
        request = Request(kernel, Lane.EXPRESS, "s", key)
        return self.places.take(replace(request, **changes))  # type: ignore[arg-type]

    def make(self, taken: Taken, key: str, door: str = DOOR, *, popped: bool = True) -> str:
        """The execution that a place is for, as its process takes it from the line."""
        new = New(
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
        """Work of another door in the same lane."""
        id = self.make(Taken(new_id(), False), "", door="hire", popped=running)
        if running:
            assert self.store.take(id, lease_us=10**9, worker="p", session="s")
        return id

    def end(self, id: str) -> None:
        self.store.cancel(id, b"{}", by="operator")

    def move_time(self, microseconds: int) -> None:
        self.store.client.set(Keys().test_clock, microseconds)
        self.tick()

    def held(self) -> int:
        return int(self.store.client.zcard(self.store.keys.swarm("places", "express")))


@pytest.fixture(name="room")
def _room(client: redis.Redis) -> Room:
    return Room(client)


def refused(call: Callable[[], object]) -> Problem:
    with pytest.raises(Problem) as caught:
        call()
    return caught.value


def test_one_process_of_the_lane_stays_free(room: Room) -> None:
    """Of three processes the swarm gets two, and gets one again when one is given back."""
    room.processes(3)
    first, second = room.take("1"), room.take("2")
    assert not first.known and first.id != second.id
    busy = refused(lambda: room.take("3"))
    assert isinstance(busy, Busy) and busy.status == 503 and busy.retry_after
    room.places.release(Lane.EXPRESS, first.id, ALPHA.name)
    room.take("3")
    assert room.held() == 2


def test_running_work_of_others_counts(room: Room) -> None:
    """The last free process is not taken, whoever holds the others; afterwards it is free again."""
    room.processes(2)
    paid = room.other(running=True)
    assert isinstance(refused(lambda: room.take("1")), Busy)
    room.end(paid)
    assert not room.take("1").known


def test_waiting_work_of_others_goes_first(room: Room) -> None:
    """While anybody else waits in the lane, the swarm gets nothing."""
    room.processes(4)
    paid = room.other(running=False)
    assert isinstance(refused(lambda: room.take("1")), Busy)
    room.store.client.lrem(room.store.keys.express, 0, paid)
    room.take("1")


def test_a_settling_execution_holds_no_process(room: Room) -> None:
    """Sealed work that waits for its money does not keep the swarm out."""
    room.processes(2)
    paid = room.other(running=True)
    room.store.client.hset(room.store.keys.record(paid), "phase", "settling")
    room.take("1")


def test_an_only_process_is_used_while_it_is_idle(room: Room) -> None:
    """With one process the swarm has one place, and none while somebody else's work runs."""
    room.processes(1)
    first = room.take("1")
    assert isinstance(refused(lambda: room.take("2")), Busy)
    room.places.release(Lane.EXPRESS, first.id, ALPHA.name)
    paid = room.other(running=True)
    assert isinstance(refused(lambda: room.take("2")), Busy)
    room.end(paid)
    room.take("2")


def test_a_kernel_gets_its_share(room: Room) -> None:
    """Half of four places are two; another kernel still finds room, and its name may hold a blank."""
    room.processes(5)
    room.take("1", BETA)
    room.take("2", BETA)
    assert isinstance(refused(lambda: room.take("3", BETA)), Busy)
    room.take("4")
    room.take("5")
    assert room.held() == 4


def test_everybody_has_at_least_one_place(room: Room) -> None:
    """A share that comes to less than a place is a place."""
    room.processes(2)
    room.take("1", Kernel("small", 10, 1))


def test_a_repeated_request_takes_nothing_more(room: Room) -> None:
    """Twenty copies at once get one id, one place and one of the day's executions."""
    room.processes(2)
    day = Kernel("alpha", 1, 100)
    with ThreadPoolExecutor(20) as pool:
        taken = list(pool.map(lambda _: room.take("same", day), range(20)))
    assert len({each.id for each in taken}) == 1
    assert room.held() == 1
    id = room.make(taken[0], "same")
    assert room.take("same", day) == Taken(id, True)
    assert room.places.known("s", "same") == id
    assert room.places.known("other", "same") is None


def test_a_record_answers_before_every_limit(room: Room) -> None:
    """What is known is known without processes, a clock, time or room."""
    room.processes(1)
    id = room.make(room.take("1"), "1")
    room.store.client.delete(room.store.keys.takers("express"), room.store.keys.ticks)
    assert room.take("1", Kernel("alpha", 1, 1), expires_us=1) == Taken(id, True)


def test_a_day_has_an_end(room: Room) -> None:
    """So many executions a UTC day, each kernel for itself; the next day begins at nothing."""
    room.processes(9)
    two = Kernel("alpha", 2, 100)
    room.take("1", two)
    room.take("2", two)
    spent = refused(lambda: room.take("3", two))
    assert isinstance(spent, DayUsedUp) and spent.status == 503
    assert spent.retry_after is not None and 0 < spent.retry_after <= 86_400
    room.take("4", BETA)
    room.take("5", two, counted=False)
    room.move_time(spent.retry_after * 1_000_000)
    room.processes(9)
    room.take("3", two)


def test_an_expired_task_is_not_begun(room: Room) -> None:
    """By the store's clock: one microsecond decides."""
    room.processes(2)
    now = room.store.now()
    expired = refused(lambda: room.take("1", expires_us=now))
    assert isinstance(expired, Expired) and expired.status == 422
    assert room.held() == 0
    assert room.take("1", expires_us=now + 60_000_000).at >= now


def test_nobody_to_run_it_is_overload(room: Room) -> None:
    """Without processes, or when no clock ticks, a kernel is told to try again."""
    assert isinstance(refused(lambda: room.take("1")), Busy)
    room.processes(2)
    room.store.client.set(Keys().test_clock, 60_000_000)
    room.processes(2)
    assert isinstance(refused(lambda: room.take("1")), Busy)
    room.tick()
    room.take("1")


def test_agents_elsewhere_need_no_process_here(room: Room) -> None:
    """A remote agent's work takes no place of ours."""
    for number in range(5):
        room.take(str(number), lane=Lane.REMOTE)


def test_a_place_whose_work_ended_unseen_is_found(room: Room) -> None:
    """Nobody gave it back; the next request that misses it frees it."""
    room.processes(2)
    id = room.make(room.take("1"), "1")
    assert isinstance(refused(lambda: room.take("2")), Busy)
    room.end(id)
    room.take("2")
    assert room.held() == 1


def test_a_place_without_a_record_is_kept_for_a_minute(room: Room) -> None:
    """Whoever was admitted may still be writing the record; later it counts as lost."""
    room.processes(2)
    room.take("lost")
    assert isinstance(refused(lambda: room.take("2")), Busy)
    room.move_time(61_000_000)
    room.processes(2)
    room.take("2")
    assert room.held() == 1


def test_a_request_waits_for_a_place(room: Room) -> None:
    """A place that is given back in the same process is taken at once, and by everybody in turn."""
    room.processes(2)
    room.places = Places(room.store, LoadMeter(room.store), patience=10)
    first = room.take("0")
    order: list[str] = []

    def one(number: int) -> None:
        taken = room.take(str(number))
        order.append(taken.id)
        room.make(taken, str(number))
        room.end(taken.id)
        room.places.release(Lane.EXPRESS, taken.id, ALPHA.name)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    assert order == []
    room.places.release(Lane.EXPRESS, first.id, ALPHA.name)
    for thread in threads:
        thread.join(10)
    assert len(set(order)) == 8
    assert room.held() == 0


def test_a_full_store_takes_nothing_new(room: Room, client: redis.Redis) -> None:
    """Above three quarters of its memory outcomes must still be written: nothing begins."""
    room.processes(2)
    used = int(client.info("memory")["used_memory"])  # type: ignore[index]
    client.config_set("maxmemory", used + used // 10)
    try:
        assert isinstance(refused(lambda: room.take("1")), Busy)
    finally:
        client.config_set("maxmemory", 0)
