"""docs/performance.md: tables, charts and model, made from the published results of the benchmarks."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from docs import figures
from docs.bar_chart import Panel, number, svg

COST = {"web_us": 2_000.0, "work_us": 400.0, "store_us": 600.0}


@pytest.fixture(name="results")
def _results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Rows that the page is made of in place of the published ones."""
    rows: dict[str, Any] = {}
    monkeypatch.setattr(figures, "measured", lambda: rows)
    return rows


def row(name: str, contenders: dict[str, dict[str, float]], **more: Any) -> dict[str, Any]:
    shown = {who: {"rounds": 5, "median": median} for who, median in contenders.items()}
    return {"name": name, "about": "about it", "contenders": shown, "goals": [], "notes": [], **more}


def test_published_results_come_from_a_full_run() -> None:
    """A quick run is a check and is never published."""
    assert json.loads(figures.RESULTS.read_text())["quick"] is False


def test_every_block_of_the_page_can_be_made() -> None:
    """The page has a place for each block, and no place for anything else."""
    named = [found[0] for found in figures.BLOCK.findall(figures.PAGE.read_text())]
    assert sorted(named) == sorted(figures.BLOCKS)


def test_table_has_a_row_per_contender(results: dict[str, Any]) -> None:
    """A figure that a contender does not have is a dash; names of figures in notes are those of the heads."""
    found = {"worker": {"per_second": 1_234.0, "cpu_us": 5.25}, "requests": {"per_second": 0.004}}
    results["webhooks"] = row("webhooks", found, notes=["cpu_us is dear"])
    text = figures.BLOCKS["webhooks"]()
    assert "| worker | 1,234 | 5.25 |" in text
    assert "| requests | 0.004 | – |" in text
    assert "About it; medians of 5 rounds." in text
    assert "- CPU µs is dear" in text


def test_seller_without_a_store_has_no_trips(results: dict[str, Any]) -> None:
    """Reading the store's counters costs a few trips, which are not the seller's."""
    worker = {"trips": 4.26, "alone_trips": 8.1, "commands": 206.0}
    flask = {"trips": 0.006, "alone_trips": 0.04, "commands": 0.006}
    results["paid"] = row("paid", {"worker": worker, "flask": flask})
    text = figures.BLOCKS["paid"]()
    assert "| worker | 4.26 | 8.1 | 206 |" in text
    assert "| flask | – | – | – |" in text


def test_missing_rows_say_so(results: dict[str, Any]) -> None:
    """What failed or was not run has no figures, and the rest of the page stands."""
    results["slow"] = {"name": "slow", "failed": "OSError: no store", "goals": []}
    assert figures.BLOCKS["slow"]() == "Not measured: OSError: no store.\n"
    assert figures.BLOCKS["web"]().startswith("Not measured")
    assert figures.BLOCKS["model"]().count("\n") == 2
    assert "<svg" in figures.chart("performance-cost")


def test_goals_are_listed_with_their_verdicts(results: dict[str, Any]) -> None:
    """Each goal has its limit, what was found and whether it is met."""
    goal = {"goal": "speed", "found": 0.4, "limit": 0.5, "kind": "at least", "met": False}
    results["paid"] = row("paid", {}, goals=[goal])
    assert "| paid | speed | ≥ 0.5 | 0.4 | **no** |" in figures.BLOCKS["goals"]()


@pytest.mark.parametrize(
    ("setup", "tasks"),
    [
        ({}, 333.3),  # everything on one core
        ({"cores": 8}, 500.0),  # one web process
        ({"cores": 16, "web": 8}, 1_666.7),  # one store
        ({"cores": 2, "web": 2, "load": 1_000.0}, 500.0),  # load has the same cores
    ],
)
def test_model_is_bound_by_the_scarcest(setup: dict[str, Any], tasks: float) -> None:
    """Web processes, the store's one thread, or all cores: what is used up first decides."""
    assert figures.bound(COST, **setup) == pytest.approx(tasks, abs=0.1)


def test_model_is_compared_with_what_was_measured(results: dict[str, Any]) -> None:
    """The error is that of the forecast."""
    paid = {**COST, "per_second": 300.0}
    results["paid"] = row("paid", {"worker": paid, "plain": paid})
    results["cores"] = row("cores", {"worker": {"load_us": 1_000.0, "per_second": 500.0}})
    results["slow"] = row("slow", {"plain": {"per_second": 95.0, "of_bound": 0.95}})
    lines = figures.BLOCKS["model"]().splitlines()[2:]
    assert [line.split(" | ")[1:] for line in lines] == [
        ["333", "300", "+11 % |"],
        ["500", "500", "+0 % |"],
        ["100", "95", "+5 % |"],
    ]


def test_charts_are_drawn_to_scale() -> None:
    """The longest bar fills the width, the others in proportion; each shows its parts and its sum as text."""
    picture = svg("A & B", [Panel("time", {"one": [30.0, 10.0], "two": [10.0, 0.0]}, ("web", "store"))])
    texts = [each.text for each in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"time", "web", "store", "one", "two", "40", "10"} == set(texts)
    widths = [
        float(width)
        for width in re.findall(r'class="part\d" x="[\d.]+" y="\d+" width="([\d.]+)" height="16"', picture)
    ]
    assert widths == [300.0, 100.0, 100.0, 0.0]


def test_charts_are_readable_in_light_and_dark() -> None:
    """A file brings its ground and both sets of colours, because it does not know those of the page."""
    picture = svg("chart", [Panel("time", {})])
    assert 'class="ground"' in picture and "prefers-color-scheme:dark" in picture


def test_every_chart_has_a_description(results: dict[str, Any]) -> None:
    """The alternative text has the numbers; the file is one that is made."""
    results["paid"] = row("paid", {"flask": {**COST, "per_second": 864.0, "p50_ms": 1.2, "p99_ms": 30.0}})
    found = re.findall(r"!\[(.+)\]\(images/(.+)\.svg\)", figures.BLOCKS["charts"]())
    assert [name for _, name in found] == list(figures.CHARTS)
    assert [re.findall(r"flask ([\d.,]+\d)", told) for told, _ in found] == [
        ["3,000"],
        ["864"],
        ["1.2", "30"],
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12_345.6, "12,346"),
        (100.0, "100"),
        (99.94, "99.9"),
        (60.0, "60"),
        (1.234, "1.23"),
        (0.004, "0.004"),
        (0, "0"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    """Three digits at most below a thousand."""
    assert number(value) == text
