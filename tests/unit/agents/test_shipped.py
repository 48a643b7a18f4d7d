"""What all agents that ship have in common."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import worker.agents.shipped as shipped
from tests.fakes.job import FakeJob, run

SOURCES = sorted(Path(shipped.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_importing_the_agents_needs_nothing_but_python(path: Path) -> None:
    """No file of theirs imports a library when it is loaded, so that every work process starts fast."""
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


def test_there_is_work_to_reckon_with() -> None:
    """The test above looks at real files."""
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
def test_published_examples_are_true(module: Any, agent: Any, settings: dict[str, Any]) -> None:
    """The example output in the manifest is what the example input gives, to the letter."""
    output = run(agent, FakeJob(module.EXAMPLE_INPUT, settings=settings))
    assert ("".join(output) if isinstance(output, list) else output) == module.EXAMPLE_OUTPUT


def test_each_output_has_the_form_its_agent_promises() -> None:
    """Files only, an object, and text by pieces: the four kinds of output are all here."""
    logo = FakeJob({"brief": "Acme"})
    assert run(shipped.logo_design.logo_design, logo) is None and len(logo.files) == 3
    assert isinstance(run(shipped.code_review.code_review, FakeJob({"code": "x = 1"})), dict)
    assert isinstance(run(shipped.brief.brief, FakeJob({"prompt": "The pier broke."})), dict)
    as_text = FakeJob({"prompt": "The pier broke."}, output_schema={"type": "string"})
    assert run(shipped.brief.brief, as_text) == "The pier broke."
    assert all(isinstance(x, str) for x in run(shipped.explain_code.explain_code, FakeJob({"code": "x = 1"})))
