"""A monoline alphabet of our own, so that a logo looks the same without any font.

A glyph is a stroke path on a box 100 high whose width is given beside it. Accents are strokes
over a letter's middle. A name with other characters is set as text with a fixed length.
"""

from __future__ import annotations

import unicodedata

from worker.shipped.logo import svg

GLYPHS: dict[str, tuple[float, str]] = {
    " ": (34, ""),
    "A": (84, "M0 100L42 0L84 100M15 64H69"),
    "B": (65, "M0 0V100H38A27 27 0 0 0 38 46H0M0 0H34A23 23 0 0 1 34 46"),
    "C": (87, "M87 16.5A50 50 0 1 0 87 83.5"),
    "D": (80, "M0 0V100H30A50 50 0 0 0 30 0Z"),
    "E": (58, "M58 0H0V100H58M0 50H50"),
    "F": (56, "M56 0H0V100M0 50H48"),
    "G": (100, "M87 16.5A50 50 0 1 0 100 50H60"),
    "H": (72, "M0 0V100M72 0V100M0 50H72"),
    "I": (0, "M0 0V100"),
    "J": (50, "M50 0V75A25 25 0 0 1 0 75"),
    "K": (66, "M0 0V100M64 0L0 58M23 37L66 100"),
    "L": (54, "M0 0V100H54"),
    "M": (92, "M0 100V0L46 64L92 0V100"),
    "N": (74, "M0 100V0L74 100V0"),
    "O": (100, "M100 50A50 50 0 1 1 0 50A50 50 0 1 1 100 50Z"),
    "P": (64, "M0 100V0H36A28 28 0 0 1 36 56H0"),
    "Q": (100, "M100 50A50 50 0 1 1 0 50A50 50 0 1 1 100 50ZM64 66L98 100"),
    "R": (65, "M0 100V0H36A28 28 0 0 1 36 56H0M34 56L64 100"),
    "S": (
        59,
        "M56 15C50 5 42 0 30 0C14 0 3 10 3 25C3 42 16 46 30 49"
        "C46 53 59 58 59 75C59 91 46 100 30 100C16 100 6 94 1 83",
    ),
    "T": (72, "M0 0H72M36 0V100"),
    "U": (70, "M0 0V65A35 35 0 0 0 70 65V0"),
    "V": (84, "M0 0L42 100L84 0"),
    "W": (120, "M0 0L30 100L60 12L90 100L120 0"),
    "X": (76, "M0 0L76 100M76 0L0 100"),
    "Y": (76, "M0 0L38 50L76 0M38 50V100"),
    "Z": (70, "M0 0H70L0 100H70"),
    "0": (72, "M36 0A36 50 0 1 1 36 100A36 50 0 1 1 36 0Z"),
    "1": (28, "M0 22L28 0V100"),
    "2": (62, "M2 29A29 29 0 0 1 60 29C60 48 40 58 0 100H62"),
    "3": (60, "M4 0H56L26 40C46 40 60 51 60 69A30 31 0 0 1 2 78"),
    "4": (70, "M52 100V0L0 70H70"),
    "5": (61, "M54 0H11L7 43C14 38 21 36 29 36A32 32 0 0 1 29 100C17 100 8 95 2 86"),
    "6": (64, "M50 0C26 20 0 42 0 68A32 32 0 0 0 64 68A32 32 0 0 0 0 68"),
    "7": (62, "M0 0H62L20 100"),
    "8": (
        61,
        "M31 0A24 23.5 0 1 1 31 47A24 23.5 0 1 1 31 0ZM31 47A30 26.5 0 1 1 31 100A30 26.5 0 1 1 31 47Z",
    ),
    "9": (64, "M14 100C38 80 64 58 64 32A32 32 0 0 0 0 32A32 32 0 0 0 64 32"),
    "&": (80, "M80 100L22 30C10 14 20 0 34 0C50 0 56 18 42 30L16 50C0 64 2 100 30 100C54 100 68 84 74 60"),
    "-": (36, "M0 54H36"),
    ".": (0, "M0 99H0.1"),
    "'": (0, "M0 0V20"),
    "+": (60, "M0 54H60M30 24V84"),
}
ACCENTS = {
    "\u0300": "M-10-36L8-18",
    "\u0301": "M10-36L-8-18",
    "\u0302": "M-17-18L0-36L17-18",
    "\u0303": "M-20-21C-10-36 8-12 20-29",
    "\u0304": "M-17-27H17",
    "\u0307": "M0-27H0.1",
    "\u0308": "M-16-27H-15.9M16-27H16.1",
    "\u030a": "M-11-30A11 11 0 1 1 11-30A11 11 0 1 1-11-30Z",
    "\u030c": "M-17-36L0-18L17-36",
    "\u0327": "M0 100C12 106 10 122-8 119",
}
FONTS = "'Helvetica Neue', Arial, 'Noto Sans', sans-serif"

Span = tuple[str, str]


def drawable(text: str) -> bool:
    """Whether every character of the text has a glyph here."""
    return all(c in GLYPHS or c in ACCENTS for c in _folded(text))


def measure(text: str, spacing: float) -> float:
    """How wide the text is at height 100, without the stroke's own half widths."""
    if not drawable(text):
        return sum(138.0 if unicodedata.east_asian_width(c) in "WF" else 86.0 for c in text.upper())
    glyphs = [c for c in _folded(text) if c in GLYPHS]
    return sum(GLYPHS[c][0] for c in glyphs) + spacing * (len(glyphs) - 1)


def draw(
    parent: svg.Element, spans: list[Span], x: float, y: float, height: float, weight: float, spacing: float
) -> None:
    """Coloured pieces of one line from (x, y), its top left; weight and spacing are at height 100."""
    text = "".join(piece for piece, _ in spans)
    if not drawable(text):
        _set_as_text(parent, text, spans[0][1], x, y, height, measure(text, spacing) * height / 100)
        return
    scale = height / 100
    line = svg.add(
        parent,
        "g",
        transform=f"translate({svg.number(x)} {svg.number(y)}) scale({svg.number(scale)})",
        fill="none",
        stroke_width=weight,
        stroke_linecap="round",
        stroke_linejoin="round",
    )
    at = 0.0
    for piece, color in spans:
        group = svg.add(line, "g", stroke=color)
        base = 0.0
        for char in _folded(piece):
            if char in ACCENTS:
                svg.add(group, "path", transform=f"translate({svg.number(base)} 0)", d=ACCENTS[char])
                continue
            width, path = GLYPHS[char]
            if path:
                svg.add(group, "path", transform=f"translate({svg.number(at)} 0)", d=path)
            base = at + width / 2
            at += width + spacing


def _folded(text: str) -> str:
    return unicodedata.normalize("NFD", text.upper().replace("’", "'"))


def _set_as_text(
    parent: svg.Element, text: str, color: str, x: float, y: float, height: float, width: float
) -> None:
    """For scripts without glyphs here: the length is fixed, so any font stays inside the drawing."""
    svg.add(
        parent,
        "text",
        x=x + width / 2,
        y=y + height,
        fill=color,
        font_family=FONTS,
        font_weight="700",
        font_size=height * 1.36,
        text_anchor="middle",
        textLength=width,
        lengthAdjust="spacingAndGlyphs",
    ).text = text
