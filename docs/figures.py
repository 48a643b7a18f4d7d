"""The figures of docs/performance.md: tables, charts and the check of its model, from bench/results.json."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from docs.bar_chart import Panel, number, svg

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results.json"
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
BLOCK = re.compile(r"(?<=<!-- figures: )(\w+)( -->\n).*?(?=<!-- /figures -->)", re.DOTALL)

Row = Mapping[str, Any]
# Column heads by figure.
_HEADS = {
    "cpu_us": "CPU µs",
    "web_us": "web",
    "work_us": "work",
    "store_us": "store",
    "load_us": "load and facilitator",
    "giver_us": "producer",
    "trips": "trips",
    "alone_trips": "trips, one connection",
    "commands": "commands",
    "per_second": "a second",
    "p50_ms": "p50 ms",
    "added_ms": "over two calls, ms",
    "p95_ms": "p95 ms",
    "p99_ms": "p99 ms",
    "open_p99_ms": "p99 ms, open loop",
    "of_bound": "of the bound",
    "poll_p99_ms": "p99 ms of polls",
    "kb_each": "kB a follower",
    "idle_share": "of a core when idle",
    "first_answer_s": "first answer, s",
    "pss_mb": "MB, the process",
    "tree_mb": "MB, all of them",
    "client_us": "client",
    "asked_us": "402 µs",
    "paid_us": "paid µs",
    "replayed_us": "replay µs",
    "listed_us": "list µs",
    "asked_commands": "402 commands",
    "paid_commands": "paid commands",
    "replayed_commands": "replay commands",
    "listed_commands": "list commands",
}
_COST = ("cpu_us", "web_us", "work_us", "store_us")
# The columns of each table, in the order of the page.
_COLUMNS: dict[str, Sequence[str]] = {
    "paid": (
        *(*_COST, "trips", "alone_trips", "commands", "per_second"),
        *("p50_ms", "added_ms", "p99_ms", "open_p99_ms"),
    ),
    "cores": ("per_second", *_COST, "load_us", "p50_ms", "added_ms"),
    "answers": ("web_us", "store_us", "trips", "commands", "per_second"),
    "slow": ("per_second", "of_bound", "p50_ms", "p99_ms", "poll_p99_ms", "cpu_us"),
    "throughput": ("per_second", "web_us", "work_us", "store_us", "giver_us", "trips", "commands"),
    "kernel": ("per_second", "p50_ms", "p99_ms", "trips", "commands", "web_us", "store_us", "client_us"),
    "followers": ("p50_ms", "p99_ms", "kb_each", "web_us"),
    "webhooks": ("per_second", "cpu_us"),
    "growth": (
        *(
            f"{answer}_{figure}"
            for figure in ("us", "commands")
            for answer in ("asked", "paid", "replayed", "listed")
        ),
        "idle_share",
    ),
    "web": ("first_answer_s", "pss_mb", "tree_mb"),
    "latency": ("p50_ms", "p95_ms"),
    "swarm": ("per_second", "p50_ms", "p99_ms", "cpu_us"),
}
_PARTS = ("web", "work", "store")
_NAMES = {"worker": "worker (contract)", "plain": "worker (plain)"}


@cache
def measured() -> dict[str, Row]:
    """The rows that were measured, by name; one that failed has no figures."""
    return {row["name"]: row for row in json.loads(RESULTS.read_text())["measurements"]}


def page() -> str:
    """docs/performance.md with the figures of the last run."""
    return BLOCK.sub(lambda found: f"{found[1]}{found[2]}{BLOCKS[found[1]]()}", PAGE.read_text())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def taken() -> str:
    """When, where and with what."""
    at = json.loads(RESULTS.read_text())["machine"]
    days = sorted({row["taken_at"][:10] for row in measured().values()})
    libraries = ", ".join(f"{name} {version}" for name, version in {**at["libraries"], **at["peers"]}.items())
    return (
        f"Taken on {' to '.join(dict.fromkeys((days[0], days[-1])))} on {at['cpus']} cores of {at['cpu']}, "
        f"{at['system']}, Python {at['python']}; {at['store']}. {libraries}.\n"
    )


def goals() -> str:
    """Every goal with what was found."""
    rows = []
    for row in measured().values():
        for goal in row["goals"]:
            limit = f"{'≥' if goal['kind'] == 'at least' else '≤'} {number(goal['limit'])}"
            verdict = "yes" if goal["met"] else "**no**"
            rows.append([row["name"], goal["goal"], limit, number(goal["found"]), verdict])
    return _table(["row", "goal", "limit", "found", "met"], rows)


def _row_table(name: str) -> str:
    row = measured().get(name, {"failed": "it has not been run"})
    if "failed" in row:
        return f"Not measured: {row['failed']}.\n"
    contenders = row["contenders"]
    columns = [
        each for each in _COLUMNS[name] if any(each in found["median"] for found in contenders.values())
    ]
    rounds = max(found["rounds"] for found in contenders.values())
    lines = [[who, *(_cell(found, each) for each in columns)] for who, found in contenders.items()]
    table = _table(["", *(_HEADS[each] for each in columns)], lines)
    about = f"{row['about'][0].upper()}{row['about'][1:]}; medians of {rounds} rounds."
    notes = [re.sub(r"\w+", lambda word: _HEADS.get(word[0], word[0]), note) for note in row["notes"]]
    return "\n".join([about, "", table, *(f"- {note}" for note in notes), *([""] if notes else [])])


def _cell(found: Row, figure: str) -> str:
    """A dash for what does not exist; who has no store shows only the reading of its counters."""
    value = found["median"].get(figure)
    none = value is None or (figure in ("trips", "alone_trips", "commands") and value < 0.1)
    return "–" if none else number(value)


def _sellers(*figures: str) -> dict[str, list[float]]:
    """These figures of a paid task, by seller."""
    contenders = measured().get("paid", {}).get("contenders", {})
    return {
        _NAMES.get(name, name): [found["median"][each] for each in figures]
        for name, found in contenders.items()
    }


def _cost_panel() -> Panel:
    return Panel("CPU µs for a paid task", _sellers("web_us", "work_us", "store_us"), _PARTS)


def _rate_panel() -> Panel:
    return Panel("Paid tasks a second on one core, 64 connections", _sellers("per_second"))


def _latency_panels() -> list[Panel]:
    return [
        Panel("p50 ms, one connection", _sellers("p50_ms")),
        Panel("p99 ms, 32 connections", _sellers("p99_ms")),
    ]


CHARTS: dict[str, Callable[[], list[Panel]]] = {
    "performance-cost": lambda: [_cost_panel()],
    "performance-rate": lambda: [_rate_panel()],
    "performance-latency": _latency_panels,
}


def chart(name: str) -> str:
    panels = CHARTS[name]()
    return svg("; ".join(panel.title for panel in panels), panels)


def charts() -> str:
    """The charts of a paid task; who cannot see them is told what they show."""
    return "\n".join(f"![{_told(make())}](images/{name}.svg)\n" for name, make in CHARTS.items())


def _told(panels: Sequence[Panel]) -> str:
    said = []
    for panel in panels:
        bars = ", ".join(f"{label} {number(sum(parts))}" for label, parts in panel.bars.items())
        said.append(f"{panel.title}: {bars}.")
    return " ".join(said)


def model() -> str:
    """What the model foretells from the cost of a paid task, beside what was measured."""
    rows = [_checked(*point) for point in _points()]
    return _table(["point", "foretold, a second", "measured", "error"], rows)


def _checked(point: str, foretold: float, found: float) -> list[str]:
    return [point, number(foretold), number(found), f"{(foretold / found - 1) * 100:+.0f} %"]


def _points() -> list[tuple[str, float, float]]:
    """Name, foretold and measured, of each point whose rows were measured."""
    points, rows = [], {name: row["contenders"] for name, row in measured().items() if "contenders" in row}
    if "paid" not in rows:
        return []
    cost = rows["paid"]["worker"]["median"]
    points.append(("`paid`: everything on one core", bound(cost), cost["per_second"]))
    if "cores" in rows:
        found = rows["cores"]["worker"]["median"]
        with_load = bound(cost, cores=2, load=found["load_us"])
        points.append(("`cores`: the same processes on two cores", with_load, found["per_second"]))
    if "slow" in rows:
        found = rows["slow"]["plain"]["median"]
        open_bound = found["per_second"] / found["of_bound"]
        own = bound(rows["paid"]["plain"]["median"])
        points.append(("`slow`: 256 connections, 2.1 s", min(open_bound, own), found["per_second"]))
    return points


def bound(
    cost: Mapping[str, float], *, web: int = 1, work: int = 1, cores: int = 1, load: float = 0.0
) -> float:
    """Paid tasks a second; `load` is what else takes the same cores, µs a task."""
    web_us, work_us, store_us = (cost[f"{part}_us"] for part in _PARTS)
    each = (web / web_us, work / work_us, 1 / store_us, cores / (web_us + work_us + store_us + load))
    return min(each) * 1e6


BLOCKS: dict[str, Callable[[], str]] = {
    "taken": taken,
    "goals": goals,
    "charts": charts,
    "model": model,
    **{name: lambda name=name: _row_table(name) for name in _COLUMNS},  # type: ignore[misc]
}
