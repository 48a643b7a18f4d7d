"""Connections of remote agents and runners: open, renew, hand over, end.

The process that holds a connection renews its lease. On an orderly shutdown the connection waits one
lease for its consumer to reconnect, to any process, and loses nothing; if it ends in any other way, its
work goes to other connections. Ending is one durable fact, then one script per affected item; the clock
completes unfinished ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import structlog

from worker.core.ids import new_id
from worker.remote.store import Connection, Kind, RemoteStore
from worker.store.each import each

log = structlog.get_logger()

Lost = Callable[[Connection], None]


class Connections:
    """Manages the connections of this process and those that other processes left behind."""

    def __init__(self, store: RemoteStore, *, lease_us: int, lost: dict[Kind, Lost]) -> None:
        self._store = store
        self._lease_us = lease_us
        self._lost = lost

    def open(self, kind: Kind, name: str, consumer: str) -> Connection:
        """Opens a connection for this consumer; ends its previous one first, unless that was handed over."""
        connection = Connection(new_id(), kind, name, consumer)
        answer, epoch = self._store.connect(connection, self._lease_us)
        if answer == "adopted":
            log.info("connection.adopted", kind=kind, name=name)
            return self._store.connection(epoch) or connection
        if epoch:
            log.info("connection.superseded", kind=kind, name=name)
            self.clear(epoch)
        return connection

    def renew(self, epochs: list[str]) -> list[str]:
        """Renews the leases of this process's connections; returns the epochs that have ended."""
        return self._store.renew(epochs, self._lease_us)

    def hand_over(self, connection: Connection, written: int = 0) -> bool:
        """Hands the connection and its unsent messages over when this process shuts down."""
        return self._store.hand_over(connection, self._lease_us, written)

    def close(self, connection: Connection, *, only_lapsed: bool = False) -> None:
        """Ends the connection when its stream has ended."""
        if self._store.end(connection, only_lapsed=only_lapsed):
            self.clear(connection.epoch)

    def clear(self, epoch: str) -> None:
        """Reassigns the work of an ended connection. Idempotent."""
        connection = self._store.connection(epoch) or Connection(epoch, "agent", "", "")
        self._lost[connection.kind](connection)
        self._store.forget(connection, json.loads(connection.tools))

    def sweep(self, at: int) -> None:
        """For the clock: ends lapsed connections and clears ended ones."""
        each(self._store.lapsed(at), self._end)

    def _end(self, epoch: str) -> None:
        connection = self._store.connection(epoch)
        if connection is not None:
            self._store.end(connection, only_lapsed=True)
        self.clear(epoch)

    def connected(self, kind: Kind, name: str) -> bool:
        return bool(self._store.connections_of(kind, name))
