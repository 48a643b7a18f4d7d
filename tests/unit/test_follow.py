"""Following a log: the terminal event is never missed, whenever it is written between two reads."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import pytest

from worker.executions.events import Event, Kind
from worker.executions.keys import Keys
from worker.executions.service import Executions
from worker.executions.states import State as ExecutionState

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
KINDS = [Kind.EXECUTION_CREATED, Kind.EXECUTION_STARTED, Kind.EXECUTION_COMPLETED]


class State:
    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal


class Log:
    """A store with one log, which has grown to `lengths[n]` events when it is asked for the n-th time."""

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


class Awake:
    """A watcher whose every wait ends with news."""

    closed = False

    def watch(self, channel: str) -> Awake:
        return self

    def __enter__(self) -> Awake:
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
    watcher: Any = Awake()
    return Executions(
        store, catalog=absent, files=absent, watcher=watcher, push=lambda id: None, timeout_us=1
    )


@pytest.mark.parametrize(
    "lengths",
    [
        (1, 1, 3),  # empty read, then the end, seen in the record first
        (1, 1, 1, 3),  # the end between two looks at the record
        (1, 2, 2, 3),
        (2, 3),
        (3,),
    ],
)
def test_the_terminal_event_is_seen_wherever_it_falls(lengths: tuple[int, ...]) -> None:
    """Whatever read the end of the work falls between, follow yields every event once and then stops."""
    executions = following(Log(*lengths))
    seen = [event.sequence for batch in executions.follow(ID) for event in batch]
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("lengths", [(1, 1, 3), (1, 1, 1, 3), (2, 2, 3)])
def test_a_wait_says_that_the_execution_ended(lengths: tuple[int, ...]) -> None:
    """An execution that ends while somebody waits is told as ended, not as still under way."""
    assert following(Log(*lengths)).wait(ID, 5.0)


def test_following_from_behind_the_end_stops_at_once() -> None:
    """Whoever has seen the terminal event already gets nothing more, and is not kept waiting."""
    log = Log(3)
    assert list(following(log).follow(ID, after=3)) == []
    assert log.asked <= 3


def test_a_wait_ends_with_its_time() -> None:
    """An execution that goes on is told as not ended when the time is over."""
    began = time.monotonic()
    assert not following(Log(2)).wait(ID, 0.05)
    assert time.monotonic() - began < 5
