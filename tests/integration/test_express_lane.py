"""How a warm process takes ids from the express lane: alone, or with the seal of the run before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis
from rq.exceptions import StopRequested

from tests.engine import ERROR, Engine
from worker.core.states import Lane, State
from worker.engine.answers import SealAnswer
from worker.queue import warm
from worker.queue.express_lane import _LOOK_EVERY, ExpressLane


@pytest.fixture(name="lane")
def _lane(engine: Engine) -> ExpressLane:
    return ExpressLane(engine.client, engine.store.scripts, engine.keys.express)


def short_work(engine: Engine, count: int) -> list[str]:
    return [engine.new(lane=Lane.EXPRESS) for _ in range(count)]


def run_next(engine: Engine, lane: ExpressLane) -> str:
    """Takes the next id and seals its work; returns the id."""
    id = lane.take()
    execution = engine.take(id)
    answer = engine.store.seal(
        id, execution.fence, "completed", output=b"1", result=b"{}", error=b"", payload=b"{}", send=lane.seal
    )
    assert answer is SealAnswer.OK
    return id


def trips(engine: Engine) -> int:
    stats: Any = engine.client.info("stats")
    return int(stats["total_reads_processed"])


def test_ids_come_in_order_with_fewer_round_trips(engine: Engine, lane: ExpressLane) -> None:
    """Once work waits, a run costs two trips: take, and the seal that brings the next id."""
    ids = short_work(engine, 3 * _LOOK_EVERY)
    assert [run_next(engine, lane) for _ in ids[:_LOOK_EVERY]] == ids[:_LOOK_EVERY]
    rest = ids[_LOOK_EVERY:]
    before = trips(engine)
    found = [run_next(engine, lane) for _ in rest]
    assert found == rest
    assert trips(engine) - before <= 2 * len(rest) + 1
    assert all(engine.get(id).state is State.COMPLETED for id in ids)
    assert engine.client.llen(engine.keys.express) == 0


def test_an_id_that_is_not_run_returns_to_the_head_of_the_lane(engine: Engine, lane: ExpressLane) -> None:
    """A process that leaves hands on what it took ahead; a second time changes nothing."""
    ids = short_work(engine, _LOOK_EVERY + 2)
    for _ in range(_LOOK_EVERY):
        run_next(engine, lane)
    left = ids[_LOOK_EVERY:]
    assert engine.store.express_messages() == left[1:]
    lane.give_back()
    lane.give_back()
    assert engine.store.express_messages() == left


def test_a_process_that_is_asked_to_stop_hands_on_what_it_took_ahead(
    engine: Engine, lane: ExpressLane
) -> None:
    """The signal may come at any point between two runs."""
    ids = short_work(engine, _LOOK_EVERY + 2)
    for _ in range(_LOOK_EVERY):
        run_next(engine, lane)

    def asked_to_stop() -> None:
        raise StopRequested

    presence: Any = SimpleNamespace(sign=asked_to_stop)
    leaving: Any = SimpleNamespace(asked=False, worn=False)
    with pytest.raises(StopRequested):
        warm.express(lane, engine.runner(), presence, leaving)
    assert engine.store.express_messages() == ids[_LOOK_EVERY:]


def test_a_seal_that_fails_takes_one_id_at_most(
    engine: Engine, lane: ExpressLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full store refuses seals for as long as a lease; its repeats must not empty the lane."""
    short_work(engine, _LOOK_EVERY + 5)
    for _ in range(_LOOK_EVERY):
        run_next(engine, lane)
    execution = engine.take(lane.take())

    def refuse(*args: object) -> Any:
        engine.client.lpop(engine.keys.express)
        raise redis.ConnectionError("lost")

    monkeypatch.setattr(engine.store.scripts, "send_with", refuse)
    options: dict[str, Any] = {"output": b"1", "result": b"{}", "error": b"", "payload": b"{}"}
    with pytest.raises(redis.ConnectionError):
        engine.store.seal(execution.id, execution.fence, "completed", **options, send=lane.seal)
    for _ in range(3):
        engine.store.seal(execution.id, execution.fence, "completed", **options, send=lane.seal)
    assert engine.client.llen(engine.keys.express) == 3


def test_a_store_without_the_script_seals_all_the_same(engine: Engine, lane: ExpressLane) -> None:
    """It is sent in full, and the id that came with it is not lost."""
    ids = short_work(engine, _LOOK_EVERY + 2)
    for _ in range(_LOOK_EVERY):
        run_next(engine, lane)
    execution = engine.take(lane.take())
    engine.client.script_flush()
    answer = engine.store.seal(
        execution.id, execution.fence, "failed", output=b"", result=b"", error=ERROR, payload=ERROR,
        send=lane.seal,
    )  # fmt: skip
    assert answer is SealAnswer.OK
    assert lane.take() == ids[-1]
