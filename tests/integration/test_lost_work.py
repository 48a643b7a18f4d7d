"""The clock finds work missing from all queues, however much other work is waiting."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from worker.core.ids import new_id
from worker.core.states import Lane
from worker.engine.creation import NewExecution
from worker.engine.transitions import ExecutionStore
from worker.files.store import Files, files_from
from worker.payments.money_store import HOOKS
from worker.queue.clock import Clock
from worker.queue.rq import RunQueue

INTERMEDIATE = "rq:queue:work:intermediate"


class QueueSetup:
    """A store, its queue and a clock that the test moves."""

    def __init__(self, client: redis.Redis, files: Files) -> None:
        self.client = client
        self.store = ExecutionStore(client, hooks=HOOKS)
        self.queue = RunQueue(client)
        self.clock = Clock(self.store, self.queue, files=files, tree="test", retention_us=10**15)

    def create(self, lane: Lane) -> str:
        new = NewExecution(
            id=new_id(),
            agent="a",
            door="test",
            lane=lane,
            input=b"{}",
            labels={},
            timeout_us=3600_000_000,
            run_limit_us=600_000_000,
        )
        _, id = self.store.create(new)
        return id

    def look(self, times: int = 1) -> None:
        """Runs the ticks in which the clock looks for lost work."""
        for _ in range(4 * times):
            self.clock.tick()

    def backlog(self, many: int) -> list[str]:
        """Long work waiting in its queue."""
        ids = [self.create(Lane.QUEUE) for _ in range(many)]
        self.client.rpush("rq:queue:work", *ids)
        return ids

    def waiting(self, key: str) -> list[str]:
        return [id.decode() for id in self.client.lrange(key, 0, -1)]


@pytest.fixture(name="engine")
def _engine(client: redis.Redis, tmp_path: Path) -> QueueSetup:
    return QueueSetup(client, files_from(str(tmp_path)))


def test_lost_work_is_found_behind_a_long_queue(engine: QueueSetup) -> None:
    """Express and queued work that was popped and lost is found behind hundreds of waiting entries."""
    waiting = engine.backlog(300)
    express, queued = engine.create(Lane.EXPRESS), engine.create(Lane.QUEUE)
    assert engine.client.lpop("w:express") == express.encode()
    time.sleep(1.1)
    engine.look(times=2)
    assert engine.waiting("w:express") == [express]
    assert engine.waiting("rq:queue:work") == [*waiting, queued]


def test_lost_work_is_found_soon_in_a_queue_of_thousands(engine: QueueSetup) -> None:
    """Fewer messages than queued records: all are compared, and only lost ones are resent."""
    ids = [new_id() for _ in range(20_000)]
    engine.client.rpush("rq:queue:work", *ids)
    engine.client.zadd(engine.store.keys.queued, {id: at + 1 for at, id in enumerate(ids)})
    lost = engine.create(Lane.QUEUE)
    time.sleep(1.1)
    engine.look(times=4)
    assert engine.waiting("rq:queue:work") == [*ids, lost]


def test_lost_message_is_resent_once(engine: QueueSetup) -> None:
    """An id popped into RQ's intermediate list is resent once, and not while it waits."""
    engine.backlog(400)
    stranded = engine.create(Lane.QUEUE)
    engine.client.rpush(INTERMEDIATE, stranded)
    time.sleep(1.1)
    engine.look(times=3)
    assert engine.waiting("rq:queue:work").count(stranded) == 1


def test_message_just_taken_is_not_lost(engine: QueueSetup) -> None:
    """The milliseconds between taking a message and taking the lease do not make it lost."""
    fresh = engine.create(Lane.QUEUE)
    engine.client.rpush(INTERMEDIATE, fresh)
    engine.look()
    assert engine.waiting("rq:queue:work") == []
    assert engine.waiting(INTERMEDIATE) == [fresh]


def test_stale_rq_intermediate_entries_are_removed(engine: QueueSetup) -> None:
    """Entries of taken or unknown work are removed from RQ's intermediate list."""
    running, unknown = engine.create(Lane.QUEUE), new_id()
    engine.queue.push(running)
    engine.client.lmove("rq:queue:work", INTERMEDIATE, "LEFT", "RIGHT")
    engine.client.rpush(INTERMEDIATE, unknown)
    assert engine.store.take(running, lease_us=5_000_000, worker="w", session="s") is not None
    engine.look()
    assert not engine.client.exists(INTERMEDIATE)
    assert not engine.client.keys("rq:job:*")


def test_check_does_not_restore_taken_work(engine: QueueSetup) -> None:
    """An id that left the queue between the check and its mark is not restored by the mark."""
    id = engine.create(Lane.QUEUE)
    assert engine.store.take(id, lease_us=5_000_000, worker="w", session="s") is not None
    engine.store.looked_at([id], 1)
    assert engine.client.zscore("w:queued", id) is None


def test_failed_enqueue_is_repeated_by_the_clock(engine: QueueSetup) -> None:
    """A store that refuses the message does not fail the caller; the clock sends it later."""
    dead = RunQueue(redis.Redis(port=9, socket_connect_timeout=0.2))
    id = engine.create(Lane.QUEUE)
    dead.push(id)
    time.sleep(1.1)
    engine.look()
    assert engine.waiting("rq:queue:work") == [id]


def test_search_for_lost_work_costs_the_same_however_long_the_queue_is(engine: QueueSetup) -> None:
    """A round reads a bounded number of queue entries, and the next rounds continue after them."""
    passed = {}
    for length in (1_000, 10_000):
        engine.client.flushall()
        ids = [new_id() for _ in range(length)]
        engine.client.rpush("rq:queue:work", *ids)
        engine.client.zadd(engine.store.keys.queued, {id: at + 1 for at, id in enumerate(ids)})
        engine.client.config_resetstat()
        engine.look(3)
        passed[length] = engine.client.info("commandstats")["cmdstat_lpos"]["calls"] * length
    assert passed[10_000] <= 3 * 100_000 and passed[10_000] <= 2 * passed[1_000]
