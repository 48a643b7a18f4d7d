"""The clock's hands in money matters: open payments, legs and the comparison, each in a thread of its own.

A facilitator may take minutes to answer and the clock must tick meanwhile. Nothing here decides
anything: what is due is read from the store, and every step is a script that checks first, so other
clocks may do the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Protocol

import redis
import structlog

from worker.payments.leg_books import LegName

log = structlog.get_logger()

THREADS = 8
# More than this does not stand in line: what is due stays due.
MOST_IN_LINE = 64


class OpenPayments(Protocol):
    """The ledger's side: whose money waits for somebody."""

    def due(self, at: int, most: int = 50) -> list[str]: ...


class Attends(Protocol):
    def attend(self, id: str) -> None: ...


class Legs(Protocol):
    def due(self, at: int) -> list[LegName]: ...

    def attend(self, leg: LegName) -> None: ...


class Compares(Protocol):
    def run(self) -> bool: ...


class Attendant:
    """Begins what is due; never the same thing twice at once in this process."""

    def __init__(
        self,
        ledger: OpenPayments,
        settler: Attends,
        legs: Legs | None,
        comparison: Compares,
        *,
        threads: int = THREADS,
    ) -> None:
        self._ledger = ledger
        self._settler = settler
        self._legs = legs
        self._comparison = comparison
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="money")
        # A facilitator that hangs must not keep contracts waiting for the comparison.
        self._comparing = ThreadPoolExecutor(1, thread_name_prefix="comparison")
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[None]] = {}

    def chore(self, at: int) -> None:
        """What the clock calls about once a second, with the store's time."""
        self._begin(self._comparing, "comparison", self._comparison.run)
        for id in self._ledger.due(at):
            self._begin(self._pool, f"payment {id}", partial(self._settler.attend, id))
        if self._legs is not None:
            for leg in self._legs.due(at):
                self._begin(self._pool, leg.member, partial(self._legs.attend, leg))

    def close(self, grace_s: float) -> None:
        """Lets open calls end for so long; what is not begun stays due for other clocks."""
        for pool in (self._pool, self._comparing):
            pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = list(self._under_way.values())
        wait(left, timeout=grace_s)

    def _begin(self, pool: ThreadPoolExecutor, name: str, work: Callable[[], object]) -> None:
        with self._lock:
            crowded = pool is self._pool and len(self._under_way) >= MOST_IN_LINE
            if crowded or name in self._under_way:
                return
            self._under_way[name] = pool.submit(_guarded, name, work)
            future = self._under_way[name]
        future.add_done_callback(lambda _: self._ended(name))

    def _ended(self, name: str) -> None:
        with self._lock:
            self._under_way.pop(name, None)


def _guarded(name: str, work: Callable[[], object]) -> None:
    """Whatever goes wrong is tried again at a later tick."""
    try:
        work()
    except redis.RedisError:
        log.warning("attendant.store_away", what=name)
    except Exception:
        log.exception("attendant.failed", what=name)
