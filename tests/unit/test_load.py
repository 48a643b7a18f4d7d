"""Load reporting."""

from __future__ import annotations

import pytest

from worker.engine.load import Load
from worker.engine.memory_guard import MemoryGuard, limit_of

SECOND = 1_000_000
NOW = 1_000 * SECOND


def load(**changes: int) -> Load:
    figures = {
        "at": NOW,
        "waiting": 0,
        "takers": 1,
        "mean_us": 10 * SECOND,
        "clock_age_us": 0,
    }
    return Load(**(figures | changes))


def test_eta_of_queued_work_follows_the_queue() -> None:
    """Queued work is divided among the processes, then the mean run time is added."""
    busy = load(waiting=6, takers=3, running=3)
    assert busy.estimate(0) == NOW + 70 * SECOND // 3 + 10 * SECOND


def test_eta_of_running_work_counts_from_its_start() -> None:
    """The estimate does not move while the work runs, however often it is requested."""
    started = NOW - 4 * SECOND
    assert load(waiting=50).estimate(started) == started + 10 * SECOND
    assert load(at=NOW + 3 * SECOND).estimate(started) == started + 10 * SECOND


def test_eta_of_overdue_work_is_never_in_the_past() -> None:
    """Overdue work may end at any moment."""
    assert load().estimate(NOW - 60 * SECOND) == NOW + SECOND


def test_missing_tick_means_stopped_clock() -> None:
    """Without a tick, or with none for ten seconds, the clock counts as stopped."""
    assert load(clock_age_us=-1).clock_stopped and load(clock_age_us=10 * SECOND + 1).clock_stopped
    assert not load(clock_age_us=9 * SECOND).clock_stopped


def test_a_full_store_takes_nothing_new_until_well_below() -> None:
    """Above three quarters no new work is taken, unpaid work stops earlier; both resume ten percent lower."""
    report = {"used_memory": 0, "maxmemory": 100}
    guard = MemoryGuard(lambda: report)

    def at(used: int) -> tuple[bool, bool]:
        report["used_memory"] = used
        return guard.full_for_unpaid(), guard.full()

    found = [at(used) for used in (60, 61, 75, 76, 66, 65, 51, 50)]
    assert found == [
        (False, False),
        (True, False),
        (True, False),
        (True, True),
        (True, True),
        (True, False),
        (True, False),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("report", "capacity", "limit"),
    [
        ({"maxmemory": 100, "total_system_memory": 1000}, 0, 100),
        ({"maxmemory": 0, "total_system_memory": 1000}, 0, 500),
        ({"maxmemory": 0, "total_system_memory": 1000}, 50, 50),
        ({"maxmemory": 100}, 500, 100),
        ({}, 0, 0),
    ],
)
def test_every_store_has_a_limit(report: dict[str, int], capacity: int, limit: int) -> None:
    """The store's own limit, the operator's, else half of its machine; a store without figures has none."""
    assert limit_of(report, capacity) == limit


def test_a_store_that_says_nothing_is_not_full() -> None:
    """Quotas for unpaid work still apply there."""
    assert not MemoryGuard(dict).full()


def test_nothing_waits_for_a_free_process() -> None:
    """Work that runs elsewhere or is being verified delays nothing while a process is free."""
    assert load(takers=3, running=1, verifying=1).wait_us == 0
    assert load(takers=3, running=2, verifying=1).wait_us == 10 * SECOND // 3


def test_the_lane_sets_the_pace() -> None:
    """Queued work ahead of a quick capability may be slow, so the mean of the whole lane counts."""
    assert load(waiting=3, running=1, lane_us=20 * SECOND).wait_us == 80 * SECOND


def test_as_much_may_wait_as_is_done_in_time() -> None:
    """The limit is the free processes plus what each process completes in the allowed time."""
    assert load(takers=2, running=1).most_ahead(30 * SECOND) == 1 + 6
    assert load(takers=2, running=2).most_ahead(0) == 0
