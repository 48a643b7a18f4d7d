"""Invalid declarations are reported at start, all at once with their location, and affect nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.published_catalog import PublishedCatalog
from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Capability, Registry
from worker.core.settings import Settings
from worker.hiring.manifest import Manifest
from worker.x402.networks import BASE_SEPOLIA

BAD_MODULE = """
from worker import agent, tool


@agent("comma", price="0,05")
def comma(job): ...


@agent("binary", price=0.05, attempts=0)
def binary(job): ...


@agent("gift", price="-1", settle="later")
def gift(job): ...


@agent("Spaced Out", time_limit="5m")
def spaced(job): ...


@agent
def bare(job): ...


@tool("count", attempts="many")
def count(job): ...


@agent("fine", price="0.05")
def fine(job): ...
"""


def faults(**options: Any) -> list[tuple[str, str]]:
    """Return the refused fields of a declaration with these options, and the expectation of each."""
    registry = Registry()
    registry.agent("one", **options)(print)
    found = registry.take_problems()
    assert bool(found) == ("one" not in registry.capabilities)
    return [(each.name.partition(" one")[2].removeprefix("."), each.expected) for each in found]


def test_invalid_declarations_are_all_listed(tmp_path: Path) -> None:
    """One start prints one table: module, line, field, found, expected; no traceback."""
    (tmp_path / "badshop.py").write_text(BAD_MODULE)
    environ = {name: value for name, value in os.environ.items() if name not in Settings.names()}
    environ |= {"PYTHONPATH": str(tmp_path), "WORKER_AGENTS": "badshop", "REDIS_URL": "redis://127.0.0.1:1/0"}
    done = subprocess.run(
        [sys.executable, "-m", "worker", "work"],
        env={**environ, "WORKER_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    named = [line.split("  ")[0] for line in done.stderr.splitlines() if line.startswith("badshop:")]
    assert named == [
        "badshop:5 comma.price",
        "badshop:9 binary.price",
        "badshop:9 binary.attempts",
        "badshop:13 gift.price",
        "badshop:13 gift.settle",
        "badshop:17 Spaced Out",
        "badshop:17 Spaced Out.time_limit",
        "badshop:21 bare",
        "badshop:25 count.attempts",
    ]
    assert 'such as "0.50"' in done.stderr
    assert "0,05" in done.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("price", price)
        for price in ("0,05", 0.05, "-1", "1e3", "", " 1", "0.0000001", 5, True, None, Decimal("0.05"), "NaN")
    ]
    + [
        ("time_limit", 0),
        ("time_limit", float("nan")),
        ("time_limit", float("inf")),
        ("time_limit", "30"),
        ("time_limit", True),
        ("max_latency_ms", 1.5),
        ("attempts", True),
        ("inline", 1),
        ("settle", "before"),
        ("tags", "a"),
        ("task_types", ["with space"]),
        ("profiles", {"p": 1}),
        ("profiles", {"p": {"x": {1}}}),
        ("example_input", {1, 2}),
        ("example_output", float("nan")),
        ("input_schema", []),
        ("input_schema", {"type": "objekt"}),
        ("output_schema", {"$ref": "https://elsewhere.example"}),
        ("check", "a function"),
        ("description", None),
    ],
)
def test_invalid_option_value_is_refused(option: str, value: Any) -> None:
    """Any invalid value is refused at declaration, with its option."""
    found = faults(**{option: value})
    assert found and all(field.startswith(option) and expected for field, expected in found)


@pytest.mark.parametrize("price", ["0", "1", "0.05", "0.000001", "9999999.999999"])
def test_decimal_prices_are_accepted(price: str) -> None:
    """A price is text with at most six decimals."""
    assert faults(price=price) == []


def test_an_example_must_fit_its_schema() -> None:
    """Contracts are checked against the published example, so it must fit its own schema."""
    schema = {"type": "object", "required": ["score"]}
    assert faults(output_schema=schema, example_output={"score": 1}) == []
    [(field, expected)] = faults(output_schema=schema, example_output={})
    assert (field, "output_schema" in expected) == ("example_output", True)


def test_sold_capability_needs_a_valid_name() -> None:
    """A free agent may have any remote agent's name; a priced one needs a HIRE name."""
    registry = Registry()
    registry.agent("Team.Helper")(print)
    registry.agent("Team.Seller", price="1")(print)
    assert [each.found for each in registry.take_problems()] == ["Team.Seller"]
    assert set(registry.capabilities) == {"Team.Helper"}


@pytest.mark.parametrize(
    "bad",
    ['{"name":"bad","price":"0,05"}', '{"name":"bad","price":0.05}', '{"price":"1"}', "7", '{"name":[]}'],
)
def test_invalid_capability_does_not_hide_the_others(bad: str) -> None:
    """The entry may come from another version of the worker; the other capabilities stay on sale."""
    held = f'[{{"name":"good","price":"0.05"}},{bad},{{"name":"late","price":"1"}}]'
    catalog = Catalog(PublishedCatalog(held.encode()))
    manifest = Manifest(Settings(), catalog, BASE_SEPOLIA, None)
    sold = [each["name"] for each in manifest.document()["capabilities"]]
    assert sold == ["good", "late"]
    assert catalog.get("good") == Capability(name="good", price="0.05")
