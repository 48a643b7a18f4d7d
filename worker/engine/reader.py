"""Reads executions, their logs, steps and indexes, and the counters; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import redis

from worker.core.states import State
from worker.engine import events, record
from worker.engine.events import Event
from worker.engine.record import Execution, ExecutionRow
from worker.store.client import as_bytes, as_mapping
from worker.store.commands import ask_together
from worker.store.data_model import Keys
from worker.store.money_fields import payment_field

# Events read at a time.
BATCH = 1_000

_Scored = list[tuple[object, float]]


class ExecutionReader:
    """Reads executions, one round trip per method."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self._memory: dict[str, Any] = {}
        self._memory_read = float("-inf")

    def get(self, id: str) -> Execution | None:
        raw = as_mapping(self.client.hgetall(self.keys.record(id)))
        return record.from_mapping(raw) if raw else None

    def state(self, id: str) -> State | None:
        found = self.client.hget(self.keys.record(id), "state")
        return State(as_bytes(found).decode()) if found else None

    def agent(self, id: str) -> str:
        found = self.client.hget(self.keys.record(id), "agent")
        return as_bytes(found).decode() if found else ""

    def events(self, id: str, after: int = 0, limit: int = BATCH) -> list[Event]:
        lines = self.client.lrange(self.keys.log(id), after, after + limit - 1)
        return [events.decode(id, after + 1 + at, as_bytes(line)) for at, line in enumerate(lines)]

    def log_length(self, id: str) -> int:
        return int(self.client.llen(self.keys.log(id)))

    def page(self, index: str, *, cursor: tuple[int, str] | None, most: int) -> list[tuple[str, int]]:
        """Returns (id, created) from an index, newest first, strictly after the cursor."""
        highest = "+inf" if cursor is None else cursor[0]
        rows: list[tuple[str, int]] = []
        start = 0
        while True:
            # Fetch a few extra: the cursor's own row, and rows of the same microsecond.
            found = self.client.zrevrangebyscore(
                index, highest, "-inf", start=start, num=most + 8, withscores=True
            )
            read = [(as_bytes(id).decode(), int(score)) for id, score in cast(_Scored, found)]
            rows += [row for row in read if cursor is None or (row[1], row[0]) < cursor]
            if len(rows) >= most or len(read) < most + 8:
                return rows[:most]
            start += most + 8

    def summaries(self, ids: Sequence[str]) -> list[Execution | None]:
        """Fields for a list of executions, without long ones such as inputs and outputs."""
        return [record.from_values(record.SUMMARY, values) for values in self._fields(ids, record.SUMMARY)]

    def rows(self, ids: Sequence[str]) -> list[ExecutionRow | None]:
        """Fields for a list of executions in the API."""
        return [record.row_from_values(values) for values in self._fields(ids, record.ROW)]

    def _fields(self, ids: Sequence[str], names: Sequence[str]) -> list[list[bytes | None]]:
        if not ids:
            return []
        return ask_together(self.client, *(("HMGET", self.keys.record(id), *names) for id in ids))

    def get_many(self, ids: Sequence[str]) -> list[Execution | None]:
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hgetall(self.keys.record(id))
            found = [as_mapping(raw) for raw in pipe.execute()]
        return [record.from_mapping(raw) if raw else None for raw in found]

    def smallest(self, indexes: Sequence[str]) -> str:
        """The index with the fewest entries."""
        if len(indexes) == 1:
            return indexes[0]
        with self.client.pipeline(transaction=False) as pipe:
            for index in indexes:
                pipe.zcard(index)
            return min(zip(pipe.execute(), indexes, strict=True))[1]

    def bought_by(self, contract_ref: str) -> str:
        """The execution that a contract bought, or ''."""
        found = self.client.hget(self.keys.contract(contract_ref), "execution")
        return as_bytes(found).decode() if found else ""

    def indexed(self, index: str, id: str) -> bool:
        return self.client.zscore(index, id) is not None

    def count(self, index: str) -> int:
        """Executions in an index."""
        return int(self.client.zcard(index))

    def count_in(self, state: State) -> int:
        """Executions in this state."""
        return self.count(self.keys.by_state(state))

    def express_length(self) -> int:
        """Ids that wait in the express lane."""
        return int(self.client.llen(self.keys.express))

    def oldest_queued(self) -> int | None:
        """Time since which the oldest queued execution has waited, in microseconds; None if none waits."""
        found: Any = self.client.zrange(self.keys.queued, 0, 0, withscores=True)
        return int(found[0][1]) if found else None

    def stats(self) -> dict[str, bytes]:
        """All counters; most are named like their metrics sample."""
        return as_mapping(self.client.hgetall(self.keys.stats))

    def memory(self) -> dict[str, Any]:
        """The server's memory report; fetched once a second."""
        now, last = time.monotonic(), self._memory_read
        if now - last > 1.0:
            if self._memory:
                self._memory_read = now  # others that ask meanwhile get the last report
            try:
                self._memory = dict(self.client.info("memory"))
            except redis.ResponseError:  # some hosted stores forbid INFO
                self._memory = {}
            except BaseException:
                self._memory_read = last
                raise
            self._memory_read = now
        return self._memory

    def steps(self, id: str) -> dict[str, bytes]:
        """All data about steps, and the values stored by `remember`."""
        return as_mapping(self.client.hgetall(self.keys.steps(id)))

    def having_steps(self, ids: Sequence[str]) -> list[str]:
        """Those executions that called a tool, got a signal or remembered a value."""
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.exists(self.keys.steps(id))
            return [id for id, exists in zip(ids, pipe.execute(), strict=True) if exists]

    def payment_keys(self, id: str) -> dict[int, str]:
        """The execution's payment keys by payment number; empty for unsold work."""
        money = self.keys.money(id)
        numbers = range(1, int(self.client.hget(money, "count") or 0) + 1)
        names = (
            self.client.hmget(money, [payment_field(number, "key") for number in numbers]) if numbers else []
        )
        found = zip(numbers, names, strict=True)
        return {number: self.keys.payment(as_bytes(name).decode()) for number, name in found if name}
