"""Comparing measurements: rotation, medians, and refusal of incomplete work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.report import table
from bench.rounds import (
    Contender,
    Goal,
    Measurement,
    Reading,
    WorkMissing,
    interleave,
    latencies,
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


def test_every_round_rotates_the_contenders() -> None:
    """Each contender runs once a round; over all rounds each has been first."""
    turns: list[str] = []
    interleave([contender(name, turns) for name in "abc"], 3)
    assert "".join(turns) == "abc" + "bca" + "cab"


def test_readings_are_grouped_by_contender() -> None:
    """The n-th readings of two contenders come from the same round, whichever ran first."""
    turns: list[str] = []
    found = interleave([contender("a", turns), contender("b", turns)], 2)
    assert {name: [each["turn"] for each in rounds] for name, rounds in found.items()} == {
        "a": [1, 4],
        "b": [2, 3],
    }


@pytest.mark.parametrize("done", [4, 6, 0])
def test_incomplete_round_ends_the_run(done: float) -> None:
    """A round with missing or surplus results is never reported."""
    turns: list[str] = []
    with pytest.raises(WorkMissing, match="b did"):
        interleave([contender("a", turns), contender("b", turns, done)], 2)


def test_failing_contender_is_not_skipped() -> None:
    """An exception in a contender reaches the caller."""

    def fail() -> Reading:
        raise OSError("no store")

    with pytest.raises(OSError, match="no store"):
        interleave([Contender("a", fail)], 1)


def test_optional_contender_that_fails_is_left_out() -> None:
    """It has no figures at all, others have theirs from every round, and the run says so."""
    turns: list[str] = []
    lines: list[str] = []
    optional = replace(contender("b", turns, done=4), optional=True)
    found = interleave([contender("a", turns), optional], 3, lines.append)
    assert {name: len(rounds) for name, rounds in found.items()} == {"a": 3}
    assert "".join(turns) == "abaa"
    assert "  b is left out: b did 4 of 5" in lines


@pytest.mark.parametrize(
    ("values", "middle"), [((3.0, 1.0, 2.0), 2.0), ((1.0, 100.0), 50.5), ((7.0,), 7.0), ((1, 1, 1, 90), 1)]
)
def test_median_is_reported(values: tuple[float, ...], middle: float) -> None:
    """One disturbed round does not change the median."""
    assert medians(readings(*values))["speed"] == middle


def test_ratios_are_computed_per_round() -> None:
    """A slow round affects both contenders, so the ratio holds."""
    one, other = readings(20.0, 2.0, 22.0), readings(10.0, 1.0, 11.0)
    assert ratio(one, other, "speed") == 2.0
    # the quotient of the medians would differ here
    assert ratio(readings(1.0, 6.0, 9.0), readings(1.0, 2.0, 9.0), "speed") == 1.0


def test_ratio_of_unequal_runs_is_refused() -> None:
    """Rounds without a counterpart cannot be compared."""
    with pytest.raises(ValueError):
        ratio(readings(1.0, 2.0), readings(1.0), "speed")


def test_spread_is_minimum_to_maximum() -> None:
    """The extremes show how reliable the median is."""
    assert spread(readings(3.0, 1.0, 2.0))["speed"] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("found", "limit", "at_least", "met"),
    [(3.0, 3.0, True, True), (2.99, 3.0, True, False), (2.0, 2.0, False, True), (2.01, 2.0, False, False)],
)
def test_goal_is_met_at_its_limit(found: float, limit: float, at_least: bool, met: bool) -> None:
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
def test_goals_are_computed_from_readings(add: Callable[[Measurement], None], met: bool) -> None:
    """A measurement's goals are computed from its own rounds and shown with the verdict."""
    measurement = Measurement("m", "about", {"a": readings(20, 22, 2), "b": readings(10, 11, 1)})
    add(measurement)
    [goal] = measurement.shown()["goals"]
    assert goal["met"] is met
    assert ("MISSED" in table(measurement)) is not met


def test_table_shows_median_and_extremes() -> None:
    """A row shows the median, the next row the lowest and highest round."""
    text = table(Measurement("m", "about", {"a": readings(20, 22.5, 2)}, notes=["remember"]))
    assert "(2..22.5)" in text and " 20" in text and "remember" in text


def test_latencies_are_in_milliseconds() -> None:
    """The order of the times does not matter, and one time alone is both figures."""
    assert latencies([number / 1e3 for number in range(200, 0, -1)]) == {"p50_ms": 100.5, "p99_ms": 199.0}
    assert latencies([0.25]) == {"p50_ms": 250.0, "p99_ms": 250.0}
