"""Collects new webhook notices and sends due ones, in threads of the clock's process.

One thread asks the store, for all calls at once: it records those that have ended, and leases what the others
send next. The others only call receivers, which may be slow while the clock must keep ticking.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeVar

from worker.delivery.outbox import AttemptEnd, LeasedNotice, Notice, Receiver
from worker.store.outage import REST, Resting, is_outage, note

THREADS = 8
# Notices leased for each thread: a lease outlasts the longest call before its own, and that one.
_AHEAD = 2
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
_MOST_LOOKED_AT = 32 * _PAGE

T = TypeVar("T", Notice, AttemptEnd)
R = TypeVar("R")


class DueNotices(Protocol):
    def due(self, at: int, most: int = 50, start: int = 0) -> list[Notice]: ...


class NoticeSender(Protocol):
    @property
    def outbox(self) -> DueNotices: ...

    def collect(self, at: int) -> None: ...

    def receivers(self, notices: Sequence[Notice]) -> list[Receiver]: ...

    def begin(self, notices: Sequence[Notice]) -> list[LeasedNotice]: ...

    def send(self, leased: LeasedNotice) -> AttemptEnd: ...

    def end(self, ends: Sequence[AttemptEnd]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Tick:
    """The clock's turn; `at` is the store's time."""

    at: int


@dataclass(frozen=True, slots=True)
class _Called:
    """A thread that is free again. Without an end the notice's lease runs out, and it is sent again."""

    notice: Notice
    end: AttemptEnd | None


_CLOSE = None
_News = _Tick | _Called | None
# A due notice and the groups that its call will belong to, with the limit of each.
_Waiting = tuple[Notice, Mapping[str, int]]


class WebhookPool:
    """Collects new notices and sends those that are due."""

    def __init__(self, webhooks: NoticeSender, *, threads: int = THREADS, rest: float = REST) -> None:
        self._webhooks = webhooks
        self._most = threads * _AHEAD
        self._senders = ThreadPoolExecutor(threads, thread_name_prefix="webhook")
        self._resting = Resting(rest)
        self._news: SimpleQueue[_News] = SimpleQueue()
        self._manager: threading.Thread | None = None
        self._closed = False
        self._at = 0
        # Notices that are being sent, with the groups that they belong to, and how many each group has.
        self._open: dict[str, Mapping[str, int]] = {}
        self._held: Counter[str] = Counter()
        # Due notices that have been looked at and are not leased yet.
        self._waiting: list[_Waiting] = []
        # Notices that were not leased when it was tried, mostly because they are due in a moment only.
        self._refused: set[str] = set()
        # Due notices that were passed over because they rest or were refused, and whether more may follow.
        self._passed = 0
        self._more = False

    def chore(self, at: int) -> None:
        """Called by the clock about once a second with the store's time."""
        if self._closed:
            return
        if self._manager is None:
            self._manager = threading.Thread(target=self._manage, name="webhooks", daemon=True)
            self._manager.start()
        self._news.put(_Tick(at))

    @property
    def under_way(self) -> set[str]:
        """Notices that are being sent."""
        return set(self._open)

    def close(self, grace_s: float) -> None:
        """Begins no more calls, and waits up to `grace_s` for open ones."""
        self._closed = True
        self._news.put(_CLOSE)
        if self._manager is not None:
            self._manager.join(grace_s)
        self._senders.shutdown(wait=False)

    def _manage(self) -> None:
        """Runs until the pool is closed and the last call has been recorded."""
        while self._open or not self._closed:
            news = [self._news.get()]
            while not self._news.empty():
                news.append(self._news.get())
            try:
                self._record([each for each in news if isinstance(each, _Called)])
                self._look([each.at for each in news if isinstance(each, _Tick)])
                self._begin_calls()
            except Exception as error:
                note(error, "webhook")

    def _record(self, called: Sequence[_Called]) -> None:
        ends = [each.end for each in called if each.end is not None]
        if ends:
            self._tried(self._end, ends)
        for each in called:
            self._let_go(str(each.notice))

    def _end(self, ends: Sequence[AttemptEnd]) -> Sequence[AttemptEnd]:
        self._webhooks.end(ends)
        return ends

    def _let_go(self, name: str) -> None:
        self._held.subtract(self._open.pop(name))
        self._held = +self._held

    def _look(self, ticks: Sequence[int]) -> None:
        """At a tick, collects new notices and forgets what was read before it."""
        if ticks and not self._closed:
            self._at = ticks[-1]
            self._waiting, self._passed, self._more = [], 0, True
            self._refused.clear()
            try:
                self._webhooks.collect(self._at)
            except Exception as error:  # what was collected before is sent all the same
                note(error, "webhook")

    def _begin_calls(self) -> None:
        while not self._closed and (chosen := self._choose()):
            begun = self._tried(self._webhooks.begin, chosen)
            for leased in begun:
                self._senders.submit(self._call, leased)
            for name in {str(each) for each in chosen} - {str(each.notice) for each in begun}:
                self._let_go(name)
                self._refused.add(name)

    def _call(self, leased: LeasedNotice) -> None:
        end = None
        try:
            end = self._given_back(leased) if self._closed else self._webhooks.send(leased)
        except Exception as error:
            note(error, "webhook", task=leased.notice.execution)
        self._news.put(_Called(leased.notice, end))

    @staticmethod
    def _given_back(leased: LeasedNotice) -> AttemptEnd:
        return AttemptEnd(leased.notice, leased.at, "not sent: the process stops", next_at=leased.at)

    def _choose(self) -> list[Notice]:
        """The next notices for which there is a thread, and room in their groups."""
        chosen, self._waiting = self._fitting(self._waiting)
        while self._more and len(self._open) < self._most and self._looked_at < _MOST_LOOKED_AT:
            found, rest = self._fitting(self._page())
            chosen += found
            self._waiting += rest
        return chosen

    def _fitting(self, notices: list[_Waiting]) -> tuple[list[Notice], list[_Waiting]]:
        """Takes a place for those that have one, and returns them and the others."""
        chosen: list[Notice] = []
        rest: list[_Waiting] = []
        for at, (notice, groups) in enumerate(notices):
            if len(self._open) >= self._most:
                return chosen, rest + notices[at:]
            if any(self._held[group] >= most for group, most in groups.items()):
                rest.append((notice, groups))
                continue
            self._open[str(notice)] = groups
            self._held.update(groups.keys())
            chosen.append(notice)
        return chosen, rest

    @property
    def _looked_at(self) -> int:
        """Due notices that come before those not yet read."""
        return len(self._waiting) + self._passed

    def _page(self) -> list[_Waiting]:
        """The next due notices."""
        known, self._more = self._open.keys() | {str(notice) for notice, _ in self._waiting}, False
        try:
            # Include notices just collected; notice_begin.lua decides whether each is due.
            found = self._webhooks.outbox.due(self._at + _A_MOMENT_US, _PAGE, self._looked_at)
            passed = {name for name in map(str, found) if name in self._resting or name in self._refused}
            fresh = [each for each in found if str(each) not in known and str(each) not in passed]
            rows = zip(fresh, self._webhooks.receivers(fresh), strict=True)
            self._passed += len(passed)
            self._more = len(found) == _PAGE and bool(fresh or passed)
            return [(notice, _groups(notice, receiver)) for notice, receiver in rows]
        except Exception as error:  # what was chosen before it is sent all the same
            note(error, "webhook")
            return []

    def _tried(self, act: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T]) -> Sequence[R]:
        """Acts on all at once; after a bug on each alone, and the one that it strikes rests."""
        try:
            return act(items)
        except Exception as error:
            if len(items) > 1 and not is_outage(error):
                return [found for each in items for found in self._tried(act, [each])]
            for each in items:
                notice = each if isinstance(each, Notice) else each.notice
                if not note(error, "webhook", task=notice.execution):
                    self._resting.add(str(notice))
            return []


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
