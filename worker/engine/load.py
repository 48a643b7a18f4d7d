"""Load: whether there is capacity, and how long a new execution would wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.core.states import Lane
from worker.engine.memory_guard import MemoryGuard
from worker.engine.transitions import PRESENT_US, ExecutionStore
from worker.store.scripts import Value

# Assumed duration of a capability's execution until one has been measured.
_UNMEASURED_US = 1_000_000
# Lower bound for the ETA of overdue executions.
_SOON_US = 1_000_000
CLOCK_STOPPED_US = 10_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """Current load of a lane, read from the store."""

    at: int
    waiting: int
    takers: int
    mean_us: int
    clock_age_us: int
    memory_full: bool = False
    running: int = 0
    verifying: int = 0
    lane_us: int = 0
    # Whether it was read a moment ago, and only its time is that of now.
    assumed: bool = False

    @property
    def pace_us(self) -> int:
        """Expected duration of an execution ahead in the queue: the lane's mean, whatever its agent."""
        return self.lane_us or self.mean_us

    @property
    def wait_us(self) -> int:
        """How long a new execution will wait for a process.

        Claims being verified count, because they will be in the queue soon.
        """
        busy = min(self.running, self.takers)
        before = self.waiting + self.verifying + busy + 1 - self.takers if self.takers else self.waiting
        return max(0, before) * self.pace_us // max(1, self.takers)

    def most_ahead(self, allowed_us: int) -> int:
        """How many executions may be ahead of a new one, so that its wait does not exceed `allowed_us`."""
        free = max(0, self.takers - self.running)
        return free + allowed_us * self.takers // max(1, self.pace_us)

    def estimate(self, started: int) -> int:
        """Estimates when an execution started at `started` will be done; 0 means that it still waits."""
        begins = started or self.at + self.wait_us
        return max(begins + self.mean_us, self.at + _SOON_US)

    @property
    def clock_stopped(self) -> bool:
        """Whether no clock runs, so that nothing would finish interrupted work."""
        return self.clock_age_us < 0 or self.clock_age_us > CLOCK_STOPPED_US


class LoadMeter:
    """Reads the load in one round trip."""

    def __init__(self, store: ExecutionStore, guard: MemoryGuard | None = None) -> None:
        self._store = store
        self.guard = guard or MemoryGuard(store.memory)

    def read(self, agent: str, lane: Lane) -> Load:
        return self.load(lane, self._store.scripts.value("load", **self.arguments(agent, lane)))

    def arguments(self, agent: str, lane: Lane) -> dict[str, Value]:
        """What a script needs that reads the load."""
        keys = self._store.keys
        waits = keys.express if lane is Lane.EXPRESS else keys.queued
        takers, present_us = keys.takers(lane), PRESENT_US
        if lane is Lane.REMOTE:
            # Connections do not sign on; those that have ended are removed from the list.
            waits, takers, present_us = keys.waiting(agent), keys.consumers("agent", agent), 2**53
        return {"waits": waits, "takers": takers, "agent": agent, "lane": lane, "silence": present_us}

    def load(self, lane: Lane, reply: Sequence[bytes]) -> Load:
        """The load as such a script returned it."""
        at, waiting, takers, mean, clock_age, running, verifying, lane_us = (int(value) for value in reply)
        mean = mean or _UNMEASURED_US
        if lane is Lane.REMOTE:
            return Load(at, waiting, takers, mean, clock_age, self.guard.full())
        return Load(at, waiting, takers, mean, clock_age, self.guard.full(), running, verifying, lane_us)

    def memory_full(self) -> bool:
        """Like `Load.memory_full`, but without a round trip unless the last answer is over a second old."""
        return self.guard.full()
