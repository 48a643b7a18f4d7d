"""The marks of a logo on a square from -100 to 100: badges for initials, and symbols of pure geometry."""

from __future__ import annotations

import math
from collections.abc import Callable

from worker.shipped.logo import svg
from worker.shipped.logo.palette import WHITE, Palette, css, luminance, mix

BADGES = (
    "M100 0A100 100 0 1 1-100 0A100 100 0 1 1 100 0Z",
    "M0-100C78-100 100-78 100 0C100 78 78 100 0 100C-78 100-100 78-100 0C-100-78-78-100 0-100Z",
    "M0-100L86.6-50V50L0 100L-86.6 50V-50Z",
    "M-94-94H22A72 72 0 0 1 94-22V94H-22A72 72 0 0 1-94 22Z",
    "M-92 92V-2A94 94 0 0 1 2-96H92V92Z",
    "M-84-92H84V8C84 58 46 86 0 100C-46 86-84 58-84 8Z",
)

Symbol = Callable[[svg.Element, Palette, bytes], None]


def badge(parent: svg.Element, palette: Palette, seed: bytes) -> None:
    """A filled ground for initials, with one accent beside them."""
    kind = seed[1] % len(BADGES)
    svg.add(
        parent,
        "path",
        d=BADGES[kind],
        fill=css(palette.primary),
        stroke=css(palette.primary),
        stroke_width=8,
        stroke_linejoin="round",
        transform="scale(0.94)",
    )
    if seed[2] % 2:
        svg.add(parent, "circle", cx=74, cy=-74, r=28, fill=css(palette.paper))
        svg.add(parent, "circle", cx=74, cy=-74, r=18, fill=css(palette.accent))
    else:
        svg.add(parent, "rect", x=-34, y=62, width=68, height=9, rx=4.5, fill=css(palette.accent))


def petals(parent: svg.Element, palette: Palette, seed: bytes) -> None:
    count = (6, 8, 10)[seed[1] % 3]
    width = (26, 21, 17)[seed[1] % 3]
    for index in range(count):
        svg.add(
            parent,
            "ellipse",
            cx=0,
            cy=-56,
            rx=width,
            ry=42,
            fill=css(palette.accent if index % 2 else palette.primary),
            fill_opacity=0.9,
            transform=f"rotate({svg.number(360 * index / count)})",
        )
    svg.add(parent, "circle", cx=0, cy=0, r=15, fill=css(palette.ink))


def orbits(parent: svg.Element, palette: Palette, seed: bytes) -> None:
    colors = (palette.accent, palette.ink, palette.primary)
    for index, radius in enumerate((38, 64, 90)):
        turn = seed[1 + index] * 360 / 256
        reach = math.radians(210 + seed[4 + index] % 90)
        start, end = math.radians(turn), math.radians(turn) + reach
        path = f"M{_polar(radius, start)}A{radius} {radius} 0 1 1 {_polar(radius, end)}"
        svg.add(
            parent,
            "path",
            d=path,
            fill="none",
            stroke=css(colors[index]),
            stroke_width=15,
            stroke_linecap="round",
        )
    svg.add(parent, "circle", cx=0, cy=0, r=14, fill=css(palette.primary))


def facets(parent: svg.Element, palette: Palette, seed: bytes) -> None:
    """A cut stone: six faces from light to dark, turned by the seed."""
    turn = seed[1] % 6
    shadow = palette.night if luminance(palette.primary) > 0.03 else WHITE
    corners = [(94 * math.sin(math.pi * k / 3), -94 * math.cos(math.pi * k / 3)) for k in range(6)]
    for index in range(6):
        shade = abs((index + turn) % 6 - 3) / 3
        color = mix(palette.primary, shadow, 0.55 * shade)
        (ax, ay), (bx, by) = corners[index], corners[(index + 1) % 6]
        points = f"0,0 {svg.number(ax)},{svg.number(ay)} {svg.number(bx)},{svg.number(by)}"
        svg.add(parent, "polygon", points=points, fill=css(color), stroke=css(color), stroke_width=1.5)
    inner = " ".join(f"{svg.number(x * 0.42)},{svg.number(y * 0.42)}" for x, y in corners)
    svg.add(parent, "polygon", points=inner, fill=css(palette.accent))


def tiles(parent: svg.Element, palette: Palette, seed: bytes) -> None:
    """Nine quarter rounds and rounds, mirrored left to right."""
    colors = (palette.primary, palette.accent, palette.ink)
    size = 57.0
    for row in range(3):
        y = -91.5 + row * 63
        color = css(colors[(seed[1] + row) % 3])
        up = bool(seed[2 + row] % 2)
        for x, left in ((-91.5, True), (34.5, False)):
            svg.add(parent, "path", d=_quarter(x, y, size, left, up), fill=color)
        middle = css(colors[(seed[1] + row + 1) % 3])
        if seed[5 + row] % 3:
            svg.add(parent, "circle", cx=0, cy=y + size / 2, r=size / 2, fill=middle)
        else:
            svg.add(parent, "rect", x=-size / 2, y=y, width=size, height=size, rx=4, fill=middle)


def rise(parent: svg.Element, palette: Palette, seed: bytes) -> None:
    """Four bars that climb, the last one under a sun."""
    base = 88.0
    for index in range(4):
        height = 46 + index * 26 + seed[1 + index] % 12
        color = mix(palette.primary, palette.paper, 0.45 - 0.15 * index)
        x = -90 + index * 48
        svg.add(parent, "rect", x=x, y=base - height, width=36, height=height, rx=18, fill=css(color))
    svg.add(parent, "circle", cx=-36, cy=-58, r=30, fill=css(palette.accent))


def weave(parent: svg.Element, palette: Palette, seed: bytes) -> None:
    """Rings of three colours that pass through one another."""
    turn = seed[1] % 120
    for index, color in enumerate((palette.primary, palette.accent, palette.ink)):
        angle = math.radians(turn + 120 * index)
        svg.add(
            parent,
            "circle",
            cx=36 * math.cos(angle),
            cy=36 * math.sin(angle),
            r=48,
            fill="none",
            stroke=css(color),
            stroke_width=16,
            stroke_opacity=0.88,
        )


SYMBOLS: tuple[Symbol, ...] = (petals, orbits, facets, tiles, rise, weave)


def _polar(radius: float, angle: float) -> str:
    return f"{svg.number(radius * math.cos(angle))} {svg.number(radius * math.sin(angle))}"


def _quarter(x: float, y: float, size: float, left: bool, up: bool) -> str:
    """A quarter disc in the tile; `left` and `up` tell which corner holds its right angle."""
    cx = x + size if left else x
    cy = y + size if up else y
    sx = -size if left else size
    sy = -size if up else size
    sweep = int(left == up)
    n = svg.number
    return f"M{n(cx)} {n(cy)}L{n(cx + sx)} {n(cy)}A{n(size)} {n(size)} 0 0 {sweep} {n(cx)} {n(cy + sy)}Z"
