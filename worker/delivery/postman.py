"""The clock's hands for webhooks: takes in what is to be told and sends it, in a few threads of its own.

A receiver may take its time and the clock must tick meanwhile. What is due is read from the outbox and
every attempt begins with a script that gives leave, so other clocks may do the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Protocol

import redis
import structlog

from worker.delivery.outbox import Notice

log = structlog.get_logger()

THREADS = 8
# One slow receiver must not hold all threads.
MOST_OF_ONE_EXECUTION = 3
_A_MOMENT_US = 1_000_000


class Due(Protocol):
    def due(self, at: int, most: int = 50) -> list[Notice]: ...


class Sends(Protocol):
    @property
    def outbox(self) -> Due: ...

    def collect(self, at: int) -> None: ...

    def send(self, notice: Notice) -> None: ...


class Postman:
    """Begins what is due; never the same notice twice at once in this process."""

    def __init__(self, webhooks: Sends, *, threads: int = THREADS) -> None:
        self._webhooks = webhooks
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="webhook")
        self._lock = threading.Lock()
        self._under_way: dict[str, tuple[str, Future[None]]] = {}

    def chore(self, at: int) -> None:
        """What the clock calls about once a second, with the store's time."""
        self._begin("round", "", partial(self._round, at))

    def _round(self, at: int) -> None:
        self._webhooks.collect(at)
        # What was just taken in is due by now; whether it is, the script that gives leave decides.
        for notice in self._webhooks.outbox.due(at + _A_MOMENT_US, 4 * self._threads):
            self._begin(str(notice), notice.execution, partial(self._webhooks.send, notice))

    def close(self, grace_s: float) -> None:
        """Lets open calls end for so long; what is not begun stays due for other clocks."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = [future for _, future in self._under_way.values()]
        wait(left, timeout=grace_s)

    def _begin(self, name: str, execution: str, work: Callable[[], object]) -> None:
        with self._lock:
            of_it = sum(1 for other, _ in self._under_way.values() if other == execution)
            crowded = len(self._under_way) > self._threads or of_it >= MOST_OF_ONE_EXECUTION
            if crowded or name in self._under_way:
                return
            try:
                future = self._pool.submit(_guarded, name, work)
            except RuntimeError:  # closed meanwhile: others send it
                return
            self._under_way[name] = execution, future
        future.add_done_callback(lambda _: self._ended(name))

    def _ended(self, name: str) -> None:
        with self._lock:
            self._under_way.pop(name, None)


def _guarded(name: str, work: Callable[[], object]) -> None:
    """Whatever goes wrong is tried again at a later tick."""
    try:
        work()
    except redis.RedisError:
        log.warning("webhook.store_away")
    except Exception:
        log.exception("webhook.broken", what=name.split(" ")[0])
