"""What scripts tell requests that wait for an execution: to settle it, or to look at its record.

Scripts call `tell` (lua/_engine.lua), which publishes in two places. The process that claimed the execution
is subscribed to one channel for all its requests. A request for an execution that another process claimed
listens on the record's channel. Neither hears of what decides nothing, such as progress.

To the process that claimed it, `settle` may come with the lease of the settlement call.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable

from worker.core.ids import new_id
from worker.engine.watch import Source, Watch, Watcher

SETTLE, LOOK = b"settle", b"look"
# Of so many executions it is remembered that something was told which nobody heard.
_MOST_UNHEARD = 1_024


class Decisions(Watch):
    """One request's part of what is told."""

    def __init__(self, source: Source, channel: str, *, payment: int = 0) -> None:
        super().__init__(source, channel)
        # Nothing told after this moment (monotonic) is missed.
        self.began = float("inf")
        self._told: set[bytes] = set()
        # The number of the payment that this request has claimed, and the lease of its settlement call.
        self._payment = payment
        self.lease = b""

    def take(self) -> set[bytes]:
        """What was told since the last call."""
        told, self._told = self._told, set()
        return told

    def hear(self, message: bytes) -> None:
        self._told.add(message)
        self.wake()

    def take_lease(self, lease: bytes) -> bool:
        """Whether the lease is of this request's own payment; nobody else may then use it."""
        if not self.claimed(_payment_of(lease)):
            return False
        self.lease = lease
        return True

    def claimed(self, payment: int) -> bool:
        return payment == self._payment

    def begin(self, since: float | None = None) -> None:
        """`since`: from when on nothing is missed, if that was earlier."""
        if self.began < float("inf"):
            self._told.add(LOOK)
        else:
            self.began = time.monotonic() if since is None else since
        self.wake()


class OwnChannel(Watch):
    """The channel of this process; passes each message on to the requests for the execution that it names.

    `give_back` is called with leases whose request waits no longer.
    """

    def __init__(self, watcher: Watcher, prefix: str) -> None:
        super().__init__(watcher, f"{prefix}:asker:{new_id()[-12:]}")
        self.give_back: Callable[[str, int], None] = lambda id, payment: None
        self._requests: dict[str, set[Decisions]] = defaultdict(set)
        self._lock = threading.Lock()
        self._joined = self.confirmed = False
        # Since this moment (monotonic) all was heard, but what was told of these executions.
        self._since = float("inf")
        self._unheard: OrderedDict[str, None] = OrderedDict()

    def waits(self, id: str, payment: int) -> bool:
        """Whether the request that claimed this payment listens."""
        with self._lock:
            return self.confirmed and any(each.claimed(payment) for each in self._requests.get(id, ()))

    def decisions(self, id: str, payment: int) -> Decisions:
        return Decisions(self, id, payment=payment)

    def add(self, watch: Watch) -> None:
        if not isinstance(watch, Decisions):
            raise TypeError("only requests listen here")
        with self._lock:
            self._requests[watch.channel].add(watch)
            join, self._joined = not self._joined, True
            confirmed, since = self.confirmed, self._since
            missed = watch.channel in self._unheard
        if join:
            self._source.add(self)
        if confirmed:
            watch.begin(since)
        if missed:
            watch.hear(LOOK)

    def drop(self, watch: Watch) -> None:
        if not isinstance(watch, Decisions):
            return
        with self._lock:
            requests = self._requests[watch.channel]
            requests.discard(watch)
            if not requests:
                del self._requests[watch.channel]
            lease = watch.lease
        if lease:
            self.give_back(watch.channel, _payment_of(lease))

    def hear(self, message: bytes) -> None:
        id, _, told = message.partition(b" ")
        what, _, lease = told.partition(b" ")
        with self._lock:
            requests = list(self._requests.get(id.decode(), ()))
            if not requests:
                self._miss(id.decode())
            taken = any(request.take_lease(lease) for request in requests if lease)
        if lease and not taken:
            self.give_back(id.decode(), _payment_of(lease))
        for request in requests:
            request.hear(what)

    def _miss(self, id: str) -> None:
        self._unheard[id] = None
        if len(self._unheard) > _MOST_UNHEARD:
            self._unheard.popitem(last=False)
            self._since = time.monotonic()

    def begin(self, since: float | None = None) -> None:
        with self._lock:
            self.confirmed, self._since = True, time.monotonic()
            self._unheard.clear()
            requests = [each for some in self._requests.values() for each in some]
        for request in requests:
            request.begin()


def _payment_of(lease: bytes) -> int:
    """The number of the payment that a lease is for."""
    return int(lease.split(b" ", 1)[0])
