"""A waiting request's calls: one at a time, and none is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from worker.hiring.own_calls import OwnCalls


def test_a_settlement_asked_for_during_another_one_is_tried_again() -> None:
    """The lease was taken when the first one asked, and given back before that was known."""
    spawned: deque[Callable[[], object]] = deque()
    calls = OwnCalls(spawned.append)
    calls.settle(lambda: calls.settle(lambda: None))
    assert calls.settling and calls.settled_once
    spawned.popleft()()
    assert not spawned and not calls.settling
    assert calls.look and not calls.settled_once


def test_a_settlement_that_was_too_late_is_tried_once() -> None:
    """Somebody else settles: the record tells when."""
    spawned: deque[Callable[[], object]] = deque()
    calls = OwnCalls(spawned.append)
    calls.settle(lambda: None)
    spawned.popleft()()
    assert calls.look and calls.settled_once
