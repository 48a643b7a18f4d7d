"""Connections of remote agents and runners: opened, kept alive, handed over, ended.

A connection's process renews its lease. When the process leaves in order, the connection waits one lease
for its consumer to come back, wherever that is, and nothing of it is lost; when it ends in any other way,
what hung on it goes to others. Ending is one fact and then one script for each thing that hung on it; the
clock finishes what was begun.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import structlog

from worker.executions.remote_store import Connection, Kind, RemoteStore
from worker.ids import new_id

log = structlog.get_logger()

Lost = Callable[[Connection], None]


class Connections:
    """What a process does with connections, its own and those that were left behind."""

    def __init__(self, store: RemoteStore, *, lease_us: int, lost: dict[Kind, Lost]) -> None:
        self._store = store
        self._lease_us = lease_us
        self._lost = lost

    def open(self, kind: Kind, name: str, consumer: str) -> Connection:
        """A connection for this consumer. The one it still had is ended first, unless it was handed over."""
        connection = Connection(new_id(), kind, name, consumer)
        what, epoch = self._store.connect(connection, self._lease_us)
        if what == "adopted":
            log.info("connection.adopted", kind=kind, name=name)
            return self._store.connection(epoch) or connection
        if epoch:
            log.info("connection.superseded", kind=kind, name=name)
            self.clear(epoch)
        return connection

    def keep(self, epochs: list[str]) -> list[str]:
        """Renews the leases of this process's connections; returns those that have ended."""
        return self._store.keep(epochs, self._lease_us)

    def part(self, connection: Connection, written: int = 0) -> bool:
        """This process leaves; another may go on with the connection, and with what is not yet written."""
        return self._store.part(connection, self._lease_us, written)

    def close(self, connection: Connection, *, only_lapsed: bool = False) -> None:
        """The stream has ended."""
        if self._store.hang_up(connection, only_lapsed=only_lapsed):
            self.clear(connection.epoch)

    def clear(self, epoch: str) -> None:
        """Hands on what hung on a connection that has ended. May be repeated."""
        connection = self._store.connection(epoch) or Connection(epoch, "agent", "", "")
        self._lost[connection.kind](connection)
        self._store.forget(connection, json.loads(connection.tools))

    def sweep(self, at: int) -> None:
        """For the clock: ends what has lapsed and clears what was ended."""
        for epoch in self._store.lapsed(at):
            connection = self._store.connection(epoch)
            if connection is not None:
                self._store.hang_up(connection, only_lapsed=True)
            self.clear(epoch)

    def connected(self, kind: Kind, name: str) -> bool:
        return bool(self._store.connections_of(kind, name))
