"""Keeps leases renewed during facilitator calls: one thread for all calls of the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from worker.store.outage import note
from worker.store.pool import use

# How often the thread looks for renewals that are due.
_TICK_S = 0.2


@dataclass(eq=False)
class _Renewal:
    renew: Callable[[], object]
    every_s: float
    due: float


class Renewals:
    """The open calls of one process."""

    def __init__(self) -> None:
        self._open: set[_Renewal] = set()
        self._changed = threading.Condition()
        self._started = self._asleep = False

    @contextmanager
    def keep(self, renew: Callable[[], object], every_s: float) -> Iterator[None]:
        """Renews at this interval while the block runs."""
        mine = _Renewal(renew, every_s, time.monotonic() + every_s)
        with self._changed:
            self._open.add(mine)
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="leave-renew", daemon=True).start()
            elif self._asleep:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._open.discard(mine)

    def _run(self) -> None:
        use("paid")
        while True:
            with self._changed:
                self._asleep = not self._open
                self._changed.wait(None if self._asleep else _TICK_S)
                self._asleep = False
                now = time.monotonic()
                due = [each for each in self._open if each.due <= now]
            for each in due:
                self._renew(each)

    def _renew(self, renewal: _Renewal) -> None:
        with self._changed:
            if renewal not in self._open:
                return
        renewal.due = time.monotonic() + renewal.every_s
        try:
            renewal.renew()
        except Exception as error:  # the thread renews for all others, too
            note(error, "payment.renew")


_RENEWALS = Renewals()


@contextmanager
def renewing(renew: Callable[[], object], every_s: float) -> Iterator[None]:
    """Keeps other callers out during the call; the lease expires soon after this process dies."""
    with _RENEWALS.keep(renew, every_s):
        yield
