"""docs/authors.md: its agents are declared and run, its tests pass, its configuration loads."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.capabilities.declare import REGISTRY
from worker.capabilities.overrides import load_overrides
from worker.testing import run

PAGE = (Path(__file__).parents[2] / "docs/authors.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(name="page", autouse=True, scope="module")
def _page() -> Iterator[None]:
    """The page's agents, declared for these tests only."""
    before = dict(REGISTRY.capabilities), dict(REGISTRY.tools)
    module = sys.modules["authors_page"] = types.ModuleType("authors_page")
    exec(compile("\n".join(blocks("python")), "authors_page.py", "exec"), module.__dict__)
    assert REGISTRY.take_problems() == []
    yield
    REGISTRY.capabilities, REGISTRY.tools = before


def test_the_tests_on_the_page_pass() -> None:
    """Each test function on the page passes unchanged."""
    scope: dict[str, object] = {}
    for block in blocks("py"):
        if "worker.testing" in block:
            exec(block, scope)
    tests = [value for name, value in scope.items() if name.startswith("test_") and callable(value)]
    assert len(tests) == 3
    for test in tests:
        test()


def test_every_agent_on_the_page_does_what_is_said() -> None:
    """Streams, waits, models and swarm tasks behave as the page describes."""
    assert run("tale", {"hero": "a cat"}).said == "Once upon a time there was a cat. "
    assert run("checked", {"text": "x"}, signals={"review": {}}).output == "x"
    bought = {name: run(name, {"text": "so it goes " * 30}) for name in ("digest", "digest-long")}
    assert [len(each.output.split()) for each in bought.values()] == [20, 60]
    assert [each.charge for each in bought.values()] == ["0.03", "0.08"]
    answers = iter(["five seven five"])
    assert run("haiku", {"topic": "tests"}, tools={"model.ask": lambda url, prompt: next(answers)}).output
    sure = run("critic", {"prompt": "a text that is long enough"}, stage="EXPLORE").output
    assert (sure["confidence"], sure["check_summary"]) == (0.9, "stage=EXPLORE; 26 characters")
    assert run("critic", {"prompt": "short"}).output["answer"].startswith("Abstain")


def test_the_remote_agent_on_the_page_is_declared(tmp_path: Path) -> None:
    """The page's table is parsed unchanged, with its schema file."""
    [table] = blocks("toml")
    (tmp_path / "worker.toml").write_text(table)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/picture.json").write_text('{"type": "object"}')
    override = load_overrides(tmp_path / "worker.toml")["painter"]
    assert override.remote and override.options["model"] == "painter-2"
