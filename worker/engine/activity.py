"""What the executions of a store have been doing: how many over time, how they ended, how long they took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from worker.core.states import State
from worker.engine.reader import ExecutionReader
from worker.store.client import as_texts

# Percentiles are those of the executions that ended last.
SAMPLE = 500
SHARES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Executions created in a stretch of time that begins at `since`, by their state now."""

    since: int
    counts: dict[State, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Durations:
    """Percentiles in microseconds, by share; empty without a sample."""

    name: str
    percentiles: dict[int, int]


@dataclass(frozen=True, slots=True)
class Recent:
    """The executions that ended last: how many were sampled, and how long they waited and ran."""

    sampled: int
    durations: tuple[Durations, ...]


class Activity:
    """Reads indexes only, so that its cost does not grow with the number of executions."""

    def __init__(self, store: ExecutionReader) -> None:
        self._store = store

    def counts(self) -> dict[State, int]:
        """Executions in the store by state."""
        with self._store.client.pipeline(transaction=False) as pipe:
            for state in State:
                pipe.zcard(self._store.keys.by_state(state))
            return dict(zip(State, map(int, pipe.execute()), strict=True))

    def over_time(self, since: int, until: int, buckets: int) -> list[Bucket]:
        """Equal stretches of the time, oldest first."""
        width = max(1, (until - since) // buckets)
        begins = [since + at * width for at in range(buckets)]
        with self._store.client.pipeline(transaction=False) as pipe:
            for begin in begins:
                for state in State:
                    pipe.zcount(self._store.keys.by_state(state), begin, begin + width - 1)
            found = [int(count) for count in pipe.execute()]
        step = len(State)
        rows = [found[at : at + step] for at in range(0, len(found), step)]
        return [
            Bucket(begin, dict(zip(State, row, strict=True))) for begin, row in zip(begins, rows, strict=True)
        ]

    def recent(self, most: int = SAMPLE) -> Recent:
        """Percentiles over the executions that ended last and had begun."""
        ids = as_texts(self._store.client.zrevrange(self._store.keys.ended, 0, most - 1))
        began = [each for each in self._store.summaries(ids) if each is not None and each.first_started]
        waits = [each.first_started - each.created for each in began]
        runs = [each.ended - each.first_started for each in began]
        wholes = [each.ended - each.created for each in began]
        named = (("waiting", waits), ("running", runs), ("in all", wholes))
        return Recent(len(began), tuple(Durations(name, percentiles(values)) for name, values in named))


def percentiles(values: Sequence[int]) -> dict[int, int]:
    """Nearest-rank percentiles."""
    ranked = sorted(max(0, value) for value in values)
    return {share: ranked[math.ceil(share / 100 * len(ranked)) - 1] for share in SHARES} if ranked else {}


def success_rate(buckets: Sequence[Bucket]) -> float | None:
    """Share of completed ones among those that completed or failed; None without any."""
    completed = sum(each.counts.get(State.COMPLETED, 0) for each in buckets)
    failed = sum(each.counts.get(State.FAILED, 0) for each in buckets)
    return completed / (completed + failed) if completed + failed else None
