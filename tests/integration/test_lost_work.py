"""The clock finds work that no queue names any more, however much other work waits in front of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from worker.delivery.files import Files, files_from
from worker.executions.states import Lane
from worker.executions.store import ExecutionStore, New
from worker.ids import new_id
from worker.queue.clock import Clock
from worker.queue.rq import RunQueue

INTERMEDIATE = "rq:queue:work:intermediate"


class Engine:
    """A store, its queue and a clock that is moved by hand."""

    def __init__(self, client: redis.Redis, files: Files) -> None:
        self.client = client
        self.store = ExecutionStore(client)
        self.queue = RunQueue(client)
        self.clock = Clock(self.store, self.queue, files=files, tree="test", retention_us=10**15)

    def create(self, lane: Lane) -> str:
        new = New(
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
        """The ticks in which the clock looks for what is lost."""
        for _ in range(4 * times):
            self.clock.tick()

    def backlog(self, many: int) -> list[str]:
        """Long work that waits in its queue, as it should."""
        ids = [self.create(Lane.QUEUE) for _ in range(many)]
        self.client.rpush("rq:queue:work", *ids)
        return ids

    def waiting(self, key: str) -> list[str]:
        return [id.decode() for id in self.client.lrange(key, 0, -1)]


@pytest.fixture(name="engine")
def _engine(client: redis.Redis, tmp_path: Path) -> Engine:
    return Engine(client, files_from(str(tmp_path)))


def test_a_long_queue_hides_no_lost_work(engine: Engine) -> None:
    """Express and queued work that was popped and forgotten is found behind hundreds that only wait."""
    waiting = engine.backlog(300)
    express, queued = engine.create(Lane.EXPRESS), engine.create(Lane.QUEUE)
    assert engine.client.lpop("w:express") == express.encode()
    time.sleep(1.1)
    engine.look(times=2)
    assert engine.waiting("w:express") == [express]
    assert engine.waiting("rq:queue:work") == [*waiting, queued]


def test_work_whose_taker_died_is_found_at_the_first_look(engine: Engine) -> None:
    """RQ keeps a popped id beside the queue: it is sent again once, and not as long as it waits."""
    engine.backlog(400)
    stranded = engine.create(Lane.QUEUE)
    engine.client.rpush(INTERMEDIATE, stranded)
    time.sleep(1.1)
    engine.look(times=3)
    assert engine.waiting("rq:queue:work").count(stranded) == 1


def test_a_message_just_taken_is_left_alone(engine: Engine) -> None:
    """Between taking a message and taking the lease lie milliseconds; that is not lost."""
    fresh = engine.create(Lane.QUEUE)
    engine.client.rpush(INTERMEDIATE, fresh)
    engine.look()
    assert engine.waiting("rq:queue:work") == []
    assert engine.waiting(INTERMEDIATE) == [fresh]


def test_what_is_under_way_or_over_is_swept_out_of_rq(engine: Engine) -> None:
    """Nothing stays beside the queue of work that somebody has taken, or that nobody knows."""
    running, unknown = engine.create(Lane.QUEUE), new_id()
    engine.queue.push(running)
    engine.client.lmove("rq:queue:work", INTERMEDIATE, "LEFT", "RIGHT")
    engine.client.rpush(INTERMEDIATE, unknown)
    assert engine.store.take(running, lease_us=5_000_000, worker="w", session="s") is not None
    engine.look()
    assert not engine.client.exists(INTERMEDIATE)
    assert not engine.client.keys("rq:job:*")


def test_looking_puts_nobody_back_who_was_taken_meanwhile(engine: Engine) -> None:
    """An id that left the queue between the look and its note is not brought back by the note."""
    id = engine.create(Lane.QUEUE)
    assert engine.store.take(id, lease_us=5_000_000, worker="w", session="s") is not None
    engine.store.looked_at([id], 1)
    assert engine.client.zscore("w:queued", id) is None


def test_a_push_that_fails_is_made_up_for(engine: Engine) -> None:
    """A store that refuses the message does not fail the caller; the clock sends it later."""
    dead = RunQueue(redis.Redis(port=9, socket_connect_timeout=0.2))
    id = engine.create(Lane.QUEUE)
    dead.push(id)
    time.sleep(1.1)
    engine.look()
    assert engine.waiting("rq:queue:work") == [id]
