"""Remote agents and runners as one part: their chores for the clock."""

from __future__ import annotations

from dataclasses import dataclass

from worker.remote.assignment import Assignment
from worker.remote.connections import Connections
from worker.remote.runners import Runners
from worker.remote.store import RemoteStore
from worker.store.each import each

# Clock rounds between two complete checks.
_HEAL_EVERY = 5


@dataclass
class RemoteWork:
    """Groups the parts for remote agents and runners."""

    store: RemoteStore
    connections: Connections
    assignment: Assignment
    runners: Runners
    _rounds: int = 0

    def attend(self, id: str) -> None:
        """Handles an execution whose timer is due."""
        self.assignment.attend(id)

    def look(self, at: int) -> None:
        """Runs about once a second: lapsed connections, due retries, now and then a complete check."""
        self._rounds += 1
        chores = [self.connections.sweep, self.runners.fire_retries]
        if self._rounds % _HEAL_EVERY == 0:
            chores.append(self._heal)
        each(chores, lambda chore: chore(at))

    def _heal(self, at: int) -> None:
        found = [self.store.connection(epoch) for epoch in self.store.living(at)]
        known = [connection for connection in found if connection is not None]
        self.assignment.heal({each.name for each in known if each.kind == "agent"})
        self.runners.heal([each for each in known if each.kind == "runner"])
