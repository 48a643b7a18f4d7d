"""Which processes are at work: clocks and warm processes, by their last sign of life."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import cast

from worker.core.states import Lane
from worker.engine.transitions import PRESENT_US, ExecutionStore
from worker.queue.checks import LANE as CHECK
from worker.store.client import as_bytes

LANES = (Lane.EXPRESS, Lane.QUEUE, CHECK)


@dataclass(frozen=True, slots=True)
class Process:
    """One process; `age_us` since its last sign."""

    name: str
    age_us: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Depth by lane, how long the oldest waits (us), and who takes work."""

    depths: dict[str, int]
    oldest_us: int
    processes: dict[str, list[Process]]
    clocks: list[Process]


class QueueStatusReader:
    """Reads the marks that processes leave in the store."""

    def __init__(self, store: ExecutionStore, queue: Sized) -> None:
        self._store = store
        self._queue = queue

    def read(self) -> QueueStatus:
        keys, now = self._store.keys, self._store.now()
        with self._store.client.pipeline(transaction=False) as pipe:
            pipe.zrange(keys.ticks, 0, -1, withscores=True)
            for lane in LANES:
                pipe.zrange(keys.takers(lane), 0, -1, withscores=True)
            ticks, *takers = pipe.execute()
        oldest = self._store.oldest_queued()
        return QueueStatus(
            {"express": self._store.express_length(), "queue": len(self._queue)},
            max(0, now - oldest) if oldest else 0,
            {lane: _present(rows, now) for lane, rows in zip(LANES, takers, strict=True)},
            _present(ticks, now),
        )


def _present(rows: object, now: int) -> list[Process]:
    found = cast(list[tuple[object, float]], rows)
    processes = [Process(as_bytes(name).decode(), max(0, now - int(at))) for name, at in found]
    return [each for each in processes if each.age_us <= PRESENT_US]
