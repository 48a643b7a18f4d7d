"""Distinguishes outages from bugs. An outage is temporary: callers wait, then work continues. A bug is
logged with its traceback and counted, and the clock handles what it affected; nothing retries in a loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import redis
import structlog

from worker.core.errors import Unavailable
from worker.store.client import unavailable

log = structlog.get_logger()

T = TypeVar("T")

# Errors from the store or the network that count as an outage.
StoreError = redis.RedisError
# Pause before retrying anything that hit a bug.
REST = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


def is_outage(error: BaseException) -> bool:
    """Whether the error is temporary: the store is down or refuses for now, or another service is down."""
    return isinstance(error, Unavailable) or unavailable(error) is not None


def note(error: BaseException, where: str, **about: object) -> bool:
    """Logs an outage or a bug, each in its own way; returns whether it was an outage."""
    if is_outage(error):
        log.warning(f"{where}.store_unavailable", error=type(error).__name__, **about)
        return True
    log.error(f"{where}.failed", exc_info=error, **about)
    with suppress(redis.RedisError):  # a failing counter must not make it worse
        _bugs.count(where)
    return False


def holds(check: Callable[[], bool], where: str) -> bool:
    """Whether this is so; not, if it cannot be told, for a caller with something to finish in any case."""
    try:
        return check()
    except Exception as error:
        note(error, where)
        return False


def insist(
    call: Callable[[], T],
    where: str,
    *,
    patience: float = float("inf"),
    pause: float = _FIRST_PAUSE,
    rest: Callable[[float], object] | None = None,
    passes: Callable[[BaseException], bool] = is_outage,
) -> T:
    """Retries a call through store outages until patience runs out. Raises a bug at once."""
    until = time.monotonic() + patience
    while True:
        try:
            return call()
        except redis.RedisError as error:
            if not passes(error) or time.monotonic() > until:
                raise
            note(error, where)
        (rest or time.sleep)(pause)
        pause = min(max(pause, _LONGEST_PAUSE), pause * 2)


class Resting:
    """Names of tasks that recently hit a bug; they are skipped while they rest."""

    def __init__(self, seconds: float = REST) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._until = {each: until for each, until in self._until.items() if until > now}
            self._until[name] = now + self._seconds

    def __contains__(self, name: str) -> bool:
        return time.monotonic() < self._until.get(name, 0.0)


class _Bugs:
    """Where this process counts its bugs; nowhere until it has a store."""

    def __init__(self) -> None:
        self.count: Callable[[str], object] = lambda where: None
        self.add: Callable[[str], object] = lambda sample: None


_bugs = _Bugs()


def count_bugs(client: redis.Redis, key: str) -> None:
    """Counts bugs in the store from now on, under the name of their sample in /metrics."""
    _bugs.count = lambda where: client.hincrby(key, f'worker_bugs_total{{where="{where}"}}', 1)
    _bugs.add = lambda sample: client.hincrby(key, sample, 1)


def count_sample(sample: str) -> None:
    """Increments this sample of /metrics, if the store can be reached."""
    with suppress(redis.RedisError):
        _bugs.add(sample)
