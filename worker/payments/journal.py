"""Reads the money journal, and the report over all of it with the counters of the same moment."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis

from worker.engine.events import iso
from worker.payments.report import JournalReport, PaymentRow, Totals
from worker.store.data_model import Keys
from worker.store.money_fields import fee_wallet

PAGE = 5_000
GROUPS = ("seeker", "agent", "day")
# Stands for the agent of an execution past its retention.
REMOVED = "(removed)"
# Lines are in the order of their times, unless the store's clock was set back, at most by this.
_SET_BACK_US = 24 * 3600 * 1_000_000


@dataclass(frozen=True)
class Snapshot:
    """Journal and counters at one moment."""

    books: JournalReport
    counters: dict[str, int]
    gathered: dict[str, int]


DAY_US = 86_400_000_000


def newest_days(books: JournalReport, now: int, days: int) -> dict[str, Totals]:
    """Totals of the last days by the day of their claim, oldest first, also of days without a payment."""
    today = now // DAY_US
    found = {day: Totals() for day in range(today - days + 1, today + 1)}
    for row in reversed(books.rows.values()):
        day = row.claimed_at // DAY_US
        if day < today - days:  # claims are in order, to within what clocks differ
            break
        if day in found:
            found[day].add(row)
    return {_date(day): totals for day, totals in found.items()}


@cache
def _date(day: int) -> str:
    return iso(day * DAY_US)[:10]


class JournalReader:
    """Reads the journal's new lines only: those read before never change."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._lock = threading.Lock()
        self._books = JournalReport()
        self._read = 0

    def snapshot(self) -> Snapshot:
        """Reads counters and the journal's length together, then the lines up to it."""
        keys = self._keys
        with self._lock:
            with self._client.pipeline(transaction=True) as pipe:
                pipe.llen(keys.journal)
                pipe.hgetall(keys.sums)
                pipe.hgetall(keys.wallets)
                length, sums, wallets = pipe.execute()
            self._read_up_to(int(length))
            counters = {name.decode(): int(value) for name, value in sums.items()}
            named = ((fee_wallet(name.decode()), value) for name, value in wallets.items())
            fees = {wallet: int(value) for wallet, value in named if wallet is not None}
            return Snapshot(self._books, counters, {name: fee for name, fee in fees.items() if fee})

    def lines(self, since: int = 0) -> Iterator[str]:
        """Every line, oldest first, or all that were written since this time (us), and some before."""
        length, early = int(self._client.llen(self._keys.journal)), since - _SET_BACK_US
        first = bisect_left(range(length), early, key=self._time_of) if since else 0
        for page in self._pages(first, length):
            yield from page

    def lines_of(self, id: str, created: int) -> Iterator[str]:
        """The lines of one execution that was created then (us), or of a wallet's fees, oldest first."""
        return (line for line in self.lines(created) if line.split(" ", 3)[2] == id)

    def _time_of(self, position: int) -> int:
        line: Any = self._client.lindex(self._keys.journal, position)
        return int(line.split(b" ", 1)[0])

    def grouping(self, by: str, books: JournalReport) -> Callable[[PaymentRow], str]:
        """The group of each payment in a report by seeker, agent or day."""
        if by == "seeker":
            return lambda row: row.payer
        if by == "day":
            return lambda row: _date(row.claimed_at // DAY_US)
        agents = self.agents(sorted({id for id, _ in books.rows}))
        return lambda row: agents.get(row.id, REMOVED)

    def agents(self, ids: Sequence[str]) -> dict[str, str]:
        """The agent of each execution that is still kept."""
        agents: dict[str, str] = {}
        for start in range(0, len(ids), PAGE):
            with self._client.pipeline(transaction=False) as pipe:
                for id in ids[start : start + PAGE]:
                    pipe.hget(self._keys.record(id), "agent")
                found = pipe.execute()
            agents |= {id: agent.decode() for id, agent in zip(ids[start:], found, strict=False) if agent}
        return agents

    def _read_up_to(self, length: int) -> None:
        if length < self._read:  # another store, or one that lost its last writes
            self._books, self._read = JournalReport(), 0
        for page in self._pages(self._read, length):
            self._books.read(page)
            self._read += len(page)

    def _pages(self, first: int, length: int) -> Iterator[list[str]]:
        for start in range(first, length, PAGE):
            found: Any = self._client.lrange(self._keys.journal, start, min(start + PAGE, length) - 1)
            yield [line.decode() for line in found]
