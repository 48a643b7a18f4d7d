"""How busy the worker says it is."""

from __future__ import annotations

from worker.executions.load import Load

SECOND = 1_000_000
NOW = 1_000 * SECOND


def load(**changes: int) -> Load:
    given = {
        "at": NOW,
        "waiting": 0,
        "takers": 1,
        "mean_us": 10 * SECOND,
        "clock_age_us": 0,
        "memory_used": 1,
        "memory_limit": 0,
    }
    return Load(**(given | changes))


def test_work_that_waits_is_done_after_the_queue() -> None:
    """Each process takes its share of what waits, then the work takes what such work took."""
    assert load(waiting=6, takers=3).estimate(0) == NOW + 20 * SECOND + 10 * SECOND


def test_work_under_way_is_counted_from_its_start() -> None:
    """The estimate stands still while the work goes on, however often somebody asks."""
    started = NOW - 4 * SECOND
    assert load(waiting=50).estimate(started) == started + 10 * SECOND
    assert load(at=NOW + 3 * SECOND).estimate(started) == started + 10 * SECOND


def test_work_that_takes_longer_is_never_done_in_the_past() -> None:
    """What is overdue may end at any moment."""
    assert load().estimate(NOW - 60 * SECOND) == NOW + SECOND


def test_a_clock_that_never_ticked_has_stopped() -> None:
    """No tick, or none for ten seconds, means that nobody finishes what breaks."""
    assert load(clock_age_us=-1).clock_stopped and load(clock_age_us=10 * SECOND + 1).clock_stopped
    assert not load(clock_age_us=9 * SECOND).clock_stopped


def test_three_quarters_of_the_memory_are_full() -> None:
    """Nothing new is taken above; a store without a limit is never full."""
    assert load(memory_used=76, memory_limit=100).memory_full
    assert not load(memory_used=75, memory_limit=100).memory_full
    assert not load(memory_used=10**9).memory_full
