"""What the selling pages say of a capability, and the vendored files of the pages."""

from __future__ import annotations

import ast
import json
import shlex
from dataclasses import replace

import pytest

from docs.vendor import PACKAGES, VENDOR, packed
from worker.capabilities.declare import Capability
from worker.doors.assets import assets
from worker.doors.shop_views import card, in_words, snippets
from worker.engine.figures import Figures

QUOTED = {"text": 'it\'s "quoted" <URL> $HOME', "flag": True, "none": None}
SOLD = Capability("count-words", price="0.02", example_input=QUOTED, description="Counts.", time_limit=30)
NONE = Figures.of({})
URL = "https://shop.example"


@pytest.mark.parametrize(
    ("us", "shown"),
    [(None, ""), (4_000, "under 0.1 s"), (340_000, "about 0.3 s"), (2_040_000, "about 2.04 s")],
)
def test_measured_time_is_shown_only_if_there_is_one(us: int | None, shown: str) -> None:
    """The typical time comes from runs, never from the promise."""
    figures = replace(NONE, typical_us={} if us is None else {"count-words": us})
    found = card(SOLD, figures, "after_work", URL, "eip155:84532")
    assert found["typical"] == shown and found["at_most"] == "30 s"


@pytest.mark.parametrize(
    ("ms", "words"), [(34, "34 ms"), (30_000, "30 s"), (600_000, "10 min"), (86_400_000, "24 h")]
)
def test_durations_are_readable(ms: int, words: str) -> None:
    """A duration has a unit that fits it."""
    assert in_words(ms) == words


def test_the_refund_rule_follows_when_the_payment_settles() -> None:
    """Work paid before it begins promises a refund, other work that failure costs nothing."""
    assert "refunded" in card(SOLD, NONE, "before_work", URL, "eip155:84532")["refund"]
    assert "costs nothing" in card(SOLD, NONE, "after_work", URL, "eip155:84532")["refund"]


def test_snippets_carry_the_example_exactly() -> None:
    """Whatever an example contains, each language reads back the same input."""
    found = {each.label: each.text for each in snippets(SOLD, URL, "eip155:84532")}
    line = found["curl"].splitlines()[1]
    assert json.loads(shlex.split(line)[-1]) == QUOTED
    call = next(line for line in found["Python"].splitlines() if line.startswith("answer"))
    tree = ast.parse(call).body[0]
    assert isinstance(tree, ast.Assign) and isinstance(tree.value, ast.Call)
    assert ast.literal_eval(tree.value.keywords[0].value) == QUOTED
    compile(found["Python"], "snippet", "exec")
    words = shlex.split(found["worker hire"])
    assert words[:4] == ["worker", "hire", URL, "count-words"] and json.loads(words[5]) == QUOTED
    assert json.dumps(QUOTED) in found["JavaScript"] and "eip155:84532" in found["JavaScript"]


def test_vendored_files_are_there_with_their_licences() -> None:
    """Every file that is brought in is part of the package, and every package has its licence beside it."""
    for package in PACKAGES:
        for name in package.files.values():
            assert (VENDOR / packed(name, b"")[0]).exists(), name
            assert f"vendor/{name}" in assets()
        assert any("LICENSE" in name for name in package.files.values())


def test_pages_are_small() -> None:
    """Styles and scripts of the selling pages leave room for their content in 60 kB."""
    own = [each for name, each in assets().items() if name.endswith((".css", ".js")) and "/" not in name]
    own += [each for name, each in assets().items() if name.startswith("shop/") and name.endswith(".css")]
    assert sum(len(each.content) for each in own) < 20_000
