"""Keeps leases renewed during facilitator calls: a few threads for all calls of the process.

What an outage stopped is tried again with the next tick, because a lease may end soon.

A renewal that waits for the store must delay no other: a lease that ends while its call is open lets the
clock make the call again, and from then on no refusal of that payment is believed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from worker.store.outage import note

# How often the thread looks for renewals that are due.
_TICK_S = 0.2
# Threads that renew. A short lease must not wait for many others.
_RENEWERS = 8


@dataclass(eq=False)
class _Renewal:
    renew: Callable[[], object]
    every_s: float
    due: float
    under_way: bool = False


class Renewals:
    """The open calls of one process."""

    def __init__(self) -> None:
        self._open: set[_Renewal] = set()
        self._queue: SimpleQueue[_Renewal] = SimpleQueue()
        self._changed = threading.Condition()
        self._started = self._asleep = False

    @contextmanager
    def keep(self, renew: Callable[[], object], every_s: float, first: float | None = None) -> Iterator[None]:
        """Renews at this interval while the block runs; `first`: for the first time then (monotonic)."""
        mine = _Renewal(renew, every_s, time.monotonic() + every_s if first is None else first)
        with self._changed:
            self._open.add(mine)
            if not self._started:
                self._started = True
                self._start()
            elif self._asleep:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._open.discard(mine)

    def _start(self) -> None:
        for run in (self._run, *[self._renew_queued] * _RENEWERS):
            threading.Thread(target=run, name="leave-renew", daemon=True).start()

    def _run(self) -> None:
        """Queues renewals that are due."""
        while True:
            with self._changed:
                self._asleep = not self._open
                self._changed.wait(None if self._asleep else _TICK_S)
                self._asleep = False
                now = time.monotonic()
                due = [each for each in self._open if each.due <= now and not each.under_way]
                for each in due:
                    each.due, each.under_way = now + each.every_s, True
            for each in due:
                self._queue.put(each)

    def _renew_queued(self) -> None:
        while True:
            renewal = self._queue.get()
            with self._changed:
                ended = renewal not in self._open
            if not ended:
                self._renew(renewal)

    def _renew(self, renewal: _Renewal) -> None:
        try:
            renewal.renew()
        except Exception as error:  # the thread renews for others, too
            if note(error, "payment.renew"):
                renewal.due = min(renewal.due, time.monotonic() + _TICK_S)
        finally:
            renewal.under_way = False


_RENEWALS = Renewals()


def renewing(
    renew: Callable[[], object], every_s: float, first: float | None = None
) -> AbstractContextManager[None]:
    """Keeps other callers out during the call; the lease expires soon after this process dies."""
    return _RENEWALS.keep(renew, every_s, first)
