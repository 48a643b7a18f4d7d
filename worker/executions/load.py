"""How busy the worker is: whether there is room, and how long a new execution will wait."""

from __future__ import annotations

from dataclasses import dataclass

from worker.executions.states import Lane
from worker.executions.store import PRESENT_US, ExecutionStore

# What an execution of a capability takes, until one has been measured.
_UNMEASURED_US = 1_000_000
# What takes longer than usual may end at any moment.
_SOON_US = 1_000_000
CLOCK_STOPPED_US = 10_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """A lane as the store sees it now."""

    at: int
    waiting: int
    takers: int
    mean_us: int
    clock_age_us: int
    memory_used: int
    memory_limit: int

    @property
    def wait_us(self) -> int:
        """How long a new execution will wait for a process."""
        return self.waiting * self.mean_us // max(1, self.takers)

    def estimate(self, started: int) -> int:
        """When an execution will be done that began at `started`, or waits if that is 0."""
        begins = started or self.at + self.wait_us
        return max(begins + self.mean_us, self.at + _SOON_US)

    @property
    def clock_stopped(self) -> bool:
        """Nobody would finish what breaks."""
        return self.clock_age_us < 0 or self.clock_age_us > CLOCK_STOPPED_US

    @property
    def memory_full(self) -> bool:
        """Above three quarters nothing new is taken, so that outcomes can always be written."""
        return _is_full(self.memory_used, self.memory_limit)


class LoadMeter:
    """Reads the load; one round trip."""

    def __init__(self, store: ExecutionStore) -> None:
        self._store = store

    def read(self, agent: str, lane: Lane) -> Load:
        keys = self._store.keys
        waiting_key = keys.express if lane is Lane.EXPRESS else keys.queued
        taken_by, present_us = keys.takers(lane), PRESENT_US
        if lane is Lane.REMOTE:
            # Connections do not sign; those that have ended are taken from the list.
            waiting_key, taken_by, present_us = keys.waiting(agent), keys.consumers("agent", agent), 2**53
        reply = self._store.scripts(
            "load", [waiting_key, taken_by, keys.ticks, keys.stats], [agent, present_us]
        )
        at, waiting, takers, mean, clock_age = (int(value) for value in reply[:5])
        used, limit = self._memory()
        return Load(at, waiting, takers, mean or _UNMEASURED_US, clock_age, used, limit)

    def memory_full(self) -> bool:
        """The same without the round trip, unless it is more than a second since it was asked."""
        return _is_full(*self._memory())

    def _memory(self) -> tuple[int, int]:
        info = self._store.memory()
        return int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))


def _is_full(used: int, limit: int) -> bool:
    return limit > 0 and used * 4 > limit * 3
