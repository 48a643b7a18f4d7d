"""What an event stream shows, and when."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from worker.delivery.event_streams import released
from worker.engine.events import Event, Kind

PROGRESS, CHUNK, STEP = Kind.PROGRESS, Kind.OUTPUT_CHUNK, Kind.STEP_COMPLETED
DONE, FAILED = Kind.EXECUTION_COMPLETED, Kind.EXECUTION_FAILED
OPEN = {PROGRESS, DONE, FAILED}


class FinishedLog:
    """A complete log, returned in batches."""

    def __init__(self, *kinds: str, batch: int = 100) -> None:
        self._events = [Event("x", at, at, kind, "", 0, 0, b"{}") for at, kind in enumerate(kinds, start=1)]
        self._batch = batch

    def events(self, id: str, after: int = 0, limit: int = 1_000) -> list[Event]:
        return self._events[after : after + limit]

    def follow(self, id: str, after: int = 0) -> Iterator[list[Event]]:
        for start in range(after, len(self._events), self._batch):
            yield self._events[start : start + self._batch]
            yield []


def shown(log: FinishedLog, after: int = 0, *, sealed: bool = True) -> list[int]:
    return [event.sequence for batch in released(log, "x", after, sealed=sealed) for event in batch]


def test_prepaid_stream_is_shown_live() -> None:
    """If the payment came before the work, nothing is held back or reordered."""
    assert shown(FinishedLog(PROGRESS, CHUNK, STEP, DONE, batch=1), sealed=False) == [1, 2, 3, 4]


def test_content_is_released_at_the_end() -> None:
    """Text and tool results are held until the settlement, then sent in order before the end."""
    log = FinishedLog(CHUNK, PROGRESS, STEP, PROGRESS, CHUNK, DONE, batch=1)
    assert shown(log) == [2, 4, 1, 3, 5, 6]


def test_unpaid_stream_reveals_nothing() -> None:
    """After a failure the held text is never sent."""
    assert shown(FinishedLog(CHUNK, PROGRESS, STEP, FAILED, batch=1)) == [2, 4]


def test_heartbeats_continue_while_content_is_held() -> None:
    """Batches that contain only held content become heartbeats."""
    assert list(released(FinishedLog(CHUNK, batch=1), "x", 0, sealed=True)) == [[], []]


def test_resumed_reader_gets_the_held_content() -> None:
    """A reader that saw progress but not the earlier text gets that text; one that saw it does not."""
    log = FinishedLog(CHUNK, PROGRESS, CHUNK, DONE)
    assert shown(log, 2) == [1, 3, 4]
    assert shown(log, 1) == [2, 3, 4]
    assert shown(log, 3) == [4]


kinds = st.lists(st.sampled_from([PROGRESS, CHUNK, STEP]), max_size=30)


@given(kinds, st.integers(1, 7), st.integers(0, 40), st.integers(1, 7))
def test_reconnecting_loses_no_event(middle: list[str], batch: int, breaks: int, other: int) -> None:
    """A reader that stops anywhere and resumes from its last event sees every event."""
    log = FinishedLog(*middle, DONE, batch=batch)
    seen: list[int] = []
    for batch_ in released(log, "x", 0, sealed=True):
        for event in batch_:
            if len(seen) < breaks:
                seen.append(event.sequence)
    if len(seen) == breaks:
        rest = FinishedLog(*middle, DONE, batch=other)
        seen += shown(rest, seen[-1] if seen else 0)
    assert set(seen) == set(range(1, len(middle) + 2))
