"""Who is connected: remote agents and runners, what they hold and what they offer."""

from __future__ import annotations

import json
from dataclasses import dataclass

from worker.remote.jobs import JobStore
from worker.remote.store import Kind, RemoteStore


@dataclass(frozen=True, slots=True)
class Connected:
    """One connection. `at_work`: executions of an agent, or 1 for a runner with a job."""

    kind: Kind
    name: str
    consumer: str
    epoch: str
    tools: tuple[str, ...]
    at_work: int


class ConnectionList:
    """Reads the connections of all processes."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    def connected(self) -> list[Connected]:
        """Living connections by kind and name."""
        busy = {name.decode() for name in self._store.client.hkeys(self._store.keys.busy)}
        found = [
            each
            for epoch in self._store.living(self._store.now())
            if (each := self._read(epoch, busy)) is not None
        ]
        return sorted(found, key=lambda each: (each.kind, each.name, each.consumer))

    def count(self) -> int:
        """Living connections, without reading them."""
        return len(self._store.living(self._store.now()))

    def published_tools(self) -> dict[str, list[str]]:
        """Tools by the runner that published their schemas."""
        published = JobStore(self._store).published()
        return {runner: [tool["id"] for tool in published[runner]["tools"]] for runner in sorted(published)}

    def waiting(self, agent: str) -> int:
        """Executions that wait for this remote agent."""
        return self._store.length(agent)

    def _read(self, epoch: str, busy: set[str]) -> Connected | None:
        connection = self._store.connection(epoch)
        if connection is None:
            return None
        at_work = len(self._store.held(epoch)) if connection.kind == "agent" else int(epoch in busy)
        tools = tuple(json.loads(connection.tools))
        return Connected(connection.kind, connection.name, connection.consumer, epoch, tools, at_work)
