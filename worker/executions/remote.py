"""Remote agents and runners as one part: what the clock has to do for them."""

from __future__ import annotations

from dataclasses import dataclass

from worker.executions.assignment import Assignment
from worker.executions.connections import Connections
from worker.executions.remote_store import RemoteStore
from worker.executions.runners import Runners

# How many of the clock's rounds pass between two looks at everything.
_HEAL_EVERY = 5


@dataclass
class Remote:
    """The rooms of remote work, put together."""

    store: RemoteStore
    connections: Connections
    assignment: Assignment
    runners: Runners
    _rounds: int = 0

    def attend(self, id: str) -> None:
        """An execution whose timer is due."""
        self.assignment.attend(id)

    def look(self, at: int) -> None:
        """About once a second: connections that lapsed, tries that are due, and now and then everything."""
        self.connections.sweep(at)
        self.runners.fire_retries(at)
        self._rounds += 1
        if self._rounds % _HEAL_EVERY == 0:
            self._heal(at)

    def _heal(self, at: int) -> None:
        found = [self.store.connection(epoch) for epoch in self.store.living(at)]
        known = [connection for connection in found if connection is not None]
        self.assignment.heal({each.name for each in known if each.kind == "agent"})
        self.runners.heal([each for each in known if each.kind == "runner"])
