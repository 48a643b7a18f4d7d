"""RQ worker heartbeats in a real store: visible, without a write per message."""

from __future__ import annotations

from typing import Any

import redis
from rq import Worker
from rq.suspension import suspend

from worker.core.ids import new_id
from worker.queue.rq import QueueWorker, RunQueue

MESSAGES = 25


def expirations(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_expire", {}).get("calls", 0))


def test_heartbeats_are_not_written_for_every_message(client: redis.Redis) -> None:
    """The worker is listed while it runs, without writes before and after each message."""
    queue, ids = RunQueue(client), [new_id() for _ in range(MESSAGES)]
    for id in ids:
        queue.push(id)
    ran: list[str] = []
    signs: list[str] = []
    lives: list[Any] = []

    def run(id: str) -> None:
        ran.append(id)
        lives.append(client.ttl(worker.key))
        if len(ran) == MESSAGES:
            worker.stop()

    worker = QueueWorker(client, name="one", run=run, sign=lambda: signs.append("x"))
    before = expirations(client)
    worker.work()
    assert ran == ids
    assert all(life > 30 for life in lives)
    assert len(signs) >= MESSAGES
    assert expirations(client) - before < MESSAGES


def test_suspended_queue_is_still_noticed(client: redis.Redis) -> None:
    """`rq suspend` holds messages back although heartbeats are rare."""
    queue = RunQueue(client)
    queue.push(new_id())
    suspend(client)
    ran: list[str] = []
    signs: list[str] = []

    def sign() -> None:
        signs.append("x")
        if len(signs) > 1:
            worker.stop()

    worker = QueueWorker(client, name="two", run=ran.append, sign=sign)
    worker.work()
    assert not ran and len(queue) == 1
    assert Worker.count(connection=client) == 0
