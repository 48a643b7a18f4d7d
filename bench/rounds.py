"""The method of every benchmark here: contenders take turns in short rounds, and medians are compared.

A machine is never idle. When contenders take turns, a disturbance of one hits its neighbours too, so a ratio
taken within each round is steadier than two numbers taken one after the other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Figures by name. Every reading has `asked` and `done`: how much work there was, and how much of it was
# verified as complete once the round was over.
Reading = Mapping[str, float]


class WorkMissing(Exception):
    """A round ended without all of its results, which makes its figures worthless."""


@dataclass(frozen=True)
class Contender:
    """One way to do the work. `run` does one round of it."""

    name: str
    run: Callable[[], Reading]
    # Left out, and reported, if one of its rounds fails: nothing of ours is compared with it.
    optional: bool = False


@dataclass(frozen=True)
class Goal:
    """A figure and its target."""

    text: str
    found: float
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.found >= self.limit if self.at_least else self.found <= self.limit

    def shown(self) -> dict[str, Any]:
        return {
            "goal": self.text,
            "found": _short(self.found),
            "limit": self.limit,
            "kind": "at least" if self.at_least else "at most",
            "met": self.met,
        }


@dataclass
class Measurement:
    """The result of one interleaved run: readings by contender, one per round."""

    name: str
    about: str
    readings: dict[str, list[Reading]]
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def medians(self, contender: str) -> dict[str, float]:
        return medians(self.readings[contender])

    def at_least(self, text: str, one: str, other: str, figure: str, limit: float) -> None:
        """A goal on the ratio of two contenders."""
        self.goals.append(Goal(text, self._ratio(one, other, figure), limit, at_least=True))

    def at_most(self, text: str, one: str, other: str, figure: str, limit: float) -> None:
        self.goals.append(Goal(text, self._ratio(one, other, figure), limit, at_least=False))

    def above(self, text: str, contender: str, figure: str, limit: float) -> None:
        """A minimum for one contender's own figure."""
        self.goals.append(Goal(text, self.medians(contender)[figure], limit, at_least=True))

    def below(self, text: str, contender: str, figure: str, limit: float) -> None:
        """A maximum for one contender's own figure."""
        self.goals.append(Goal(text, self.medians(contender)[figure], limit, at_least=False))

    def _ratio(self, one: str, other: str, figure: str) -> float:
        return ratio(self.readings[one], self.readings[other], figure)

    def shown(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "about": self.about,
            "contenders": {
                name: {"rounds": len(rounds), "median": _rounded(medians(rounds)), "spread": spread(rounds)}
                for name, rounds in self.readings.items()
            },
            "goals": [goal.shown() for goal in self.goals],
            "notes": self.notes,
        }


def interleave(
    contenders: Sequence[Contender], rounds: int, told: Callable[[str], None] = lambda line: None
) -> dict[str, list[Reading]]:
    """Run one round per contender, then again; rotate the order, so that none always goes first."""
    readings: dict[str, list[Reading]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        first = number % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            if contender.name not in readings:
                continue
            try:
                reading = _complete(contender)
            except Exception as error:
                if not contender.optional:
                    raise
                del readings[contender.name]
                told(f"  {contender.name} is left out: {error}")
                continue
            readings[contender.name].append(reading)
            told(f"  round {number + 1}/{rounds} {contender.name}: {_line(reading)}")
    return readings


def _complete(contender: Contender) -> Reading:
    reading = contender.run()
    if reading["done"] != reading["asked"]:
        raise WorkMissing(f"{contender.name} did {reading['done']} of {reading['asked']}")
    return reading


def latencies(seconds: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile."""
    ordered = sorted(seconds)
    return {"p50_ms": statistics.median(ordered) * 1e3, "p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3}


def medians(readings: Sequence[Reading]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(each[name] for each in readings) for name in readings[0]}


def ratio(one: Sequence[Reading], other: Sequence[Reading], figure: str) -> float:
    """The median of the ratios within each round."""
    return statistics.median(a[figure] / b[figure] for a, b in zip(one, other, strict=True))


def spread(readings: Sequence[Reading]) -> dict[str, list[float]]:
    """Lowest and highest of each figure: how far the median can be trusted."""
    return {
        name: [_short(min(each[name] for each in readings)), _short(max(each[name] for each in readings))]
        for name in readings[0]
    }


def _rounded(figures: Reading) -> dict[str, float]:
    return {name: _short(value) for name, value in figures.items()}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _line(reading: Reading) -> str:
    return ", ".join(f"{name} {_short(value):g}" for name, value in reading.items())
