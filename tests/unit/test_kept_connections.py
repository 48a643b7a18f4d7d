"""Kept connections to strangers' servers: few, young, and only to addresses that were just checked."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from worker.delivery.kept_connections import LIFE_S, MOST, MOST_OF_ONE_PLACE, KeptConnections, Place

PLACE = ("https", "a.example", 443)


class Connection:
    """A connection to a server that stays silent."""

    def __init__(self, made: float = 0.0, peer: str = "192.0.2.1") -> None:
        self.made, self.peer = made, peer
        self.sock, self.server = socket.socketpair()
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self.sock.close()
        self.server.close()


class Setup:
    """Kept connections at a time that the test moves."""

    def __init__(self) -> None:
        self.now = 1.0
        self.kept: KeptConnections[Connection] = KeptConnections(clock=lambda: self.now)

    def keep(self, *, place: Place = PLACE, peer: str = "192.0.2.1") -> Connection:
        connection = Connection(self.now, peer)
        self.kept.keep(place, connection)
        return connection


@pytest.fixture(name="setup")
def _setup() -> Iterator[Setup]:
    setup = Setup()
    yield setup
    setup.kept.close()


def test_connection_is_taken_once_and_by_its_place(setup: Setup) -> None:
    """Two callers never share one, and neither scheme, host nor port may differ."""
    connection = setup.keep()
    for other in (("http", "a.example", 443), ("https", "b.example", 443), ("https", "a.example", 8443)):
        assert setup.kept.take(other, ["192.0.2.1"]) is None
    assert setup.kept.take(PLACE, ["192.0.2.2", "192.0.2.1"]) is connection
    assert setup.kept.take(PLACE, ["192.0.2.1"]) is None
    connection.close()


def test_unusable_connections_are_closed(setup: Setup) -> None:
    """To another address, too old, closed by its server, or with something on it that nobody asked for."""
    moved = setup.keep()
    assert setup.kept.take(PLACE, ["192.0.2.9"]) is None and moved.closed
    old = setup.keep()
    setup.now += LIFE_S
    assert setup.kept.take(PLACE, ["192.0.2.1"]) is None and old.closed
    ended, talks = setup.keep(), setup.keep()
    ended.server.close()
    talks.server.send(b"x")
    assert setup.kept.take(PLACE, ["192.0.2.1"]) is None and ended.closed and talks.closed


def test_few_are_kept(setup: Setup) -> None:
    """At most two of one place and a fixed number of all; the oldest places' leave, and old ones too."""
    of_one = [setup.keep() for _ in range(MOST_OF_ONE_PLACE + 1)]
    assert [each.closed for each in of_one] == [True] + [False] * MOST_OF_ONE_PLACE
    others = [setup.keep(place=("https", f"{number}.example", 443)) for number in range(MOST)]
    assert all(each.closed for each in of_one) and not any(each.closed for each in others)
    setup.now += LIFE_S
    setup.keep()
    assert all(each.closed for each in others)
