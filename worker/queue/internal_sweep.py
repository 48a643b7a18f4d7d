"""Removes internal executions whose caller ended before it could discard them."""

from __future__ import annotations

import redis

from worker.core.errors import NotFound
from worker.engine.service import Executions
from worker.store.client import as_texts
from worker.store.data_model import Keys

DOOR = "internal"
# Callers wait for seconds.
AGE_US = 600 * 1_000_000
_AT_ONCE = 100


class InternalSweep:
    """A chore of the clock. Internal executions serve one caller; nobody reads them afterwards."""

    def __init__(self, client: redis.Redis, keys: Keys, executions: Executions) -> None:
        self._client = client
        self._index = keys.by_door(DOOR)
        self._executions = executions

    def chore(self, at: int) -> None:
        """Run by the clock with the store's time."""
        found = self._client.zrangebyscore(self._index, "-inf", at - AGE_US, start=0, num=_AT_ONCE)
        for id in as_texts(found):
            try:
                execution = self._executions.get(id)
            except NotFound:
                self._client.zrem(self._index, id)
                continue
            if execution.state.terminal:
                self._executions.discard(execution)
