"""How a settle call is lived through: its leave is kept alive, its outcome written whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import redis
import structlog

log = structlog.get_logger()
T = TypeVar("T")

_LONGEST_PAUSE = 2.0


@contextmanager
def renewing(renew: Callable[[], object], every_s: float) -> Iterator[None]:
    """Nobody else calls while we do; the leave lapses soon after this process dies."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(every_s):
            try:
                renew()
            except redis.RedisError:
                log.warning("leg.renew_failed")

    threading.Thread(target=keep, name="leg-renew", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def insist(write: Callable[[], T]) -> T:
    """A fact about money is written, however long the store is away."""
    pause = 0.1
    while True:
        try:
            return write()
        except redis.RedisError:
            log.warning("leg.store_away")
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
