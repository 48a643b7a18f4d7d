"""The durable outbox of webhooks: what is to be told to whom, and every attempt at it.

Notices come from the logs: the clock looks at what ended since it last looked, and at what runs. So a
webhook is one more view of the log, and nothing that ended is forgotten. Sending is at least once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import redis

from worker.executions.keys import Keys
from worker.executions.scripts import Scripts
from worker.executions.states import State
from worker.store import as_bytes, as_mapping, as_texts

_LUA = Path(__file__).parent / "lua"
# Longer than a call can take, whatever the receiver does.
LEAVE_US = 60_000_000
# Executions may end within the same microsecond as the last one looked at.
_OVERLAP_US = 1_000_000
# How many attempts at one notice the journal shows.
MOST_LINES = 40
# The schedule's longest pause is a day: a host that was left alone for longer begins anew.
_ANEW_US = 36 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell one webhook, `hook` counting from 0.

    `kind` is completed or failed, partial-N for a closed deliverable, or failed-N for a failure after
    which the seeker may ask again; N is the sequence of the event.
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
        """The same for every attempt: receivers tell repeats by it."""
        return f"{self.execution}-{self.kind}-{self.hook}"

    @property
    def event(self) -> str:
        return self.kind.split("-")[0]

    @property
    def sequence(self) -> int:
        """Of the event that the notice tells of; 0 means the log's last."""
        return int(self.kind.partition("-")[2] or 0)


@dataclass(frozen=True, slots=True)
class Attempted:
    """What the journal says of a notice: each line is a time in microseconds and what came of it."""

    notice: Notice
    attempts: int
    last: str
    lines: tuple[str, ...] = ()
    due: int | None = None


@dataclass(frozen=True, slots=True)
class FailingHost:
    """A host that has not taken anything for a while; times are microseconds."""

    host: str
    since: int
    last: int
    failures: int


class Outbox:
    """Notices in the store."""

    def __init__(self, client: redis.Redis, keys: Keys, *, test_clock: bool = False) -> None:
        self._client = client
        self._keys = keys
        clock = keys.test_clock if test_clock else None
        self._scripts = Scripts(client, test_clock=clock, folder=_LUA, common=_LUA / "_common.lua")

    def add(self, execution: str, notices: Iterable[Notice]) -> int:
        keys = [self._keys.outbox, self._keys.hooks(execution)]
        return int(self._scripts("notice_add", keys, [str(notice) for notice in notices]))

    def ended_since_last_look(self, at: int, most: int = 200) -> Iterator[tuple[list[str], int]]:
        """Executions that ended, page by page, and where the next look begins; see `looked`."""
        after = int(as_bytes(self._client.get(self._keys.outbox_cursor) or b"0"))
        start = last = 0
        while True:
            rows = cast(
                list[tuple[object, float]],
                self._client.zrangebyscore(
                    self._keys.ended,
                    max(0, after - _OVERLAP_US),
                    at,
                    start=start,
                    num=most,
                    withscores=True,
                ),
            )
            if rows:
                last = int(rows[-1][1])
                yield [as_bytes(id).decode() for id, _ in rows], last
            if len(rows) < most:
                if last and at - _OVERLAP_US > last:
                    yield [], at - _OVERLAP_US  # so that these are not read again and again
                return
            start += most

    def looked(self, until: int) -> None:
        self._client.set(self._keys.outbox_cursor, until)

    def at_work(self, most: int = 1_000) -> list[tuple[str, int, int]]:
        """What is under way for somebody who wants to be told: (id, webhooks, events looked at so far)."""
        ids: list[str] = []
        for state in (State.RUNNING, State.BLOCKED, State.PENDING):
            ids += as_texts(self._client.zrevrange(self._keys.by_state(state), 0, most - 1))
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hget(self._keys.record(id), "hooks")
            hooks = pipe.execute()
        wanted = [(id, len(json.loads(told))) for id, told in zip(ids, hooks, strict=True) if told]
        with self._client.pipeline(transaction=False) as pipe:
            for id, _ in wanted:
                pipe.hget(self._keys.hooks(id), "looked")
            looked = pipe.execute()
        return [(id, count, int(at or 0)) for (id, count), at in zip(wanted, looked, strict=True)]

    def looked_at(self, execution: str, sequence: int) -> None:
        """The events up to this one have their notices."""
        self._client.hset(self._keys.hooks(execution), "looked", sequence)

    def due(self, at: int, most: int = 50) -> list[Notice]:
        found = self._client.zrangebyscore(self._keys.outbox, "-inf", at, start=0, num=most)
        return [Notice.parse(text) for text in as_texts(found)]

    def begin(self, notice: Notice) -> tuple[int, int] | None:
        """The number of this attempt and the store's time; None when it is not to be sent now."""
        keys = [self._keys.outbox, self._keys.hooks(notice.execution)]
        reply = self._scripts("notice_begin", keys, [str(notice), LEAVE_US, notice.hook])
        return (int(reply[0]), int(reply[1])) if int(reply[0]) else None

    def end(self, notice: Notice, *, next_at: int | None, line: str, host: str, what: str) -> int:
        """`what` is ok, gone, failed or dropped. Since when the host has been failing; 0: it is not."""
        keys = [self._keys.outbox, self._keys.hooks(notice.execution), self._keys.failing_hosts]
        when = "" if next_at is None else next_at
        args = [str(notice), when, line, host, what, notice.hook, MOST_LINES, _ANEW_US]
        return int(self._scripts("notice_end", keys, args))

    def drop(self, notice: Notice) -> None:
        """Its execution is gone, and the journal with it."""
        self._client.zrem(self._keys.outbox, str(notice))

    def journal(self, execution: str) -> list[Attempted]:
        raw = as_mapping(self._client.hgetall(self._keys.hooks(execution)))
        texts = {name: value.decode() for name, value in raw.items()}
        found = []
        for name in sorted(name.removesuffix(" attempts") for name in texts if name.endswith(" attempts")):
            numbers = range(1, min(MOST_LINES, int(texts.get(f"{name} lines", 0))) + 1)
            lines = tuple(texts[f"{name} line {number}"] for number in numbers)
            due = self._client.zscore(self._keys.outbox, name)
            found.append(
                Attempted(
                    Notice.parse(name),
                    int(texts[f"{name} attempts"]),
                    texts.get(f"{name} last", ""),
                    lines,
                    None if due is None else int(due),
                )
            )
        return found

    def resend(self, notice: Notice) -> bool:
        """The operator wants it sent once more, whatever became of it; False: there is no such notice."""
        keys = [self._keys.outbox, self._keys.hooks(notice.execution)]
        return bool(self._scripts("notice_again", keys, [str(notice), notice.hook]))

    def failing(self) -> list[FailingHost]:
        """The hosts that fail now, the longest first."""
        raw = as_mapping(self._client.hgetall(self._keys.failing_hosts))
        rows = [FailingHost(host, *map(int, told.split())) for host, told in raw.items()]
        return sorted(rows, key=lambda row: row.since)
