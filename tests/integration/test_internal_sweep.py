"""Internal executions that were never discarded."""

from __future__ import annotations

from tests.engine import Engine
from worker.queue.internal_sweep import AGE_US, DOOR, InternalSweep


def test_ended_internal_executions_are_removed(engine: Engine) -> None:
    """Removed after some minutes with their files; running ones, and other doors' executions, stay."""
    service, keys = engine.executions, engine.store.keys
    ended = service.create("a", {"text": "x" * 100_000}, door=DOOR)[1]
    running = service.create("a", {}, door=DOOR)[1]
    other = service.create("a", {}, door="kernel")[1]
    for id in (ended, other):
        service.cancel(id)
    sweep = InternalSweep(engine.store.client, keys, service)
    now = engine.store.now()
    sweep.chore(now)
    assert engine.store.get(ended) is not None
    sweep.chore(now + AGE_US + 1_000_000)
    assert engine.store.get(ended) is None
    assert engine.store.get(running) is not None and engine.store.get(other) is not None
    assert engine.store.client.zcard(keys.by_door(DOOR)) == 1
