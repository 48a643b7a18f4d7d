"""Properties that all shipped agents share."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import worker.shipped as shipped
from tests.fakes.job import FakeJob, run

SOURCES = sorted(Path(shipped.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_importing_shipped_agents_needs_only_the_standard_library(path: Path) -> None:
    """Their modules import no library on load, so that every work process starts fast."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    functions = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in guarded | functions:
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [item.name for item in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            root = name.partition(".")[0]
            assert root == "worker" or root in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_shipped_agents_exist() -> None:
    """The test above finds real files."""
    names = {path.stem for path in SOURCES}
    assert names >= {"brief", "chat", "code_review", "explain_code", "logo_design"}


@pytest.mark.parametrize(
    ("module", "agent", "settings"),
    [
        (shipped.brief, shipped.brief.brief, shipped.brief.PROFILES["default"]),
        (shipped.code_review, shipped.code_review.code_review, {}),
        (shipped.explain_code, shipped.explain_code.explain_code, {}),
    ],
)
def test_published_examples_are_accurate(module: Any, agent: Any, settings: dict[str, Any]) -> None:
    """The example output in the manifest is exactly what the example input produces."""
    output = run(agent, FakeJob(module.EXAMPLE_INPUT, settings=settings))
    assert ("".join(output) if isinstance(output, list) else output) == module.EXAMPLE_OUTPUT


def test_output_matches_its_declared_type() -> None:
    """Files only, an object, text in chunks: all four kinds of output are covered."""
    logo = FakeJob({"brief": "Acme"})
    assert run(shipped.logo_design.logo_design, logo) is None and len(logo.files) == 3
    assert isinstance(run(shipped.code_review.code_review, FakeJob({"code": "x = 1"})), dict)
    text = {"text": "The pier of the town broke. It rained."}
    assert isinstance(run(shipped.brief.brief, FakeJob(text)), dict)
    as_text = FakeJob(text, output_schema={"type": "string"})
    assert run(shipped.brief.brief, as_text) == "The pier of the town broke."
    assert all(isinstance(x, str) for x in run(shipped.explain_code.explain_code, FakeJob({"code": "x = 1"})))
