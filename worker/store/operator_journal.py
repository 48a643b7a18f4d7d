"""The operator's journal: every change made from the dashboard, by whom and when, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import redis

from worker.core.errors import Problem
from worker.store.data_model import Keys

DONE = "done"
_MOST_TEXT = 500


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One change. `number` counts from 1; without an outcome its process ended before there was one."""

    number: int
    at: int
    who: str
    address: str
    action: str
    subject: str
    detail: str = ""
    outcome: str = ""

    @property
    def is_done(self) -> bool:
        return self.outcome.startswith(DONE)


class OperatorJournal:
    """Lines in the store; a line is written before its change and gets its outcome afterwards."""

    def __init__(self, client: redis.Redis, keys: Keys, now: Callable[[], int]) -> None:
        self._client: Any = client
        self._key = keys.operator_journal
        self._now = now

    @contextmanager
    def change(self, who: str, address: str, action: str, subject: str, detail: str = "") -> Iterator[Change]:
        """Journals the change that the block makes, also when it is refused."""
        line = JournalLine(0, self._now(), who, address, action, subject, detail[:_MOST_TEXT])
        change = Change(int(self._client.rpush(self._key, _pack(line))))
        try:
            yield change
        except Problem as problem:
            change.outcome = f"refused: {problem.message}"
            raise
        except Exception:
            change.outcome = "failed: see the log"
            raise
        finally:
            self._client.lset(self._key, change.number - 1, _pack(line, change.outcome))

    def line(self, number: int) -> JournalLine | None:
        found = self._client.lindex(self._key, number - 1) if number > 0 else None
        return _read(number, found) if found else None

    def newest(self, most: int = 100, *, before: int = 0) -> list[JournalLine]:
        """Lines with numbers below `before` (0: all), newest first."""
        length = int(self._client.llen(self._key))
        end = min(before - 1, length) if before else length
        start = max(0, end - most)
        found = self._client.lrange(self._key, start, end - 1) if end > start else []
        return [_read(start + at + 1, raw) for at, raw in enumerate(found)][::-1]


@dataclass
class Change:
    """The change under way: its number in the journal, and what came of it so far."""

    number: int
    outcome: str = DONE


def _pack(line: JournalLine, outcome: str = "") -> str:
    fields = asdict(line) | {"outcome": outcome[:_MOST_TEXT]}
    del fields["number"]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _read(number: int, raw: bytes) -> JournalLine:
    return JournalLine(number, **json.loads(raw))
