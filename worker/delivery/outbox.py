"""The durable webhook outbox: pending notices and every delivery attempt.

The clock derives notices from the logs of executions that ended since its last pass and of running ones,
so a webhook is one more view of the log and no end is missed. Delivery is at least once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import redis

from worker.core.states import State
from worker.engine import events, record
from worker.engine.events import Event
from worker.engine.record import Execution
from worker.store.client import as_bytes, as_mapping, as_texts
from worker.store.data_model import Keys
from worker.store.outage import note
from worker.store.scripts import Scripts

_LUA = Path(__file__).parent / "lua"
# Send lease; longer than any call can take.
LEAVE_US = 60_000_000
# Executions may end in the same microsecond as the last one read.
_OVERLAP_US = 1_000_000
# Open executions per state that one pass checks for webhooks missing from the index.
_OLDER = 30
# Attempts per notice that the journal stores.
MOST_LINES = 40
_ATTEMPTS = " attempts"
# The schedule's longest pause is a day; a host not called for longer starts a new failure count.
_ANEW_US = 36 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Notice:
    """One notification to one webhook; `hook` counts from 0.

    `kind` is completed or failed, partial-N for a closed deliverable, or failed-N for a failure after which
    the seeker may retry; N is the sequence of the event.
    """

    execution: str
    kind: str
    hook: int

    def __str__(self) -> str:
        return f"{self.execution} {self.kind} {self.hook}"

    @classmethod
    def parse(cls, text: str) -> Notice:
        execution, kind, hook = text.split(" ")
        return cls(execution, kind, int(hook))

    @property
    def message_id(self) -> str:
        """The same for every attempt, so that receivers can detect duplicates."""
        return f"{self.execution}-{self.kind}-{self.hook}"

    @property
    def event(self) -> str:
        return self.kind.split("-")[0]

    @property
    def sequence(self) -> int:
        """Sequence of the notice's event; 0 means the last in the log."""
        return int(self.kind.partition("-")[2] or 0)


def kind_of(event: str, sequence: int) -> str:
    """The kind of a notice about one event in the middle of the log."""
    return f"{event}-{sequence}"


@dataclass(frozen=True, slots=True)
class LeasedNotice:
    """A notice that this process alone may send for a while, and what it tells.

    `attempt` counts from 1; `at` is the store's time; `event` is missing if its log was cut.
    """

    notice: Notice
    attempt: int
    at: int
    sequence: int
    event: Event | None
    execution: Execution

    @classmethod
    def read(cls, at: int, row: Sequence[Any]) -> LeasedNotice:
        """Reads one row of the answer of notice_begin.lua."""
        notice, sequence = Notice.parse(row[0].decode()), int(row[2])
        event = events.decode(notice.execution, sequence, row[3]) if row[3] else None
        return cls(notice, int(row[1]), at, sequence, event, record.decode(row[4]))


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt that began at `at` ended; `outcome` is ok, gone, failed or dropped."""

    notice: Notice
    at: int
    line: str
    host: str = "-"
    outcome: str = "dropped"
    next_at: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """Result and time (us) of one attempt."""

    at: int
    result: str

    @classmethod
    def parse(cls, text: str) -> AttemptLine:
        at, _, result = text.partition(" ")
        return cls(int(at), result)


@dataclass(frozen=True, slots=True)
class NoticeHistory:
    """A notice's entries in the journal."""

    notice: Notice
    attempts: int
    last: str
    lines: tuple[AttemptLine, ...] = ()
    due: int | None = None

    @classmethod
    def read(cls, name: str, texts: Mapping[str, str], due: float | None) -> NoticeHistory:
        """Reads a notice from the journal's hash, where its fields start with its name."""
        numbers = range(1, min(MOST_LINES, int(texts.get(f"{name} lines", 0))) + 1)
        return cls(
            Notice.parse(name),
            int(texts[f"{name}{_ATTEMPTS}"]),
            texts.get(f"{name} last", ""),
            tuple(AttemptLine.parse(texts[f"{name} line {number}"]) for number in numbers),
            None if due is None else int(due),
        )


@dataclass(frozen=True, slots=True)
class FailingHost:
    """A host that keeps failing; times are in microseconds."""

    host: str
    since: int
    last: int
    failures: int

    @classmethod
    def parse(cls, host: str, text: str) -> FailingHost:
        since, last, failures = text.split()
        return cls(host, int(since), int(last), int(failures))


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiver of a notice, and the buyer who requested it."""

    host: str
    wallet: str
    failing: bool = False
    newcomer: bool = False


def _host(hooks: bytes | None, number: int) -> str:
    targets = json.loads(hooks or b"[]")
    return (urlsplit(targets[number]["url"]).hostname or "") if number < len(targets) else ""


def _named(notices: Sequence[Notice]) -> dict[str, list[str]]:
    return {"executions": [each.execution for each in notices], "notices": [str(each) for each in notices]}


def _readable(at: int, row: Sequence[Any]) -> LeasedNotice | None:
    """None after a bug about this notice: all of them are leased by now, and the others must be sent."""
    try:
        return LeasedNotice.read(at, row)
    except Exception as error:
        note(error, "webhook", notice=row[0].decode())
        return None


def _packed(end: AttemptEnd) -> tuple[str, str, str, str, str]:
    again = "" if end.next_at is None else str(end.next_at)
    return str(end.notice), again, end.line, end.host, end.outcome


class Outbox:
    """Notices in the store."""

    def __init__(self, client: redis.Redis, keys: Keys, *, test_clock: bool = False) -> None:
        self._client = client
        self._keys = keys
        self._scripts = Scripts(client, keys, _LUA, test_clock=test_clock)
        # Start of the next page of each index.
        self._starts: dict[str, int] = {}

    def add(self, notices: Sequence[Notice]) -> int:
        return int(self._scripts.value("notice_add", **_named(notices)))

    def ended_since_last_look(self, at: int, most: int = 200) -> Iterator[tuple[list[str], int]]:
        """Yields pages of ended executions and the cursor to store after each; see `looked`."""
        after = int(as_bytes(self._client.get(self._keys.outbox_cursor) or b"0"))
        since, passed, last = max(0, after - _OVERLAP_US), 0, 0
        while True:
            rows = cast(
                list[tuple[object, float]],
                self._client.zrangebyscore(
                    self._keys.ended, since, at, start=passed, num=most, withscores=True
                ),
            )
            if rows:
                last = int(rows[-1][1])
                yield [as_bytes(id).decode() for id, _ in rows], last
            if len(rows) < most:
                if last and at - _OVERLAP_US > last:
                    yield [], at - _OVERLAP_US  # so that these are not read on every pass
                return
            # The next page starts at the last row's time, after the rows of that time already read.
            passed = sum(score == last for _, score in rows) + (passed if last == since else 0)
            since = last

    def with_hooks(self, ids: Sequence[str]) -> list[str]:
        """Those of these executions that have webhooks."""
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hstrlen(self._keys.record(id), "hooks")
            return [id for id, length in zip(ids, pipe.execute(), strict=True) if length]

    def looked(self, until: int) -> None:
        self._client.set(self._keys.outbox_cursor, until)

    def at_work(self, most: int = 200) -> list[tuple[str, int, int]]:
        """Begun executions with webhooks that have not ended: (id, number of webhooks, last event seen).

        Each call reads one page of the index and continues where the last one stopped. Ended
        executions are removed from it.
        """
        self._index_older()
        ids = self._page(self._keys.hooked, most)
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hmget(self._keys.record(id), "hooks", "state")
                pipe.hget(self._keys.hooks(id), "looked")
            replies = pipe.execute()
        found: list[tuple[str, int, int]] = []
        over: list[str] = []
        for id, (hooks, state), looked in zip(ids, replies[::2], replies[1::2], strict=True):
            if not hooks or State(state.decode()).terminal:
                over.append(id)
            else:
                found.append((id, len(json.loads(hooks)), int(looked or 0)))
        if over:
            self._client.zrem(self._keys.hooked, *over)
        return found

    def _index_older(self) -> None:
        """Indexes begun executions with webhooks that were taken by a process of an older release."""
        states = (State.RUNNING, State.BLOCKED, State.PENDING)
        ids = [id for state in states for id in self._page(self._keys.by_state(state), _OLDER)]
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hmget(self._keys.record(id), "hooks", "first_started")
            rows = zip(ids, pipe.execute(), strict=True)
        begun = {id: int(started) for id, (hooks, started) in rows if hooks and started}
        if begun:
            self._client.zadd(self._keys.hooked, begun, nx=True)

    def _page(self, index: str, most: int) -> list[str]:
        """The next ids of an index, wrapping around at its end."""
        start = self._starts.get(index, 0)
        ids = as_texts(self._client.zrange(index, start, start + most - 1))
        self._starts[index] = start + most if len(ids) == most else 0
        return ids

    def looked_at(self, execution: str, sequence: int) -> None:
        """Records that the events up to this one have their notices."""
        self._client.hset(self._keys.hooks(execution), "looked", sequence)

    def due(self, at: int, most: int = 50, start: int = 0) -> list[Notice]:
        found = self._client.zrangebyscore(self._keys.outbox, "-inf", at, start=start, num=most)
        return [Notice.parse(text) for text in as_texts(found)]

    def hosts(self, notices: Sequence[Notice]) -> list[tuple[str, bool]]:
        """Each notice's host ('' if the notice is gone), and whether that host is failing."""
        if not notices:
            return []
        with self._client.pipeline(transaction=False) as pipe:
            for notice in notices:
                pipe.hget(self._keys.record(notice.execution), "hooks")
            hosts = [_host(hooks, each.hook) for each, hooks in zip(notices, pipe.execute(), strict=True)]
        failing = self._client.hmget(self._keys.failing_hosts, hosts)
        return [
            (host, failure is not None)
            for host, failure in zip(hosts, cast(list[object], failing), strict=True)
        ]

    def begin(self, notices: Sequence[Notice]) -> list[LeasedNotice]:
        """Leases those that are still due; what nothing can be told of any more is removed."""
        at, rows = self._scripts.value("notice_begin", lease=LEAVE_US, **_named(notices))
        return [leased for row in rows if (leased := _readable(int(at), row)) is not None]

    def end(self, ends: Sequence[AttemptEnd]) -> list[int]:
        """Returns since when the host of each has been failing, or 0."""
        since = self._scripts.value(
            "notice_end",
            executions=[each.notice.execution for each in ends],
            ends=[part for each in ends for part in _packed(each)],
            most=MOST_LINES,
            forgotten=_ANEW_US,
        )
        return [int(each) for each in since]

    def journal(self, execution: str) -> list[NoticeHistory]:
        raw = as_mapping(self._client.hgetall(self._keys.hooks(execution)))
        texts = {name: value.decode() for name, value in raw.items()}
        names = sorted(name.removesuffix(_ATTEMPTS) for name in texts if name.endswith(_ATTEMPTS))
        due = {name: self._client.zscore(self._keys.outbox, name) for name in names}
        return [NoticeHistory.read(name, texts, due[name]) for name in names]

    def having(self, executions: Sequence[str]) -> list[str]:
        """Those executions that have a journal of webhooks."""
        with self._client.pipeline(transaction=False) as pipe:
            for id in executions:
                pipe.exists(self._keys.hooks(id))
            found = pipe.execute()
        return [id for id, exists in zip(executions, found, strict=True) if exists]

    def pending(self, most: int = 50) -> list[Notice]:
        """Notices that wait for an attempt; the next one comes first."""
        return [Notice.parse(text) for text in as_texts(self._client.zrange(self._keys.outbox, 0, most - 1))]

    def resend(self, notice: Notice) -> bool:
        """Queues the notice again for the operator, whatever its state; False if it does not exist."""
        again = self._scripts.value("notice_again", id=notice.execution, notice=str(notice), hook=notice.hook)
        return bool(again)

    def failing(self) -> list[FailingHost]:
        """Failing hosts, longest-failing first."""
        raw = as_mapping(self._client.hgetall(self._keys.failing_hosts))
        rows = [FailingHost.parse(host, stored.decode()) for host, stored in raw.items()]
        return sorted(rows, key=lambda row: row.since)
