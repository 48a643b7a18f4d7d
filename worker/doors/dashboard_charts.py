"""Charts as SVG, made on the server: geometry here, markup in the templates. Each has a table beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

WIDTH, WIDE, HEIGHT = 600, 1180, 160
_LEFT, _BOTTOM, _TOP = 44, 20, 8
# A few columns stand side by side at the left, not as broad as walls.
_WIDEST = 90.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One rectangle; `kind` is its class, `title` what it says when pointed at."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis, with its position."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class BarChart:
    """Stacked bars over named columns."""

    bars: tuple[Bar, ...]
    columns: tuple[Tick, ...]
    levels: tuple[Tick, ...]
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def left(self) -> int:
        return _LEFT

    @property
    def base(self) -> int:
        return self.height - _BOTTOM


def stacked(
    columns: Sequence[str],
    series: Mapping[str, Sequence[int]],
    *,
    width: int = WIDTH,
    shown: int = 8,
    unit: str = "",
) -> BarChart:
    """Stacks the series, first at the bottom; `shown` columns get a label."""
    totals = [sum(values) for values in zip(*series.values(), strict=True)] or [0]
    top = ceiling(max(totals))
    step = min(_WIDEST, (width - _LEFT) / max(1, len(columns)))
    gap = min(4.0, step * 0.2)
    every = max(1, -(-len(columns) // shown))
    return BarChart(
        tuple(_bars(columns, series, step, gap, top, unit)),
        tuple(
            Tick(round(_LEFT + (at + 0.5) * step, 1), name)
            for at, name in enumerate(columns)
            if at % every == 0
        ),
        tuple(Tick(round(_y(value, top), 1), f"{value:,.0f}") for value in (0, top / 2, top)),
        width,
    )


def _bars(
    columns: Sequence[str], series: Mapping[str, Sequence[int]], step: float, gap: float, top: int, unit: str
) -> Iterator[Bar]:
    for at, column in enumerate(columns):
        below = 0
        for kind, values in series.items():
            if not values[at]:
                continue
            y, base = _y(below + values[at], top), _y(below, top)
            title = f"{column}: {values[at]:,} {kind}{unit}"
            x = _LEFT + at * step + gap / 2
            yield Bar(round(x, 1), round(y, 1), round(step - gap, 1), round(base - y, 1), kind, title)
            below += values[at]


def _y(value: float, top: int) -> float:
    return _TOP + (HEIGHT - _BOTTOM - _TOP) * (1 - value / top)


def ceiling(value: int) -> int:
    """The next of 2, 4, 10, 20, 40, 100, ...: even, so that half of it is a whole number."""
    size = 1
    while True:
        for step in (2, 4, 10):
            if value <= step * size:
                return step * size
        size *= 10
