"""Draws bars as an SVG file: readable in light and dark, its text is text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

LABEL, BARS, VALUE = 130, 400, 80
ROW, BAR, HEAD, MARGIN = 24, 16, 34, 14
WIDTH = MARGIN + LABEL + BARS + VALUE + MARGIN
# Tell apart for most eyes, on a light and on a dark ground.
COLOURS = (("#2f6fb0", "#6ba8e5"), ("#c8781e", "#e9a354"), ("#3d8f5f", "#6cc592"))


@dataclass(frozen=True)
class Panel:
    """Bars of one unit on one scale. A bar has one value for each of `parts`, drawn one after the other."""

    title: str
    bars: Mapping[str, Sequence[float]]
    parts: Sequence[str] = ("",)

    @property
    def height(self) -> int:
        return HEAD + ROW * len(self.bars)


def svg(title: str, panels: Sequence[Panel]) -> str:
    """The picture with a ground of its own, because the page's colours are not known to a file."""
    drawn, top = [], MARGIN
    for panel in panels:
        drawn += _panel(panel, top)
        top += panel.height + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" height="{top}" '
            f'viewBox="0 0 {WIDTH} {top}">',
            f"<title>{escape(title)}</title>",
            f"<style>{_style()}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{top}" rx="6"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )


def number(value: float) -> str:
    """As many digits as count, thousands divided."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def _style() -> str:
    light = "".join(f".part{place}{{fill:{pair[0]}}}" for place, pair in enumerate(COLOURS))
    dark = "".join(f".part{place}{{fill:{pair[1]}}}" for place, pair in enumerate(COLOURS))
    return (
        "text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600}.ground{fill:#f6f8fa}"
        f"{light}@media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.ground{{fill:#161b22}}{dark}}}"
    )


def _panel(panel: Panel, top: int) -> list[str]:
    longest = max((sum(parts) for parts in panel.bars.values()), default=0.0) or 1.0
    drawn = [_text(MARGIN, top + 14, panel.title, "title")]
    if len(panel.parts) > 1:
        drawn += _legend(panel.parts, top)
    for place, (label, parts) in enumerate(panel.bars.items()):
        middle = top + HEAD + ROW * place + ROW // 2
        drawn += [_text(MARGIN, middle + 4, label), *_bar(parts, longest, middle)]
    return drawn


def _bar(parts: Sequence[float], longest: float, middle: int) -> list[str]:
    """The parts of one bar, and their sum behind it."""
    drawn, x = [], float(MARGIN + LABEL)
    for place, value in enumerate(parts):
        width = BARS * value / longest
        drawn.append(
            f'<rect class="part{place}" x="{x:.1f}" y="{middle - BAR // 2}" '
            f'width="{width:.1f}" height="{BAR}"/>'
        )
        x += width
    return [*drawn, _text(x + 6, middle + 4, number(sum(parts)))]


def _legend(parts: Sequence[str], top: int) -> list[str]:
    drawn, x = [], WIDTH - MARGIN - 70 * len(parts)
    for place, name in enumerate(parts):
        drawn.append(f'<rect class="part{place}" x="{x}" y="{top + 4}" width="12" height="12"/>')
        drawn.append(_text(x + 18, top + 14, name))
        x += 70
    return drawn


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    shown = f' class="{kind}"' if kind else ""
    return f'<text{shown} x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'
