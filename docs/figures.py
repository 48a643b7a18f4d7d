"""The tables and the picture of docs/performance.md, from the last full run of the benchmarks."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "bench" / "results.json"
# Figures in the order of the columns; a table shows those that its rows have.
COLUMNS = {
    "cpu_us": "CPU µs",
    "web_us": "web CPU µs",
    "store_us": "store µs",
    "trips": "trips",
    "commands": "commands",
    "per_second": "a second",
    "of_bound": "of the bound",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "poll_p99_ms": "polls p99 ms",
    "kept_bytes": "bytes kept",
    "kb_each": "kB each",
    "first_answer_s": "first answer s",
    "rss_mb": "MB",
    "tree_mb": "MB with parent",
}
_BAR, _ROW, _LABEL = 420, 26, 120


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def tables() -> str:
    """All measurements, each with its goals."""
    found = results()
    machine = found["machine"]
    head = (
        f"Taken on {found['taken_at'][:10]} with {machine['cpus']} cores, Python {machine['python']}, "
        f"{machine['store']}. Medians of interleaved rounds.\n"
    )
    return "\n".join([head, *(_measurement(each) for each in found["measurements"])])


def _measurement(found: dict[str, Any]) -> str:
    rows = {name: each["median"] for name, each in found["contenders"].items()}
    shown = [name for name in COLUMNS if any(name in row for row in rows.values())]
    lines = [
        f"### {found['name']}",
        "",
        f"{found['about'][0].upper()}{found['about'][1:]}.",
        "",
        "| | " + " | ".join(COLUMNS[name] for name in shown) + " |",
        "|---" * (len(shown) + 1) + "|",
    ]
    for name, row in rows.items():
        cells = [f"{row[each]:,.4g}" if each in row else "–" for each in shown]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if found["goals"]:
        lines += ["", "| goal | found | wanted | |", "|---|---|---|---|"]
    for goal in found["goals"]:
        verdict = "met" if goal["met"] else "**missed**"
        lines.append(
            f"| {goal['goal']} | {goal['found']:,g} | {goal['kind']} {goal['limit']:,g} | {verdict} |"
        )
    return "\n".join([*lines, *("", *(f"- {note}" for note in found["notes"])), ""])


def picture() -> str:
    """CPU of a paid task, a bar for each seller."""
    paid = next(each for each in results()["measurements"] if each["name"] == "paid")
    rows = {name: each["median"]["cpu_us"] for name, each in paid["contenders"].items()}
    most, height = max(rows.values()), _ROW * len(rows) + 10
    bars = []
    for number, (name, value) in enumerate(rows.items()):
        top, wide = 5 + number * _ROW, max(1, round(_BAR * value / most))
        fill = "#1f5fbf" if name in ("worker", "plain") else "#8a94a6"
        bars.append(
            f'<text x="{_LABEL - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_LABEL}" y="{top + 3}" width="{wide}" height="16" rx="2" fill="{fill}"/>'
            f'<text x="{_LABEL + wide + 6}" y="{top + 15}">{value:,.0f} µs</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LABEL + _BAR + 90} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#6b7280" role="img" '
        'aria-label="CPU of a paid task by seller">' + "".join(bars) + "</svg>\n"
    )
