"""Figures of the dashboard: percentiles, success rates, money by day, and rules in words."""

from __future__ import annotations

from worker.core.states import State
from worker.doors.dashboard_policy import conditions
from worker.engine.activity import Bucket, percentiles, success_rate
from worker.payments.journal import DAY_US, newest_days
from worker.payments.report import JournalReport
from worker.policy.judge import Condition
from worker.policy.terms import Glob, Predicate

KEY = "eip155:84532/0x036cbd53842c5426634e7929541ec2318f3dcf7e/0x" + "11" * 20 + "/0x" + "22" * 32


def test_percentiles_are_values_that_occurred() -> None:
    """By nearest rank, also for one value; clocks that differ do not make them negative."""
    assert percentiles(range(1, 101)) == {50: 50, 90: 90, 99: 99}
    assert percentiles([-5]) == {50: 0, 90: 0, 99: 0}
    assert percentiles([]) == {}


def test_success_counts_what_completed_or_failed() -> None:
    """Cancelled and open work says nothing."""
    counts = {State.COMPLETED: 3, State.FAILED: 1, State.CANCELLED: 7, State.RUNNING: 2}
    assert success_rate([Bucket(0, counts)]) == 0.75
    assert success_rate([Bucket(0, {State.CANCELLED: 7})]) is None


def test_money_by_day_has_days_without_money() -> None:
    """The newest days by their claim, oldest first; older payments are left out."""
    lines = [f"{day * DAY_US + 1} claimed x{day} 1 {day} {KEY}" for day in (1, 97, 99, 100)]
    days = newest_days(JournalReport().read(lines), 100 * DAY_US + 2, 4)
    assert [totals.claimed for totals in days.values()] == [97, 0, 99, 100]
    assert [*days] == ["1970-04-08", "1970-04-09", "1970-04-10", "1970-04-11"]


def test_rules_are_written_in_words() -> None:
    """Each part of a condition is named; an empty one is every call."""
    when = Condition(
        tool_id=Glob("pay_*"),
        agent_ids=("a", "b"),
        labels=(("team", "red"),),
        arguments=(Predicate("amount", min=1, max=5, required=True),),
        min_step_count=3,
    )
    assert conditions(when) == [
        "tool pay_*",
        "agent a or b",
        "label team is red",
        "argument amount at least 1, at most 5, is required",
        "from 3 steps on",
    ]
    assert conditions(Condition()) == ["every call"]
