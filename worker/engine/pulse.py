"""A text that changes whenever anything does that an overview shows: for pages that keep up to date."""

from __future__ import annotations

from collections.abc import Sequence

from worker.core.states import State
from worker.engine.reader import ExecutionReader
from worker.store.data_model import short


class Pulse:
    """One round trip. `others`: short reading commands for what other rooms have."""

    def __init__(self, store: ExecutionReader, others: Sequence[tuple[str, ...]]) -> None:
        self._store = store
        self._others = others

    def read_one(self, id: str) -> str:
        """The same for an execution that has ended: its money and its webhooks go on."""
        with self._store.client.pipeline(transaction=False) as pipe:
            pipe.hmget(self._store.keys.record(id), "phase", "updated")
            pipe.hgetall(self._store.keys.money(id))
            pipe.hlen(self._store.keys.hooks(id))
            return short(repr(pipe.execute()))

    def read(self) -> str:
        with self._store.client.pipeline(transaction=False) as pipe:
            for state in State:
                pipe.zcard(self._store.keys.by_state(state))
            # Executions replaced by others between two looks change the newest one, not the counts.
            pipe.zrevrange(self._store.keys.everything, 0, 0)
            pipe.zrevrange(self._store.keys.ended, 0, 0)
            for command in self._others:
                pipe.execute_command(*command)  # type: ignore[no-untyped-call]
            return short(repr(pipe.execute()))
