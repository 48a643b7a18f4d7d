"""Following a log during store outages and process shutdown."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

import pytest
import redis

from worker.core.states import State
from worker.engine import service
from worker.engine.events import Event, Kind
from worker.engine.service import Executions
from worker.engine.transitions import ExecutionStore
from worker.engine.watch import Watcher
from worker.store.data_model import Keys

ID = "01890000-0000-7000-8000-000000000000"


def event(sequence: int, kind: Kind = Kind.PROGRESS) -> Event:
    return Event(ID, sequence, sequence, kind, "", 0, 0, b"{}")


class Store:
    """A log, and a hook before each read."""

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


class SilentWatcher:
    """A watcher that never has news and never blocks."""

    def watch(self, channel: str) -> SilentWatcher:
        return self

    closed = False

    def __enter__(self) -> SilentWatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def wait(self, seconds: float) -> bool:
        return False


def executions(store: Store, silence: SilentWatcher | None = None) -> Executions:
    unused = cast(Any, None)
    return Executions(
        cast(ExecutionStore, store),
        catalog=unused,
        files=unused,
        watcher=cast(Watcher, silence or SilentWatcher()),
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


def test_outage_is_waited_out() -> None:
    """A store outage at any read loses no event and repeats none."""
    assert seen(Store(away, nothing, away, nothing, away, away, end)) == [1, 2]


def test_long_outage_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the longest wait the stream ends without an error."""
    monkeypatch.setattr(service, "_PATIENCE", 0.05)
    assert seen(Store(nothing, *[away] * 1_000_000)) == [1]


def test_waiting_respects_the_callers_timeout() -> None:
    """A waiter with a time-out is answered in time, with or without the store."""
    began = time.monotonic()
    assert seen(Store(nothing, *[away] * 10_000_000), until=began + 0.05) == [1]
    assert time.monotonic() - began < 5


def test_stopping_process_releases_its_streams() -> None:
    """On shutdown streams end early; requests with a time-out keep theirs."""
    silence = SilentWatcher()
    silence.closed = True
    assert [len(batch) for batch in executions(Store(), silence).follow(ID)] == [1]
    assert [len(batch) for batch in executions(Store(nothing, *[away] * 1000), silence).follow(ID)] == [1]
    began = time.monotonic()
    list(executions(Store(), silence).follow(ID, until=began + 0.1))
    assert time.monotonic() - began >= 0.1


def test_other_errors_are_raised() -> None:
    """Any error that is not an outage is a bug and is raised."""
    with pytest.raises(redis.ResponseError):
        seen(Store(nothing, broken))
