"""The walk-through agent, which streams."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.fakes.job import FakeJob, run
from worker.agents.shipped.explain_code import MAX_PARTS, explain_code
from worker.agents.shipped.review.source import MAX_CODE
from worker.errors import InvalidInput

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


def test_the_tour_is_a_stream() -> None:
    """The agent is a generator of text, so that a reader sees the first section before the last is made."""
    assert inspect.isgeneratorfunction(explain_code)
    job = FakeJob({"code": CODE})
    chunks = run(explain_code, job)
    assert len(chunks) >= 6 and all(isinstance(chunk, str) for chunk in chunks)
    fractions = [fraction for fraction, _ in job.progressed]
    assert fractions and fractions == sorted(fractions) and all(0 <= f <= 1 for f in fractions)


def test_the_tour_tells_what_is_there() -> None:
    """Imports, parts, what they call, raise, touch and change, and an order to read them in."""
    text = tour(CODE)
    for said in (
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
        assert said in text
    assert "_hidden" not in text and "More words" not in text


def test_branched_functions_are_named() -> None:
    """A function with many ways through it is pointed out."""
    text = tour("def knot(a):\n" + "    if a: pass\n" * 12)
    assert "`knot` on line 1: 13 ways through it" in text


@pytest.mark.parametrize(
    "given", [None, {}, {"code": ""}, {"code": 5}, {"code": "x" * (MAX_CODE + 1)}, {"code": "def f(:"}, []]
)
def test_what_cannot_be_read_is_refused(given: Any) -> None:
    """Missing, overlong and broken code is refused by its field before anything is said."""
    with pytest.raises(InvalidInput) as caught:
        run(explain_code, FakeJob(given))
    assert caught.value.details["field"] == "code"


def test_docstrings_cannot_act_as_markup() -> None:
    """Words of the code are shown as words: no link, image, tag or code span survives."""
    text = tour('"""![x](https://evil.example) <script>alert(1)</script> `a` \\x1b[31m"""\n')
    assert "<script>" not in text.replace("\\<", "") and "![x]" not in text and "\x1b" not in text
    assert "\\!\\[x\\](https://evil.example) \\<script\\>" in text


def test_large_modules_are_bounded() -> None:
    """Thousands of parts, names without end and mutual calls give a tour of bounded length."""
    many = "".join(f"def f{i}(a):\n    return f{(i + 1) % 3000}(a)\n" for i in range(3000))
    text = tour(many)
    assert f"{3000 - MAX_PARTS} more parts are not shown" in text and len(text) < 60_000
    long = tour(f"def {'a' * 50_000}({', '.join('b' * 20 + str(i) for i in range(200))}): pass")
    assert len(long) < 2000


def test_code_without_parts_is_explained_too() -> None:
    """A script of plain statements gets a tour without empty sections."""
    text = tour("x = 1\n")
    assert "no function and no class" in text and "## Its parts" not in text and "Where to start" not in text
