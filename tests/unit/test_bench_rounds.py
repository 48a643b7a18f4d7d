"""How measurements are compared: turns are taken, medians are taken, unfinished work counts for nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.report import table
from bench.rounds import (
    Contender,
    Goal,
    Measurement,
    Reading,
    WorkMissing,
    interleave,
    medians,
    ratio,
    spread,
)


def readings(*values: float) -> list[Reading]:
    return [{"asked": 1, "done": 1, "speed": value} for value in values]


def contender(name: str, turns: list[str], done: float = 5) -> Contender:
    def run() -> Reading:
        turns.append(name)
        return {"asked": 5, "done": done, "turn": len(turns)}

    return Contender(name, run)


def test_everybody_has_a_turn_in_every_round_and_the_first_changes() -> None:
    """Within a round each contender runs once; over the rounds each has been first."""
    turns: list[str] = []
    interleave([contender(name, turns) for name in "abc"], 3)
    assert "".join(turns) == "abc" + "bca" + "cab"


def test_readings_are_kept_by_contender_in_the_order_of_rounds() -> None:
    """The n-th reading of one and of another come from the same round, whoever went first."""
    turns: list[str] = []
    found = interleave([contender("a", turns), contender("b", turns)], 2)
    assert {name: [each["turn"] for each in rounds] for name, rounds in found.items()} == {
        "a": [1, 4],
        "b": [2, 3],
    }


@pytest.mark.parametrize("done", [4, 6, 0])
def test_a_round_that_did_not_do_its_work_ends_the_run(done: float) -> None:
    """Figures of a round whose results are not all there, or are too many, are never reported."""
    turns: list[str] = []
    with pytest.raises(WorkMissing, match="b did"):
        interleave([contender("a", turns), contender("b", turns, done)], 2)


def test_a_contender_that_fails_is_not_skipped() -> None:
    """What a contender raises reaches whoever measures."""

    def fail() -> Reading:
        raise OSError("no store")

    with pytest.raises(OSError, match="no store"):
        interleave([Contender("a", fail)], 1)


@pytest.mark.parametrize(
    ("values", "middle"), [((3.0, 1.0, 2.0), 2.0), ((1.0, 100.0), 50.5), ((7.0,), 7.0), ((1, 1, 1, 90), 1)]
)
def test_the_middle_counts_and_not_the_mean(values: tuple[float, ...], middle: float) -> None:
    """One disturbed round does not move the figure."""
    assert medians(readings(*values))["speed"] == middle


def test_a_ratio_is_taken_within_rounds() -> None:
    """When the machine is slow in one round, both were slow in it, and the ratio holds."""
    one, other = readings(20.0, 2.0, 22.0), readings(10.0, 1.0, 11.0)
    assert ratio(one, other, "speed") == 2.0
    # the quotient of the medians would say otherwise here
    assert ratio(readings(1.0, 6.0, 9.0), readings(1.0, 2.0, 9.0), "speed") == 1.0


def test_a_ratio_of_unequal_runs_is_refused() -> None:
    """Rounds that have no counterpart cannot be compared."""
    with pytest.raises(ValueError):
        ratio(readings(1.0, 2.0), readings(1.0), "speed")


def test_the_spread_is_the_lowest_and_the_highest() -> None:
    """The extremes tell how far the median can be believed."""
    assert spread(readings(3.0, 1.0, 2.0))["speed"] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("found", "limit", "at_least", "met"),
    [(3.0, 3.0, True, True), (2.99, 3.0, True, False), (2.0, 2.0, False, True), (2.01, 2.0, False, False)],
)
def test_a_goal_is_met_at_its_limit(found: float, limit: float, at_least: bool, met: bool) -> None:
    """At least and at most both include the limit itself."""
    assert Goal("g", found, limit, at_least).met is met


@pytest.mark.parametrize(
    ("add", "met"),
    [
        (lambda m: m.at_least("twice", "a", "b", "speed", 2.0), True),
        (lambda m: m.at_most("twice", "a", "b", "speed", 1.9), False),
        (lambda m: m.below("slow", "b", "speed", 10.0), True),
    ],
)
def test_goals_are_taken_from_the_readings(add: Callable[[Measurement], None], met: bool) -> None:
    """A measurement's goals are judged by its own rounds and shown with the verdict."""
    measurement = Measurement("m", "about", {"a": readings(20, 22, 2), "b": readings(10, 11, 1)})
    add(measurement)
    [goal] = measurement.shown()["goals"]
    assert goal["met"] is met
    assert ("MISSED" in table(measurement)) is not met


def test_the_table_shows_medians_and_extremes() -> None:
    """A row has the median, the row below it the lowest and the highest round."""
    text = table(Measurement("m", "about", {"a": readings(20, 22.5, 2)}, notes=["remember"]))
    assert "(2..22.5)" in text and " 20" in text and "remember" in text
