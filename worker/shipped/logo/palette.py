"""The colours of a logo: those a seeker gave, or one of ours, kept readable on their grounds.

Contrast is WCAG's: (lighter + 0.05) / (darker + 0.05) over relative luminance.
"""

from __future__ import annotations

import colorsys
import re
from dataclasses import dataclass

RGB = tuple[int, int, int]

WHITE: RGB = (255, 255, 255)
BLACK: RGB = (0, 0, 0)
NIGHT: RGB = (17, 24, 39)

_HEX = re.compile(r"#(?:[0-9a-fA-F]{3}|[0-9a-fA-F]{6})")
_OURS = (
    ("#2D5BFF", "#FF7A59", "#14213D"),
    ("#0F766E", "#F2B134", "#12302C"),
    ("#7C3AED", "#22C3A6", "#221640"),
    ("#E4572E", "#2E86AB", "#2B1A12"),
    ("#C2185B", "#F6A01A", "#2C0F22"),
    ("#1B7F3B", "#8BC34A", "#0F2A18"),
)


@dataclass(frozen=True)
class Palette:
    """Every colour a layout may use; `ink` and `primary` are readable on `paper`."""

    paper: RGB
    ink: RGB
    primary: RGB
    accent: RGB
    night: RGB

    def on(self, ground: RGB) -> RGB:
        """White or the dark ground colour, whichever reads better on the ground."""
        return max((WHITE, self.night), key=lambda color: contrast(color, ground))


def parse(text: str) -> RGB | None:
    """`#RGB` or `#RRGGBB` as three numbers; anything else is None."""
    if not _HEX.fullmatch(text):
        return None
    digits = text[1:] if len(text) == 7 else "".join(d + d for d in text[1:])
    return int(digits[0:2], 16), int(digits[2:4], 16), int(digits[4:6], 16)


def css(color: RGB) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)


def luminance(color: RGB) -> float:
    def linear(part: int) -> float:
        share = part / 255
        return share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = color
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)


def contrast(one: RGB, other: RGB) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def mix(one: RGB, other: RGB, share: float) -> RGB:
    """`share` of the other colour in the one."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def readable(color: RGB, ground: RGB, ratio: float) -> RGB:
    """The colour itself, or as little darker or lighter as gives the ratio on this ground."""
    goal = max((BLACK, WHITE), key=lambda pole: contrast(pole, ground))
    for step in range(21):
        tried = mix(color, goal, step / 20)
        if contrast(tried, ground) >= ratio:
            return tried
    return goal


def build(colors: list[RGB], pick: int) -> Palette:
    """Roles for the colours given: the first lively one leads, the darkest writes, another one accents."""
    ours = [color for text in _OURS[pick % len(_OURS)] if (color := parse(text))]
    given = list(dict.fromkeys(colors)) or ours
    lively = [color for color in given if _chroma(color) > 0.15] or given
    primary = lively[0]
    others = [color for color in lively[1:] + given if color != primary]
    darkest = min(given, key=luminance)
    night = darkest if luminance(darkest) < 0.05 else mix(NIGHT, primary, 0.08)
    paper = WHITE if contrast(primary, WHITE) >= 1.9 else night
    accent = next((color for color in others if color != paper), None) or _turned(primary)
    return Palette(
        paper=paper,
        ink=readable(night if paper == WHITE else primary, paper, 7),
        primary=readable(primary, paper, 1.9),
        accent=readable(accent, paper, 1.9),
        night=night,
    )


def _chroma(color: RGB) -> float:
    return (max(color) - min(color)) / 255


def _turned(color: RGB) -> RGB:
    """A partner for a colour that came alone: its hue turned by 150 degrees, or plain grey made blue."""
    hue, light, saturation = colorsys.rgb_to_hls(*(part / 255 for part in color))
    if saturation < 0.1:
        hue, saturation = 0.6, 0.7
    parts = colorsys.hls_to_rgb((hue + 0.42) % 1, min(max(light, 0.42), 0.62), max(saturation, 0.55))
    red, green, blue = (round(part * 255) for part in parts)
    return red, green, blue
