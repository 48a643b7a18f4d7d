"""Draws a Mermaid flowchart as SVG, so that the site needs no script for it. Knows only `a --> b`.

Every node stands below all that lead to it. An arrow over several rows bends around the nodes between them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from html import escape

ARROW = re.compile(r"^ *(\w+) --> (\w+) *$", re.MULTILINE)
WIDTH, HEIGHT = 96, 26
# From the middle of one node or row to the next; a bend needs less room than a node.
COLUMN, BEND, ROW = 112, 36, 60
SWEEPS = 12

# A node or a bend: its name and its row. A bend is named after its arrow, `from>to`.
Point = tuple[str, int]


def svg(flowchart: str, title: str) -> str:
    """The picture; its class is `diagram`, its colours are those of the page."""
    edges = ARROW.findall(flowchart)
    routes = [_route(edge, _rows(edges)) for edge in edges]
    places = _places(routes)
    width = max(places.values()) + COLUMN / 2
    height = ROW * (1 + max(row for _, row in places))
    return "\n".join(
        [
            f'<svg class="diagram" role="img" width="{width:.0f}" viewBox="0 0 {width:.0f} {height}" '
            'xmlns="http://www.w3.org/2000/svg">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
            *(_arrow([(places[point], point[1]) for point in route]) for route in routes),
            *(_box(name, x, row) for (name, row), x in places.items() if ">" not in name),
            "</svg>",
        ]
    )


def _rows(edges: list[tuple[str, str]]) -> dict[str, int]:
    """The row of each node: one below the lowest that leads to it."""
    rows = {name: 0 for edge in edges for name in edge}
    for _ in list(rows):
        for start, end in edges:
            rows[end] = max(rows[end], rows[start] + 1)
    return rows


def _route(edge: tuple[str, str], rows: dict[str, int]) -> list[Point]:
    """An arrow with a bend in every row that it passes."""
    start, end = edge
    bends = [(f"{start}>{end}", row) for row in range(rows[start] + 1, rows[end])]
    return [(start, rows[start]), *bends, (end, rows[end])]


def _places(routes: list[list[Point]]) -> dict[Point, float]:
    """The x of each point. Rows are sorted by the places of their neighbours, down and up again."""
    rows: dict[int, list[Point]] = defaultdict(list)
    near: dict[Point, list[Point]] = defaultdict(list)
    for route in routes:
        for point in route:
            if point not in rows[point[1]]:
                rows[point[1]].append(point)
        for upper, lower in zip(route, route[1:], strict=False):
            near[upper].append(lower)
            near[lower].append(upper)
    places = {point: x for row in rows.values() for point, x in _packed(row)}
    for sweep in range(SWEEPS):
        for number in sorted(rows, reverse=sweep % 2 == 1):
            wanted = {point: _mean([places[each] for each in near[point]]) for point in rows[number]}
            rows[number].sort(key=lambda point: wanted[point])
            places |= _packed(rows[number])
    left = min(places.values()) - COLUMN / 2
    return {point: x - left for point, x in places.items()}


def _packed(row: list[Point]) -> list[tuple[Point, float]]:
    """The points of a row side by side, centred."""
    widths = [BEND if ">" in name else COLUMN for name, _ in row]
    return [
        (point, sum(widths[:place]) + widths[place] / 2 - sum(widths) / 2) for place, point in enumerate(row)
    ]


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def _arrow(points: list[tuple[float, int]]) -> str:
    """A curve from the bottom of one node through its bends to the top of the other."""
    (x, row), *others = points
    path = f"M{x:.0f} {_middle(row) + HEIGHT / 2:.0f}"
    at = _middle(row) + HEIGHT / 2
    for x_next, row_next in others:
        last = row_next == points[-1][1]
        to = _middle(row_next) - (HEIGHT / 2 + 2 if last else 0)
        path += f"C{x:.0f} {(at + to) / 2:.0f} {x_next:.0f} {(at + to) / 2:.0f} {x_next:.0f} {to:.0f}"
        x, at = x_next, to
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'


def _box(name: str, x: float, row: int) -> str:
    y = _middle(row)
    return (
        f'<rect x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x:.0f}" y="{y + 4:.0f}">{escape(name)}</text>'
    )


def _middle(row: int) -> float:
    return row * ROW + ROW / 2
