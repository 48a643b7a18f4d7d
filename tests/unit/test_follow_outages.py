"""Following a log while the store comes and goes, and when the process is about to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

import pytest
import redis

from worker.executions import service
from worker.executions.events import Event, Kind
from worker.executions.keys import Keys
from worker.executions.service import Executions
from worker.executions.states import State
from worker.executions.store import ExecutionStore
from worker.executions.watch import Watcher

ID = "01890000-0000-7000-8000-000000000000"


def event(sequence: int, kind: Kind = Kind.PROGRESS) -> Event:
    return Event(ID, sequence, sequence, kind, "", 0, 0, b"{}")


class Store:
    """A log, and what happens just before each look at it."""

    def __init__(self, *looks: Callable[[Store], None]) -> None:
        self.keys = Keys()
        self.log: list[Event] = [event(1, Kind.EXECUTION_CREATED)]
        self.now = State.RUNNING
        self.looks = list(looks)

    def _look(self) -> None:
        if self.looks:
            self.looks.pop(0)(self)

    def events(self, id: str, after: int = 0, limit: int = 1000) -> list[Event]:
        self._look()
        return self.log[after : after + limit]

    def state(self, id: str) -> State:
        self._look()
        return self.now


class Silence:
    """A watcher that never has news and never makes anybody wait."""

    def watch(self, channel: str) -> Silence:
        return self

    closed = False

    def __enter__(self) -> Silence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def wait(self, seconds: float) -> bool:
        return False


def executions(store: Store, silence: Silence | None = None) -> Executions:
    unused = cast(Any, None)
    return Executions(
        cast(ExecutionStore, store),
        catalog=unused,
        files=unused,
        watcher=cast(Watcher, silence or Silence()),
        push=unused,
        timeout_us=0,
    )


def nothing(store: Store) -> None:
    return


def end(store: Store) -> None:
    store.log.append(event(len(store.log) + 1, Kind.EXECUTION_COMPLETED))
    store.now = State.COMPLETED


def away(store: Store) -> None:
    raise redis.ConnectionError("away")


def broken(store: Store) -> None:
    raise redis.ResponseError("WRONGTYPE Operation against a key")


def seen(store: Store, **options: Any) -> list[int]:
    return [event.sequence for batch in executions(store).follow(ID, **options) for event in batch]


def test_an_absent_store_is_waited_for() -> None:
    """A store that is away at any look costs no event and repeats none."""
    assert seen(Store(away, nothing, away, nothing, away, away, end)) == [1, 2]


def test_a_store_that_stays_away_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience has an end, and it is a quiet one."""
    monkeypatch.setattr(service, "_PATIENCE", 0.05)
    assert seen(Store(nothing, *[away] * 1_000_000)) == [1]


def test_patience_is_no_longer_than_the_caller_s() -> None:
    """Who waits until a moment is answered at that moment, store or no store."""
    began = time.monotonic()
    assert seen(Store(nothing, *[away] * 10_000_000), until=began + 0.05) == [1]
    assert time.monotonic() - began < 5


def test_a_process_about_to_end_lets_its_streams_go() -> None:
    """Streams end early, requests that wait for a moment get their moment."""
    silence = Silence()
    silence.closed = True
    assert [len(batch) for batch in executions(Store(), silence).follow(ID)] == [1]
    assert [len(batch) for batch in executions(Store(nothing, *[away] * 1000), silence).follow(ID)] == [1]
    began = time.monotonic()
    list(executions(Store(), silence).follow(ID, until=began + 0.1))
    assert time.monotonic() - began >= 0.1


def test_other_errors_are_not_hidden() -> None:
    """What is no absence is a bug and is raised."""
    with pytest.raises(redis.ResponseError):
        seen(Store(nothing, broken))
