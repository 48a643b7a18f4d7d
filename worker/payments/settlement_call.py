"""Keeps the settlement lease renewed during a facilitator call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from worker.store.outage import note
from worker.store.pool import use


@contextmanager
def renewing(renew: Callable[[], object], every_s: float) -> Iterator[None]:
    """Keeps other callers out during the call; the lease expires soon after this process dies."""
    ended = threading.Event()

    def keep() -> None:
        use("paid")
        while not ended.wait(every_s):
            try:
                renew()
            except redis.RedisError as error:
                note(error, "payment.renew")

    threading.Thread(target=keep, name="leave-renew", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
