"""docs/security.md and docs/reliability.md name a test for each row, and each named test exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/security.md", "docs/reliability.md")
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`( \(soak\))?")
# Papers of 2026 with attacks on payers, sellers or the protocol.
PAPERS = ("2605.11781", "2605.30998", "2607.19545", "2607.00245", "2602.06345", "2604.11430")


def rows(page: str) -> Iterator[list[str]]:
    """The rows of the tables whose last column names tests, as cells."""
    last = ""
    for line in (ROOT / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            last = ""
        elif not last:
            last = cells[-1].strip(" |")
        elif last == "test" and not line.startswith("|---"):
            yield cells


@cache
def functions_of(path: str) -> dict[str, bool]:
    """Each test of a file, and whether only `make soak` runs it."""
    tree = ast.parse((ROOT / path).read_text())
    return {
        each.name: any(ast.unparse(mark) == "pytest.mark.soak" for mark in each.decorator_list)
        for each in tree.body
        if isinstance(each, ast.FunctionDef)
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_named_test_exists(page: str) -> None:
    """A renamed test is renamed in the page, and those that only `make soak` runs are marked."""
    named = TEST.findall((ROOT / page).read_text())
    assert len(named) >= 10
    for path, name, soak in named:
        assert (ROOT / path).exists(), path
        assert functions_of(path).get(name) == bool(soak), f"{path}::{name}"


@pytest.mark.parametrize("page", PAGES)
def test_no_test_is_named_without_its_function(page: str) -> None:
    """A file alone does not say which test repeats the attack; only a table's own harness may stand so."""
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / page).read_text()))
    assert files <= {"tests/e2e/hostile/test_payer.py", "tests/e2e/money/test_reliability.py"}


def test_every_attack_has_a_test() -> None:
    """Each row names at least one, or says that the attack does not apply."""
    found = list(rows("docs/security.md"))
    assert len(found) >= 45
    assert [row for row in found if not TEST.search(row[-1]) and "not applicable" not in row[-1]] == []


def test_every_paper_has_a_row() -> None:
    """The named attacks are those of the papers that we know."""
    text = (ROOT / "docs/security.md").read_text()
    assert [paper for paper in PAPERS if f"(arXiv {paper})" not in text] == []
