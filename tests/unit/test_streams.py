"""What a stream may show and when."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from worker.delivery.streams import released
from worker.executions.events import Event, Kind

PROGRESS, CHUNK, STEP = Kind.PROGRESS, Kind.OUTPUT_CHUNK, Kind.STEP_COMPLETED
DONE, FAILED = Kind.EXECUTION_COMPLETED, Kind.EXECUTION_FAILED
OPEN = {PROGRESS, DONE, FAILED}


class Written:
    """A log that is complete, handed out in batches."""

    def __init__(self, *kinds: str, batch: int = 100) -> None:
        self._events = [Event("x", at, at, kind, "", 0, 0, b"{}") for at, kind in enumerate(kinds, start=1)]
        self._batch = batch

    def events(self, id: str, after: int = 0, limit: int = 1_000) -> list[Event]:
        return self._events[after : after + limit]

    def follow(self, id: str, after: int = 0) -> Iterator[list[Event]]:
        for start in range(after, len(self._events), self._batch):
            yield self._events[start : start + self._batch]
            yield []


def shown(log: Written, after: int = 0, *, sealed: bool = True) -> list[int]:
    return [event.sequence for batch in released(log, "x", after, sealed=sealed) for event in batch]


def test_what_was_paid_first_is_shown_as_it_comes() -> None:
    """Nothing is held back and nothing reordered where the money came before the work."""
    assert shown(Written(PROGRESS, CHUNK, STEP, DONE, batch=1), sealed=False) == [1, 2, 3, 4]


def test_content_comes_with_the_end() -> None:
    """Text and tool results wait for the settlement, then come in order before the end."""
    log = Written(CHUNK, PROGRESS, STEP, PROGRESS, CHUNK, DONE, batch=1)
    assert shown(log) == [2, 4, 1, 3, 5, 6]


def test_unpaid_work_gives_nothing_away() -> None:
    """After a failure the text that was made is never shown."""
    assert shown(Written(CHUNK, PROGRESS, STEP, FAILED, batch=1)) == [2, 4]


def test_heartbeats_go_on() -> None:
    """Batches of nothing but held content become heartbeats."""
    assert list(released(Written(CHUNK, batch=1), "x", 0, sealed=True)) == [[], []]


def test_a_resumed_reader_gets_what_was_held_before() -> None:
    """Whoever saw progress but not the text before it gets that text; whoever saw the text does not."""
    log = Written(CHUNK, PROGRESS, CHUNK, DONE)
    assert shown(log, 2) == [1, 3, 4]
    assert shown(log, 1) == [2, 3, 4]
    assert shown(log, 3) == [4]


kinds = st.lists(st.sampled_from([PROGRESS, CHUNK, STEP]), max_size=30)


@given(kinds, st.integers(1, 7), st.integers(0, 40), st.integers(1, 7))
def test_no_break_loses_an_event(middle: list[str], batch: int, breaks: int, other: int) -> None:
    """Read to any point, then resumed from the last event seen: in the end everything was seen."""
    log = Written(*middle, DONE, batch=batch)
    seen: list[int] = []
    for batch_ in released(log, "x", 0, sealed=True):
        for event in batch_:
            if len(seen) < breaks:
                seen.append(event.sequence)
    if len(seen) == breaks:
        rest = Written(*middle, DONE, batch=other)
        seen += shown(rest, seen[-1] if seen else 0)
    assert set(seen) == set(range(1, len(middle) + 2))
