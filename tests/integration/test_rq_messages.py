"""Messages of long work: what a run costs, and when its message is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import rq
from rq.serializers import JSONSerializer
from rq.utils import now as utcnow

from tests.engine import Engine
from worker.core.states import State
from worker.queue import warm
from worker.queue.rq import QueueWorker, TakenMessage, message
from worker.store.scripts import Scripts

INTERMEDIATE = "rq:queue:work:intermediate"


def queued(engine: Engine, count: int) -> list[str]:
    ids = [engine.new() for _ in range(count)]
    for id in ids:
        engine.queue.push(id)
    return ids


def left(engine: Engine) -> list[Any]:
    return [*engine.client.keys("rq:job:*"), *engine.client.lrange(INTERMEDIATE, 0, -1)]


class Sealing:
    """Runs executions to their seal, under the messages that name them."""

    def __init__(self, engine: Engine) -> None:
        self.taken = TakenMessage()
        self._engine = engine

    def __call__(self, id: str) -> None:
        fence, store = self._engine.take(id).fence, self._engine.store
        send = partial(self.taken.seal, store.scripts)
        store.seal(id, fence, "completed", output=b"1", result=b"{}", error=b"", payload=b"{}", send=send)


@pytest.fixture(name="seal")
def _seal(engine: Engine) -> Sealing:
    return Sealing(engine)


def worker(engine: Engine, run: Callable[[str], object], taken: TakenMessage | None = None) -> QueueWorker:
    return QueueWorker(engine.client, name="one", run=run, sign=lambda: None, taken=taken)


def test_rq_reads_a_message_as_its_own(engine: Engine) -> None:
    """Its tools list the queue and show each message, which asks for nothing that we do not do."""
    [id] = queued(engine, 1)
    [queue] = rq.Queue.all(connection=engine.client, serializer=JSONSerializer)
    [found] = queue.get_jobs()
    assert (found.id, found.func, found.args, found.kwargs) == (id, message, [id], {})
    assert (found.origin, found.get_status(), found.description) == ("work", "queued", id)
    assert (found.timeout, found.result_ttl, found.failure_ttl) == (-1, 0, 60)
    assert found.created_at == found.enqueued_at and abs(utcnow() - found.created_at) < timedelta(minutes=1)


def test_a_sealed_run_takes_two_round_trips(engine: Engine, seal: Sealing) -> None:
    """Taking the lease, and the seal, with which the message is forgotten and the next one comes."""
    ids = queued(engine, 20)
    trips: list[int] = []
    lefts: list[int] = []
    order: list[str] = []

    def run(id: str) -> None:
        order.append(id)
        stats: Any = engine.client.info("stats")
        seal(id)
        trips.append(int(stats["total_reads_processed"]))
        lefts.append(len([each for each in left(engine) if id in each.decode()]))

    worker(engine, run, seal.taken).work(burst=True)
    assert all(engine.get(id).state is State.COMPLETED for id in ids)
    assert set(lefts) == {0} and not left(engine)
    assert order == ids
    # Three of each run's trips are this test's own: one for the figures, two for what is left.
    assert min(after - before for before, after in zip(trips, trips[1:], strict=False)) <= 2 + 3


def waiting(engine: Engine) -> list[str]:
    return [id.decode() for id in engine.client.lrange(engine.queue.key, 0, -1)]


def runs_once(engine: Engine, seal: Sealing) -> None:
    """Runs one message, in a process that stops then."""
    only: list[QueueWorker] = []

    def run(id: str) -> None:
        seal(id)
        only[0].stop()

    only.append(worker(engine, run, seal.taken))
    only[0].work()


def test_a_process_that_stops_gives_back_the_message_that_came_with_a_seal(
    engine: Engine, seal: Sealing
) -> None:
    """It returns to the head of the queue; a second time changes nothing."""
    ids = queued(engine, 3)
    runs_once(engine, seal)
    assert (waiting(engine), engine.client.lrange(INTERMEDIATE, 0, -1)) == (ids[2:], [ids[1].encode()])
    seal.taken.give_back(engine.client)
    seal.taken.give_back(engine.client)
    assert (waiting(engine), engine.client.lrange(INTERMEDIATE, 0, -1)) == (ids[1:], [])


def test_a_stop_request_between_two_messages_gives_back_the_second(engine: Engine, seal: Sealing) -> None:
    ids = queued(engine, 3)
    runs_once(engine, seal)
    leaving: Any = SimpleNamespace(asked=True, worn=False, takes_more=lambda: False)
    presence: Any = SimpleNamespace(sign=lambda: None)
    warm.queue(engine.client, "one", engine.runner(), presence, leaving, seal.taken)
    assert waiting(engine) == ids[1:]


def test_a_process_that_takes_no_more_leaves_the_next_message(engine: Engine, seal: Sealing) -> None:
    ids = queued(engine, 3)
    seal.taken.takes_more = lambda: False
    runs_once(engine, seal)
    assert (waiting(engine), engine.client.lrange(INTERMEDIATE, 0, -1)) == (ids[1:], [])


def test_seal_stands_when_the_catalog_cannot_be_read(engine: Engine, seal: Sealing) -> None:
    """Whether more may be taken is no reason to lose finished work."""
    ids = queued(engine, 2)

    def spoiled() -> bool:
        raise redis.ResponseError("WRONGTYPE")

    seal.taken.takes_more = spoiled
    runs_once(engine, seal)
    assert engine.get(ids[0]).state is State.COMPLETED
    assert (waiting(engine), engine.client.lrange(INTERMEDIATE, 0, -1)) == (ids[1:], [])


def test_a_message_that_is_lost_with_its_process_is_sent_again(engine: Engine, seal: Sealing) -> None:
    """It came with a seal, and its process died before it took the lease."""
    ids = queued(engine, 2)
    runs_once(engine, seal)
    engine.advance(5)
    clock = engine.clock()
    for _ in range(8):
        clock.tick()
    assert waiting(engine) == [ids[1]]
    assert engine.take(ids[1]).attempt == 1


def test_a_seal_that_is_tried_again_takes_no_other_message(
    engine: Engine, seal: Sealing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = queued(engine, 4)
    send, scripts = Scripts.send_each, engine.store.scripts

    def lost(self: Scripts, *words: Any) -> Any:
        send(self, *words)
        monkeypatch.setattr(Scripts, "send_each", send)
        raise redis.ConnectionError("lost")

    def run(id: str) -> None:
        monkeypatch.setattr(Scripts, "send_each", lost)
        with pytest.raises(redis.ConnectionError):
            seal(id)
        call = scripts.call("time")
        for _ in range(3):
            seal.taken.seal(scripts, call)
        only.stop()

    only = worker(engine, run, seal.taken)
    only.work()
    assert waiting(engine) == ids[2:]


def test_a_seal_stands_when_no_message_can_be_moved(engine: Engine, seal: Sealing) -> None:
    """The rest of its round trip does not hide it."""
    first, _ = queued(engine, 2)
    errors: list[redis.RedisError] = []

    def run(id: str) -> None:
        engine.client.set(INTERMEDIATE, "of another type")
        try:
            seal(id)
        except redis.RedisError as error:
            errors.append(error)
        engine.client.delete(INTERMEDIATE)
        only.stop()

    only = worker(engine, run, seal.taken)
    only.work()
    assert not errors and engine.get(first).state is State.COMPLETED


def test_a_run_without_a_seal_forgets_its_message_at_its_end(engine: Engine, seal: Sealing) -> None:
    """Also one that raises; the next message is not touched."""
    first, second = queued(engine, 2)
    seen: list[list[Any]] = []

    def run(id: str) -> None:
        seen.append(left(engine))
        if id == first:
            raise RuntimeError("broken")

    worker(engine, run, seal.taken).work(burst=True)
    worker(engine, run, seal.taken).work(burst=True)
    assert [len(each) for each in seen] == [3, 2]
    assert not left(engine)


def test_a_message_without_its_copy_is_run(engine: Engine) -> None:
    """The id in the queue is all that counts; the record decides."""
    [id] = queued(engine, 1)
    engine.client.delete(f"rq:job:{id}")
    ran: list[str] = []
    worker(engine, ran.append).work(burst=True)
    assert ran == [id]
