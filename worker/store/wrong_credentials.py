"""Counts wrong credentials per address, across all doors and processes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

import redis
import structlog

from worker.core.callers import network_of
from worker.core.errors import Problem
from worker.store.data_model import Keys
from worker.store.outage import note

log = structlog.get_logger()

# Wrong credentials per address and minute; further ones are refused until the minute ends.
MOST_FAILURES = 30
WINDOW = 60
_MOST_ADDRESSES = 10_000


class TooManyFailures(Problem):
    code, status = "RATE_LIMITED", 429
    message = "too many failed attempts"
    advice = "Wait for the time in Retry-After, then use the right credentials."


class WrongCredentials:
    """Refuses an address after too many wrong credentials; fails open while the store is unavailable."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._blocked: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, address: str) -> None:
        """Counts one failure for the address's network; raises TooManyFailures if there were too many."""
        address = network_of(address)
        self._refuse_blocked(address)
        self._failed(address)

    def _refuse_blocked(self, address: str) -> None:
        until = self._blocked.get(address)
        if until is None:
            return
        left = until - time.monotonic()
        if left > 0:
            raise TooManyFailures(retry_after=max(1, round(left)))
        with self._lock:
            self._blocked.pop(address, None)

    def _failed(self, address: str) -> None:
        """Counts across all processes; over the limit, a process refuses without asking the store."""
        key = self._keys.failed_bearers(address)
        try:
            with self._client.pipeline(transaction=True) as pipe:
                pipe.set(key, 0, ex=WINDOW, nx=True)
                pipe.incr(key)
                pipe.ttl(key)
                _, count, left = pipe.execute()
        except redis.RedisError as error:
            note(error, "credentials")
            return
        if int(count) <= MOST_FAILURES:
            return
        with self._lock:
            self._blocked[address] = time.monotonic() + max(1, int(left))
            while len(self._blocked) > _MOST_ADDRESSES:
                self._blocked.popitem(last=False)
        log.warning("credentials.address_blocked", address=address)
        raise TooManyFailures(retry_after=max(1, int(left)))
