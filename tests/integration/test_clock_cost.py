"""The clock's load on the store grows neither with the queue nor with the number of process trees."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.connection import AbstractConnection

from tests.engine import Engine
from worker.core.ids import new_id
from worker.delivery.outbox import Outbox
from worker.engine.transitions import ExecutionStore
from worker.files.store import files_from
from worker.payments.money_store import HOOKS
from worker.queue.clock import Clock
from worker.queue.rq import RunQueue


@dataclass(frozen=True)
class Cost:
    commands: int
    round_trips: int
    bytes: int


@pytest.fixture(name="sent")
def _sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Appends one entry per round trip to the store."""
    sent: list[int] = []
    send = AbstractConnection.send_packed_command

    def count(self: AbstractConnection, *args: Any, **kwargs: Any) -> None:
        sent.append(1)
        send(self, *args, **kwargs)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(AbstractConnection, "send_packed_command", count)
    return sent


def fill(client: redis.Redis, store: ExecutionStore, many: int) -> None:
    """Adds hired work with webhooks to the queue."""
    ids = [new_id() for _ in range(many)]
    began = store.now() - 60_000_000
    for index in (store.keys.queued, store.keys.by_state("pending"), store.keys.everything):
        client.zadd(index, {id: began + at for at, id in enumerate(ids)})
    client.zadd(store.keys.deadlines, dict.fromkeys(ids, began + 3600_000_000))
    client.rpush("rq:queue:work", *ids)
    with client.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.hset(store.keys.record(id), mapping={"state": "pending", "hooks": '[{"url":"https://a"}]'})
        pipe.execute()


def cost(client: redis.Redis, sent: list[int], work: Callable[[], None]) -> Cost:
    def traffic() -> int:
        stats = client.info("stats")
        return int(stats["total_net_input_bytes"] + stats["total_net_output_bytes"])

    client.config_resetstat()
    before, trips = traffic(), len(sent)
    work()
    trips = len(sent) - trips
    calls = sum(each["calls"] for each in client.info("commandstats").values())
    return Cost(calls, trips, traffic() - before)


def test_clock_tick_costs_the_same_however_long_the_queue_is(
    client: redis.Redis, tmp_path: Path, sent: list[int]
) -> None:
    """With 10,000 waiting hires a second costs no more commands, round trips and bytes than with 100."""
    costs = {}
    for length in (100, 10_000):
        client.flushall()
        store = ExecutionStore(client, hooks=HOOKS)
        outbox = Outbox(client, store.keys)
        fill(client, store, length)

        def collect(at: int, outbox: Outbox = outbox) -> None:
            list(outbox.ended_since_last_look(at))
            outbox.at_work()

        clock = Clock(
            store, RunQueue(client), files=files_from(str(tmp_path)), tree="t", retention_us=10**15,
            chores=[collect],
        )  # fmt: skip
        for _ in range(4):  # loads the scripts
            clock.tick()
        client.zadd(store.keys.queued, dict.fromkeys(client.zrange(store.keys.queued, 0, -1), 1))
        costs[length] = cost(client, sent, lambda clock=clock: [clock.tick() for _ in range(4)])
        assert client.llen("rq:queue:work") == length
    short, long = costs[100], costs[10_000]
    assert long.commands <= short.commands, costs
    assert long.round_trips <= short.round_trips, costs
    assert long.bytes <= 1.1 * short.bytes, costs


def test_one_tree_does_the_shared_chores_and_another_follows_it(client: redis.Redis, tmp_path: Path) -> None:
    """One of several trees searches the queue; when it stops, another takes over within seconds."""
    store, files = ExecutionStore(client, hooks=HOOKS), files_from(str(tmp_path))
    done: list[str] = []
    clocks = {
        tree: Clock(
            store, RunQueue(client), files=files, tree=tree, retention_us=10**15,
            chores=[lambda at, tree=tree: done.append(f"own {tree}")],
            shared_chores=[lambda at, tree=tree: done.append(f"shared {tree}")],
        )
        for tree in ("a", "b")
    }  # fmt: skip
    for clock in clocks.values():
        clock.tick()
    assert done == ["shared a", "own a", "own b"]
    until = time.monotonic() + 20
    while "shared b" not in done and time.monotonic() < until:
        clocks["b"].tick()
        time.sleep(0.05)
    assert "shared b" in done
    assert 0 < client.pttl(store.keys.chores) <= 3_000


def test_begun_work_with_webhooks_is_found_behind_thousands(engine: Engine) -> None:
    """The index holds taken work until it ends; waiting work is not read for it."""
    quiet, heard = engine.new(), engine.new()
    engine.client.hset(engine.keys.record(heard), "hooks", '[{"url":"https://a"}]')
    for id in (quiet, heard):
        engine.take(id)
    older = {new_id(): 1 for _ in range(2_000)}
    engine.client.zadd(engine.keys.by_state("running"), older)
    outbox = Outbox(engine.client, engine.keys, test_clock=True)
    assert outbox.at_work() == [(heard, 1, 0)]
    engine.cancel(heard)
    assert outbox.at_work() == []
    assert not engine.client.exists(engine.keys.hooked)


def test_work_that_an_older_release_took_enters_the_index(engine: Engine) -> None:
    """During a rolling deploy no entry is missing for long: each round checks some open executions."""
    heard = engine.running().id
    engine.client.hset(engine.keys.record(heard), "hooks", '[{"url":"https://a"}]')
    engine.client.zadd(engine.keys.by_state("running"), {new_id(): 1 for _ in range(50)})
    outbox = Outbox(engine.client, engine.keys, test_clock=True)
    assert outbox.at_work() == []
    assert outbox.at_work() == [(heard, 1, 0)]
