"""A store that dies without warning and that its supervisor restarts."""

from __future__ import annotations

import os
import signal

import redis

from tests.waiting import eventually
from worker.local.valkey import EmbeddedStore


def answers(url: str) -> bool:
    """Whether the store has loaded its data, over a connection of its own."""
    try:
        with redis.Redis.from_url(url, socket_timeout=5) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def crash(store: EmbeddedStore) -> None:
    """Kills with -9 and waits until the restarted store answers at its old address."""
    url, victim = store.url, store.pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: store.pid not in {None, victim} and answers(url), 30, "a restarted store")
