"""Keeps leases renewed during facilitator calls: a few threads for all calls of the process.

What an outage stopped is tried again with the next tick, because a lease may end soon.

A renewal that waits for the store must delay no other: a lease that ends while its call is open lets the
clock make the call again, and from then on no refusal of that payment is believed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import SimpleQueue

from worker.store.outage import note

# How often the thread looks for renewals that are due.
_TICK_S = 0.2
# Threads that renew. A short lease must not wait for many others.
_RENEWERS = 8


@dataclass(eq=False)
class _Renewal(AbstractContextManager[None]):
    """Renewed while its block runs."""

    of: Renewals
    renew: Callable[[], object]
    every_s: float
    due: float
    under_way: bool = False

    def __enter__(self) -> None:
        self.of.open(self)

    def __exit__(self, *_: object) -> None:
        self.of.close(self)


class Renewals:
    """The open calls of one process."""

    def __init__(self) -> None:
        self._open: set[_Renewal] = set()
        self._queue: SimpleQueue[_Renewal] = SimpleQueue()
        # With a plain lock a greenlet would let others run while it tells the thread.
        self._changed = threading.Condition()
        self._started = self._asleep = False

    def keep(self, renew: Callable[[], object], every_s: float, first: float | None = None) -> _Renewal:
        """Renews at this interval while the block runs; `first`: for the first time then (monotonic)."""
        return _Renewal(self, renew, every_s, time.monotonic() + every_s if first is None else first)

    def open(self, renewal: _Renewal) -> None:
        with self._changed:
            self._open.add(renewal)
            if not self._started:
                self._started = True
                self._start()
            elif self._asleep:
                self._changed.notify()

    def close(self, renewal: _Renewal) -> None:
        with self._changed:
            self._open.discard(renewal)

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
