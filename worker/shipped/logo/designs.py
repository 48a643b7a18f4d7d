"""Three layouts for one name: a monogram beside it, a symbol above it, and the name alone on a plate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.shipped.logo import letters, marks, naming, svg
from worker.shipped.logo.palette import RGB, Palette, css, readable


@dataclass(frozen=True)
class Design:
    """What all three logos share; `seed` is the digest that chooses their geometry."""

    name: str
    brief: str
    palette: Palette
    seed: bytes
    hosts: tuple[str, ...] = ()

    @property
    def weight(self) -> float:
        """Stroke weight at height 100."""
        return 11.0 + self.seed[10] % 3 * 3.5

    @property
    def spacing(self) -> float:
        return self.weight + 16 + self.seed[11] % 3 * 7


def monogram(design: Design) -> str:
    """Initials in a badge, the name to its right."""
    palette = design.palette
    rows = naming.lines(design.name)
    height = _fitted(design, rows, 420, 62 if len(rows) == 1 else 50)
    width = max(_width(design, row, height) for row in rows)
    root = _sheet(design, 1, 48 + 160 + 44 + width + 52, 256, "Monogram")
    _ground(root, palette.paper)
    mark = svg.add(root, "g", transform="translate(128 128) scale(0.8)")
    marks.badge(mark, palette, design.seed)
    _initials(mark, design)
    color = css(palette.ink)
    leading = height * 1.62
    top = 128 - (height + leading * (len(rows) - 1)) / 2
    for index, row in enumerate(rows):
        letters.draw(root, [(row, color)], 252, top + leading * index, height, design.weight, design.spacing)
    return svg.render(root)


def symbol(design: Design) -> str:
    """A symbol of pure geometry, the name centred below it."""
    palette = design.palette
    rows = naming.lines(design.name)
    height = _fitted(design, rows, 384, 44)
    leading = height * 1.66
    root = _sheet(design, 2, 480, 408 + height + leading * (len(rows) - 1), "Symbol")
    _ground(root, palette.paper)
    mark = svg.add(root, "g", transform="translate(240 196) scale(1.32)")
    marks.SYMBOLS[design.seed[3] % len(marks.SYMBOLS)](mark, palette, design.seed)
    for index, row in enumerate(rows):
        x = 240 - _width(design, row, height) / 2
        y = 352 + leading * index
        letters.draw(root, [(row, css(palette.ink))], x, y, height, design.weight, design.spacing)
    return svg.render(root)


def wordmark(design: Design) -> str:
    """The name alone, large and in two colours, on a dark plate."""
    palette = design.palette
    ground = palette.night
    light = css(palette.on(ground))
    lively = css(readable(palette.primary, ground, 4.5))
    accent = css(readable(palette.accent, ground, 3))
    rows = naming.lines(design.name)
    height = _fitted(design, rows, 520, 88 if len(rows) == 1 else 72)
    leading = height * 1.6
    block = height + leading * (len(rows) - 1)
    # Never narrower than the flourish, which a name of one thin letter would be.
    widest = max(120, *(_width(design, row, height) for row in rows))
    width, tall = widest + 168, block + 188
    root = _sheet(design, 3, width, tall, "Word-mark")
    svg.add(root, "rect", id="ground", x=0, y=0, width=width, height=tall, rx=28, fill=css(ground))
    for index, row in enumerate(rows):
        spans = _two_tone(row, light, lively, index == len(rows) - 1)
        letters.draw(root, spans, 84, 78 + leading * index, height, design.weight + 3, design.spacing)
    _flourish(root, design, accent, 84, 78 + block + 38, widest)
    return svg.render(root)


DESIGNS: tuple[tuple[str, str, Callable[[Design], str]], ...] = (
    ("logo_v1.svg", "monogram", monogram),
    ("logo_v2.svg", "symbol", symbol),
    ("logo_v3.svg", "word-mark", wordmark),
)


def _sheet(design: Design, number: int, width: float, height: float, kind: str) -> svg.Element:
    description = f"{kind} logo for {design.name}. Brief: {design.brief}"
    root = svg.sheet(f"logo{number}", width, height, f"{design.name} logo", description)
    if design.hosts:
        svg.add(root, "metadata").text = "style references: " + ", ".join(design.hosts)
    return root


def _ground(root: svg.Element, color: RGB) -> None:
    svg.add(root, "rect", id="ground", x=0, y=0, width="100%", height="100%", fill=css(color))


def _width(design: Design, text: str, height: float) -> float:
    return letters.measure(text, design.spacing) * height / 100


def _fitted(design: Design, rows: list[str], width: float, height: float) -> float:
    """The wished height, or less where the widest row would not fit the width."""
    widest = max(letters.measure(row, design.spacing) for row in rows)
    return min(height, width * 100 / max(widest, 1))


def _initials(mark: svg.Element, design: Design) -> None:
    text = naming.initials(design.name)
    spacing = design.weight + 20
    height = min(74.0, 104 * 100 / max(letters.measure(text, spacing), 1))
    x = -letters.measure(text, spacing) * height / 200
    color = css(design.palette.on(design.palette.primary))
    letters.draw(mark, [(text, color)], x, -height / 2 - 3, height, design.weight + 5, spacing)


def _two_tone(row: str, light: str, lively: str, last: bool) -> list[letters.Span]:
    """The last hump or the last word in the lively colour; a name of one piece keeps one colour."""
    words = row.split()
    if len(words) > 1:
        return [(" ".join(words[:-1]) + " ", light), (words[-1], lively)]
    humps = naming.humps(row)
    if len(humps) > 1:
        return [("".join(humps[:-1]), light), (humps[-1], lively)]
    return [(row, lively if last and " " in row else light)]


def _flourish(root: svg.Element, design: Design, color: str, x: float, y: float, width: float) -> None:
    """What closes the word-mark: a rule, a row of dots, or a wave."""
    kind = design.seed[12] % 3
    if kind == 0:
        svg.add(root, "rect", x=x, y=y, width=min(width, 96), height=10, rx=5, fill=color)
    elif kind == 1:
        for index in range(3):
            svg.add(root, "circle", cx=x + 6 + index * 26, cy=y + 6, r=7 - index * 1.5, fill=color)
    else:
        path = f"M{svg.number(x)} {svg.number(y + 8)}q14-16 28 0t28 0t28 0t28 0"
        svg.add(root, "path", d=path, fill="none", stroke=color, stroke_width=8, stroke_linecap="round")
