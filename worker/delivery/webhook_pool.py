"""Collects new webhook notices and sends due ones, in threads of the clock's process.

Receivers may be slow, and the clock must keep ticking. Due notices are read from the outbox.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from worker.delivery.outbox import Notice, Receiver
from worker.store.outage import REST
from worker.store.task_pool import TaskPool

THREADS = 8
# Neither one slow receiver nor one buyer who names many receivers may block all threads.
MOST_OF_ONE_EXECUTION = 3
MOST_OF_ONE_HOST = 2
MOST_OF_ONE_WALLET = 2
# Shared by hosts that did not answer last time, and likewise by wallets that have paid nothing.
MOST_OF_FAILING = 4
MOST_OF_NEWCOMERS = 4
_A_MOMENT_US = 1_000_000
# Due notices examined to find some that may be sent.
_PAGE = 64
_MOST_PAGES = 32
_ROUND, _REFILL = "round", "refill"
_PAUSE = 0.05


class DueNotices(Protocol):
    def due(self, at: int, most: int = 50, start: int = 0) -> list[Notice]: ...


class NoticeSender(Protocol):
    @property
    def outbox(self) -> DueNotices: ...

    def collect(self, at: int) -> None: ...

    def receivers(self, notices: Sequence[Notice]) -> list[Receiver]: ...

    def send(self, notice: Notice) -> None: ...


class WebhookPool:
    """Collects new notices and sends those that are due."""

    def __init__(self, webhooks: NoticeSender, *, threads: int = THREADS, rest: float = REST) -> None:
        self._webhooks = webhooks
        # One slot more than threads, so that a round can be queued while all threads send.
        self._pool = TaskPool("webhook", threads, most=threads + 1, rest=rest, ended=self._refill)
        self._few = threads // 2
        # Seconds until the outbox is looked at again, if the last look left notices that may be sent.
        self._again: float | None = None
        self._at = 0

    def chore(self, at: int) -> None:
        """Called by the clock about once a second with the store's time."""
        self._at = at
        # A round that hit a bug must not delay the next ones.
        self._pool.begin(_ROUND, partial(self._round, at), rests=False)

    def _round(self, at: int) -> None:
        self._webhooks.collect(at)
        self._send_due(at)

    def _send_due(self, at: int) -> None:
        self._again = None
        for page in range(_MOST_PAGES):
            # Include notices just collected; notice_begin.lua decides whether each is due.
            notices = self._webhooks.outbox.due(at + _A_MOMENT_US, _PAGE, page * _PAGE)
            under_way = self._pool.under_way
            fresh = [each for each in notices if str(each) not in under_way]
            for notice, receiver in zip(fresh, self._webhooks.receivers(fresh), strict=True):
                send = partial(self._webhooks.send, notice)
                if not self._pool.begin(str(notice), send, groups=_groups(notice, receiver)):
                    self._again = _PAUSE
            if self._pool.full:
                self._again = 0.0
                return
            if len(notices) < _PAGE:
                return

    def _refill(self, ended: str) -> None:
        """Looks for more once half of the threads are free, not only at the next tick.

        What waits for its host or buyer is looked for when a call has ended, at most every `_PAUSE` seconds.
        """
        again = self._again
        if again is None or len(self._pool.under_way) > self._few or (again and ended in (_ROUND, _REFILL)):
            return
        self._pool.begin(_REFILL, partial(self._look_again, again), rests=False)

    def _look_again(self, pause: float) -> None:
        time.sleep(pause)
        self._send_due(self._at)

    @property
    def under_way(self) -> set[str]:
        return self._pool.under_way

    def close(self, grace_s: float) -> None:
        """Waits up to `grace_s` for open calls; the rest stays due for other clocks."""
        self._pool.close(grace_s)


def _groups(notice: Notice, receiver: Receiver) -> Mapping[str, int]:
    """The groups that a call belongs to, with the limit of concurrent calls of each."""
    groups = {
        f"execution {notice.execution}": MOST_OF_ONE_EXECUTION,
        f"host {receiver.host}": MOST_OF_ONE_HOST,
        f"wallet {receiver.wallet}": MOST_OF_ONE_WALLET,
    }
    if receiver.failing:
        groups["failing"] = MOST_OF_FAILING
    if receiver.newcomer:
        groups["newcomers"] = MOST_OF_NEWCOMERS
    return groups
