"""A remote agent in worker.toml has the same options and rules as a local one in code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.published_catalog import PublishedCatalog
from worker.capabilities.catalog import Catalog, describe, offered
from worker.capabilities.declare import Registry
from worker.capabilities.overrides import load_overrides
from worker.core.settings import BadStart, Settings
from worker.hiring.manifest import Manifest
from worker.x402.networks import BASE_SEPOLIA

DECLARED = """
[capability.translate]
remote = true
price = "1.20"
time_limit = "5m"
description = "Translates English into French."
input_schema = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
output_schema = "schemas/translation.json"
example_input = { text = "Good morning" }
example_output = { text = "Bonjour" }
settle = "before_work"
attempts = 2
model = "marian"
tags = ["language", "french"]
inline = true
"""
SCHEMA = {"type": "object", "required": ["text"]}


@pytest.fixture(name="config")
def _config(tmp_path: Path) -> Path:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/translation.json").write_text(json.dumps(SCHEMA))
    return tmp_path / "worker.toml"


def test_a_remote_agent_is_declared_in_full(config: Path) -> None:
    """Every option appears in the manifest that seekers read, through the published catalog."""
    config.write_text(DECLARED)
    [declared] = offered(Registry(), load_overrides(config)).values()
    assert (declared.remote, declared.price, declared.time_limit) == (True, "1.2", 300)
    assert (declared.settle, declared.attempts, declared.tags) == ("before_work", 2, ("language", "french"))
    assert declared.output_schema == SCHEMA and declared.inline
    held = json.dumps([describe(declared)]).encode()
    catalog = Catalog(PublishedCatalog(held))
    assert catalog.get("translate") == declared
    [sold] = Manifest(Settings(), catalog, BASE_SEPOLIA, None).document()["capabilities"]
    assert sold["description"] == "Translates English into French."
    assert sold["example_input"] == {"text": "Good morning"}
    assert sold["input_schema"]["required"] == ["text"]


@pytest.mark.parametrize(
    ("line", "place", "expected"),
    [
        ("description = 5", "description", "text"),
        ('input_schema = { type = "objekt" }', "input_schema", "JSON Schema"),
        ('input_schema = "missing.json"', "input_schema", "a JSON file in"),
        (
            'output_schema = { type = "object", required = ["n"] }\nexample_output = {}',
            "example_output",
            "as",
        ),
        ('settle = "later"', "settle", "after_work"),
        ("attempts = 0", "attempts", "from 1"),
        ("inline = 1", "inline", "True or False"),
        ("example_input = 2026-01-01", "example_input", "JSON"),
        ('descripton = "x"', "descripton", "description, perhaps"),
    ],
)
def test_a_mistake_has_its_line(config: Path, line: str, place: str, expected: str) -> None:
    """The same refusals as in code, with the line in the file."""
    config.write_text(f'[capability.translate]\nremote = true\nprice = "1"\n{line}\n')
    with pytest.raises(BadStart) as bad:
        load_overrides(config)
    [problem] = bad.value.problems
    assert f"capability.translate.{place}" in problem.name and f"{config}:" in problem.name
    assert expected in problem.expected


def test_an_option_of_a_local_agent_stays_in_its_code(config: Path) -> None:
    """An option in two places could contradict itself."""
    config.write_text('[capability.logo-design]\ndescription = "x"\n')
    with pytest.raises(BadStart, match="remote = true"):
        load_overrides(config)
