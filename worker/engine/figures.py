"""What the counters of the store say about the work done so far: how much, how well, how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from worker.store.request_counts import LATENCIES_US

_SETTLED = "worker_settlements_total{"


@dataclass(frozen=True, slots=True)
class Figures:
    """One reading. `success_rate` is a fraction, None before anything has ended; `typical_us` is the median
    time of one run by agent."""

    settled: int
    completed: int
    success_rate: float | None
    typical_us: Mapping[str, int]

    @classmethod
    def of(cls, stats: Mapping[str, bytes]) -> Figures:
        completed, failed = (_ended(stats, status) for status in ("completed", "failed"))
        ended = completed + failed
        return cls(
            settled=sum(int(value) for name, value in stats.items() if name.startswith(_SETTLED)),
            completed=completed,
            success_rate=completed / ended if ended else None,
            typical_us=dict(_medians(stats)),
        )


@dataclass
class MeasuredFigures:
    """The figures, read from the store at most every few seconds."""

    read: Callable[[], Mapping[str, bytes]]
    seconds: float = 5.0
    _read_at: float = field(default=float("-inf"), init=False)
    _figures: Figures = field(default_factory=lambda: Figures.of({}), init=False)

    def now(self) -> Figures:
        if time.monotonic() - self._read_at > self.seconds:
            self._figures = Figures.of(self.read())
            self._read_at = time.monotonic()
        return self._figures


def _ended(stats: Mapping[str, bytes], status: str) -> int:
    return int(stats.get(f'worker_executions_total{{status="{status}"}}', 0))


def _medians(stats: Mapping[str, bytes]) -> Iterator[tuple[str, int]]:
    begin = "run count "
    for name, count in stats.items():
        if name.startswith(begin):
            agent = name.removeprefix(begin)
            yield agent, _median(stats, agent, int(count))


def _median(stats: Mapping[str, bytes], agent: str, count: int) -> int:
    """Interpolated within its bucket; above the last bucket its limit counts."""
    below, low = 0, 0
    for limit in LATENCIES_US:
        here = int(stats.get(f"run le {limit} {agent}", 0))
        if here and below + here >= count / 2:
            return low + round((limit - low) * (count / 2 - below) / here)
        below, low = below + here, limit
    return low
