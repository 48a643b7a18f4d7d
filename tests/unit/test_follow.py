"""Following a log: the terminal event is never missed, whenever it is written between two reads."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import pytest

from worker.core.states import State as ExecutionState
from worker.engine.events import Event, Kind
from worker.engine.service import Executions
from worker.store.data_model import Keys

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
KINDS = [Kind.EXECUTION_CREATED, Kind.EXECUTION_STARTED, Kind.EXECUTION_COMPLETED]


class State:
    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal


class Log:
    """A store with one log of `lengths[n]` events at the n-th read."""

    def __init__(self, *lengths: int) -> None:
        self.keys = Keys()
        self._lengths = list(lengths)
        self._length = 0
        self.asked = 0

    def events(self, id: str, after: int = 0, limit: int = 1000) -> list[Event]:
        self._ask()
        return [
            Event(id, at + 1, 1, kind, "", 0, 0, b"{}")
            for at, kind in enumerate(KINDS[: self._length])
            if at >= after
        ]

    def state(self, id: str) -> ExecutionState:
        self._ask()
        return ExecutionState.COMPLETED if self._length == len(KINDS) else ExecutionState.RUNNING

    def _ask(self) -> None:
        self._length = self._lengths.pop(0) if self._lengths else self._length
        self.asked += 1


class EagerWatcher:
    """A watcher whose every wait returns at once with news."""

    closed = False

    def watch(self, channel: str) -> EagerWatcher:
        return self

    def __enter__(self) -> EagerWatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def wait(self, seconds: float) -> bool:
        return True


def following(log: Log) -> Executions:
    absent: Any = None
    store: Any = log
    watcher: Any = EagerWatcher()
    return Executions(
        store, catalog=absent, files=absent, watcher=watcher, push=lambda id: None, timeout_us=1
    )


@pytest.mark.parametrize(
    "lengths",
    [
        (1, 1, 3),  # empty read, then the end, seen in the record first
        (1, 1, 1, 3),  # the end between two reads of the record
        (1, 2, 2, 3),
        (2, 3),
        (3,),
    ],
)
def test_terminal_event_is_seen_at_any_position(lengths: tuple[int, ...]) -> None:
    """Between whichever reads the work ends, follow yields every event once and then stops."""
    executions = following(Log(*lengths))
    seen = [event.sequence for batch in executions.follow(ID) for event in batch]
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("lengths", [(1, 1, 3), (1, 1, 1, 3), (2, 2, 3)])
def test_wait_reports_the_end(lengths: tuple[int, ...]) -> None:
    """An execution that ends during the wait is reported as ended."""
    assert following(Log(*lengths)).wait(ID, 5.0)


def test_following_past_the_end_stops() -> None:
    """A reader that has seen the terminal event gets nothing more and does not wait."""
    log = Log(3)
    assert list(following(log).follow(ID, after=3)) == []
    assert log.asked <= 3


def test_wait_times_out() -> None:
    """An execution that is still running after the time-out is reported as not ended."""
    began = time.monotonic()
    assert not following(Log(2)).wait(ID, 0.05)
    assert time.monotonic() - began < 5
