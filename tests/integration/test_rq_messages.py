"""Messages of long work: what a run costs, and when its message is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import rq
from rq.serializers import JSONSerializer
from rq.utils import now as utcnow

from tests.engine import Engine
from worker.core.states import State
from worker.queue.rq import QueueWorker, TakenMessage, message

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


def test_a_sealed_run_takes_three_round_trips(engine: Engine, seal: Sealing) -> None:
    """Taking the message, taking the lease, and the seal, with which the message is forgotten."""
    ids = queued(engine, 20)
    trips: list[int] = []
    lefts: list[int] = []

    def run(id: str) -> None:
        stats: Any = engine.client.info("stats")
        seal(id)
        trips.append(int(stats["total_reads_processed"]))
        lefts.append(len([each for each in left(engine) if id in each.decode()]))

    worker(engine, run, seal.taken).work(burst=True)
    assert all(engine.get(id).state is State.COMPLETED for id in ids)
    assert set(lefts) == {0} and not left(engine)
    # Three of each run's trips are this test's own: one for the figures, two for what is left.
    assert min(after - before for before, after in zip(trips, trips[1:], strict=False)) <= 3 + 3


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
