"""Connections to strangers' servers that are used again soon, instead of a new handshake for each call.

One is used only for an address that was checked for this call, only while its server has neither closed it
nor sent anything unasked, and for a minute at most, so that certificates are looked at again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from worker.core.sockets import is_quiet

# Scheme, host and port.
Place = tuple[str, str, int]

MOST = 256
MOST_OF_ONE_PLACE = 2
LIFE_S = 60.0


class KeptConnection(Protocol):
    """A connection with the address that it was made to, and when (monotonic)."""

    peer: str
    made: float
    sock: Any

    def close(self) -> None: ...


C = TypeVar("C", bound=KeptConnection)


class KeptConnections(Generic[C]):
    """Idle connections. Those to the place that was not called for longest leave first."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: OrderedDict[Place, list[C]] = OrderedDict()
        self._count = 0

    def take(self, place: Place, addresses: Sequence[str]) -> C | None:
        """Returns a usable connection to one of these addresses, which nobody else uses."""
        while True:
            with self._lock:
                if place not in self._idle:
                    return None
                found = self._remove(place, -1)
            young = found.made > self._clock() - LIFE_S
            if young and found.peer in addresses and found.sock is not None and is_quiet(found.sock):
                return found
            found.close()

    def keep(self, place: Place, connection: C) -> None:
        """Keeps a connection whose answer was read to its end."""
        dropped, old = [], self._clock() - LIFE_S
        with self._lock:
            same = self._idle.setdefault(place, [])
            same.append(connection)
            self._count += 1
            self._idle.move_to_end(place)
            if len(same) > MOST_OF_ONE_PLACE:
                dropped.append(self._remove(place, 0))
            while self._idle and (self._count > MOST or next(iter(self._idle.values()))[0].made <= old):
                dropped.append(self._remove(next(iter(self._idle)), 0))
        for each in dropped:
            each.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._count = self._idle, OrderedDict(), 0
        for same in idle.values():
            for each in same:
                each.close()

    def _remove(self, place: Place, at: int) -> C:
        same = self._idle[place]
        self._count -= 1
        removed = same.pop(at)
        if not same:
            del self._idle[place]
        return removed
