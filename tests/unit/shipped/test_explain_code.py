"""The streaming code explanation agent."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.fakes.job import FakeJob, run
from worker.core.errors import InvalidInput
from worker.shipped.explain_code import MAX_PARTS, explain_code
from worker.shipped.review.source import MAX_CODE

CODE = '''"""Keeps tides."""
from __future__ import annotations
import json
import requests
from . import harbour

LIMIT = 3

class Tide(harbour.Record):
    """One reading.

    More words.
    """
    height: float
    def save(self, path):
        with open(path, "w") as f:
            json.dump(self.height, f)
    def _hidden(self): ...

def fetch(url, *, retries=2):
    """Ask the station."""
    global LIMIT
    if retries < 0:
        raise ValueError("retries")
    return requests.get(url)

def readings(urls):
    for url in urls:
        yield fetch(url)

def main():
    for r in readings([]):
        print(r)

if __name__ == "__main__":
    main()
'''


def tour(code: str) -> str:
    return "".join(run(explain_code, FakeJob({"code": code})))


def test_explanation_is_streamed() -> None:
    """The agent is a text generator, so the first section is sent before the last is computed."""
    assert inspect.isgeneratorfunction(explain_code)
    job = FakeJob({"code": CODE})
    chunks = run(explain_code, job)
    assert len(chunks) >= 6 and all(isinstance(chunk, str) for chunk in chunks)
    fractions = [fraction for fraction, _ in job.progressed]
    assert fractions and fractions == sorted(fractions) and all(0 <= f <= 1 for f in fractions)


def test_explanation_lists_all_definitions() -> None:
    """Imports, definitions, what they call, raise, touch and change, and a reading order."""
    text = tour(CODE)
    for sentence in (
        "A module of 36 lines with 3 functions and 1 class.",
        "It says of itself: Keeps tides.",
        "It can be started as a program.",
        "- the standard library: `json`",
        "- other packages: `requests`",
        "- its own package, by relative imports",
        "### class `Tide` (line 9)",
        "One reading.",
        "- offers `save`",
        "- holds `height`",
        "- `save` reads or writes files (`open`)",
        "### function `fetch(url, *, retries)` (lines 20 to 25)",
        "- raises `ValueError`",
        "- talks to the network (`requests`)",
        "- changes module state: `LIMIT`",
        "- calls `fetch`",
        "- yields its results one by one",
        "- talks to the terminal (`print`)",
        "Read in this order: `Tide` → `main` → `readings` → `fetch`",
        "Nothing in it is too branched",
    ):
        assert sentence in text
    assert "_hidden" not in text and "More words" not in text


def test_branched_functions_are_named() -> None:
    """A function with many branches is named."""
    text = tour("def knot(a):\n" + "    if a: pass\n" * 12)
    assert "`knot` on line 1: 13 ways through it" in text


@pytest.mark.parametrize(
    "input", [None, {}, {"code": ""}, {"code": 5}, {"code": "x" * (MAX_CODE + 1)}, {"code": "def f(:"}, []]
)
def test_unparsable_input_is_refused(input: Any) -> None:
    """Missing, overlong and unparsable code is refused by its field before any output."""
    with pytest.raises(InvalidInput) as caught:
        run(explain_code, FakeJob(input))
    assert caught.value.details["field"] == "code"


def test_docstrings_cannot_act_as_markup() -> None:
    """Text from the code is shown as plain text: no link, image, tag or code span survives."""
    text = tour('"""![x](https://evil.example) <script>alert(1)</script> `a` \\x1b[31m"""\n')
    assert "<script>" not in text.replace("\\<", "") and "![x]" not in text and "\x1b" not in text
    assert "\\!\\[x\\](https://evil.example) \\<script\\>" in text


def test_large_modules_are_bounded() -> None:
    """Thousands of definitions, huge names and mutual calls give an explanation of bounded length."""
    many = "".join(f"def f{i}(a):\n    return f{(i + 1) % 3000}(a)\n" for i in range(3000))
    text = tour(many)
    assert f"{3000 - MAX_PARTS} more parts are not shown" in text and len(text) < 60_000
    long = tour(f"def {'a' * 50_000}({', '.join('b' * 20 + str(i) for i in range(200))}): pass")
    assert len(long) < 2000


def test_code_without_definitions_is_explained() -> None:
    """A script without definitions gets an explanation without empty sections."""
    text = tour("x = 1\n")
    assert "no function and no class" in text and "## Its parts" not in text and "Where to start" not in text
