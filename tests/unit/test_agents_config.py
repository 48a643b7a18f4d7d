"""config/worker.toml: what it may contain, and that errors are reported with their line."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.capabilities.catalog import describe
from worker.capabilities.declare import Capability
from worker.capabilities.overrides import READERS, Override, load_overrides
from worker.core.settings import BadStart

ROOT = Path(__file__).parents[2]


def load(folder: Path, text: str) -> dict[str, Override]:
    path = folder / "worker.toml"
    path.write_text(text, encoding="utf-8")
    return load_overrides(path)


def refused(folder: Path, text: str) -> dict[str, tuple[int, str]]:
    """Return line and expectation of each problem, by setting."""
    with pytest.raises(BadStart) as caught:
        load(folder, text)
    found = {}
    for problem in caught.value.problems:
        place, _, subject = problem.name.partition(" ")
        found[subject] = (int(place.rpartition(":")[2]), problem.expected)
    return found


def test_every_option_is_read(tmp_path: Path) -> None:
    """Each key is converted into the unit that the worker uses."""
    overrides = load(
        tmp_path,
        """
        [capability.brief]
        price = "0.75"
        time_limit = "5m"
        max_latency = 30
        swarm = true
        task_types = ["swarm", "*"]
        [capability.brief.profiles.strict]
        sentences = 2
        [capability.translation-en-fr]
        remote = true
        price = "1"
        """,
    )
    brief = overrides["brief"]
    assert (brief.price, brief.time_limit, brief.max_latency) == (750_000, 300.0, 30.0)
    assert (brief.swarm, brief.task_types, brief.remote) == (True, ("swarm", "*"), False)
    assert json.loads(json.dumps(brief.profiles["strict"])) == {"sentences": 2}
    assert overrides["translation-en-fr"] == Override(price=1_000_000, remote=True)


def test_missing_value_is_not_false(tmp_path: Path) -> None:
    """Options missing in the file stay as the code declares them."""
    override = load(tmp_path, "[capability.brief]\n")["brief"]
    assert override == Override()
    assert override.price is None and override.swarm is None


def test_missing_file_overrides_nothing(tmp_path: Path) -> None:
    """A worker without the file works."""
    assert load_overrides(tmp_path / "none.toml") == {}
    assert load(tmp_path, "") == {}


def test_shipped_file_is_valid() -> None:
    """The file in the repository loads."""
    path = ROOT / "config/worker.toml"
    assert "brief" in load_overrides(path)


def test_shipped_examples_are_valid(tmp_path: Path) -> None:
    """The shipped file still loads after uncommenting its examples."""
    wanted = []
    for line in (ROOT / "config/worker.toml").read_text().splitlines():
        bare = line.removeprefix("# ")
        wanted.append(bare if bare.startswith("[") or " = " in bare.split("#")[0] else line)
    overrides = load(tmp_path, "\n".join(wanted))
    assert overrides["logo-design"].price == 750_000
    assert overrides["translation-en-fr"].remote
    assert overrides["brief"].profiles["strict"] == {"sentences": 2}
    assert "swarm" in overrides["brief"].task_types
    assert all("*" not in override.task_types for override in overrides.values())


def test_every_error_is_listed_with_its_line(tmp_path: Path) -> None:
    """One start lists all errors, each with its line."""
    text = """surprise = 1

[capability.logo-design]
# a comment
price = 0.50
time_limit = "soon"
colour = "red"

[capability."UPPER"]
price = "1"

[capability.brief]
swarm = "yes"
profiles.strict.when = 2026-01-01
"""
    problems = refused(tmp_path, text)
    assert {subject: line for subject, (line, _) in problems.items()} == {
        "surprise": 1,
        "capability.logo-design.price": 5,
        "capability.logo-design.time_limit": 6,
        "capability.logo-design.colour": 7,
        "capability.UPPER": 9,
        "capability.brief.swarm": 13,
        "capability.brief.profiles": 14,
    }
    assert "price" in problems["capability.logo-design.colour"][1]


def test_syntax_error_names_its_line(tmp_path: Path) -> None:
    """Invalid TOML is reported at the line where parsing stopped."""
    with pytest.raises(BadStart) as caught:
        load(tmp_path, '[capability.a]\nprice = "1"\nprice = \n')
    assert caught.value.problems[0].name.endswith("worker.toml:3")


@pytest.mark.parametrize(
    "price",
    [
        '"0.0000001"',
        "1",
        "1.5",
        '"-1"',
        '"1e3"',
        '"NaN"',
        '"١"',
        '"1."',
        '""',
        '" 1"',
        '"1234567890"',
        "true",
        '["1"]',
    ],
)
def test_prices_are_exact(tmp_path: Path, price: str) -> None:
    """A price is text with at most six decimals; a TOML number would already be rounded."""
    assert "capability.a.price" in refused(tmp_path, f"[capability.a]\nprice = {price}\n")


@pytest.mark.parametrize(
    ("text", "atomic"), [('"0"', 0), ('"0.000001"', 1), ('"0.1"', 100_000), ('"5.000000"', 5_000_000)]
)
def test_prices_become_atomic_units(tmp_path: Path, text: str, atomic: int) -> None:
    """Dollars become integers of six decimals without passing through a float."""
    assert load(tmp_path, f"[capability.a]\nprice = {text}\n")["a"].price == atomic


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time_limit", "true"),
        ("time_limit", '"-5s"'),
        ("max_latency", "1.5"),
        ("max_latency", '"400h"'),
        ("remote", '"yes"'),
        ("remote", "1"),
        ("swarm", '["swarm"]'),
        ("task_types", '"swarm"'),
        ("task_types", '["a b"]'),
        ("task_types", '["a", "a"]'),
        ("task_types", "[1]"),
        ("profiles", '"strict"'),
        ("profiles", "{ strict = 1 }"),
        ("profiles", "{ strict = { x = inf } }"),
        ("profiles", "{ strict = { x = [ { y = 10:00:00 } ] } }"),
        ("profiles", '{ "a b" = {} }'),
    ],
)
def test_wrong_types_are_refused(tmp_path: Path, key: str, value: str) -> None:
    """A value of the wrong type is refused with its key and line."""
    problems = refused(tmp_path, f"[capability.a]\n\n{key} = {value}\n")
    assert problems[f"capability.a.{key}"][0] == 3


def test_task_type_has_one_agent(tmp_path: Path) -> None:
    """Two capabilities cannot serve the same task type, because the choice would be ambiguous."""
    text = """[capability.a]
swarm = true
task_types = ["x"]
[capability.b]
swarm = true
task_types = ["y", "x"]
"""
    assert refused(tmp_path, text) == {
        "capability.b.task_types": (6, "a task type that no other capability serves")
    }


def test_task_types_need_an_open_door(tmp_path: Path) -> None:
    """A capability that is closed to the swarm cannot serve its tasks."""
    problems = refused(tmp_path, '[capability.a]\nswarm = false\ntask_types = ["x"]\n')
    assert problems["capability.a.task_types"][0] == 3


def test_remote_capability_needs_a_price(tmp_path: Path) -> None:
    """No code here declares a remote agent, so the file must set its price."""
    assert "capability.a.remote" in refused(tmp_path, "[capability.a]\nremote = true\n")


@pytest.mark.parametrize(
    "text", ["capability = 1", "[[capability]]", "[capability]\na = 1", '[capability."../x"]']
)
def test_unknown_layout_is_refused(tmp_path: Path, text: str) -> None:
    """Only tables by capability name are accepted."""
    assert refused(tmp_path, text)


def test_line_numbers_skip_multiline_text(tmp_path: Path) -> None:
    """Multi-line text that looks like TOML is not parsed as a table."""
    text = '[capability.a.profiles.p]\nprompt = """\n[capability.b]\nprice = 5\n"""\n'
    assert set(load(tmp_path, text)) == {"a"}


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    """A directory or a non-UTF-8 file is reported with the file's name, not a traceback."""
    for path in (tmp_path, tmp_path / "latin.toml"):
        (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
        with pytest.raises(BadStart) as caught:
            load_overrides(path)
        assert caught.value.problems[0].name == str(path)


@given(st.text(max_size=200))
def test_loader_survives_any_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Any file content is loaded or refused with problems."""
    path = tmp_path_factory.mktemp("any") / "worker.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load_overrides(path)
    except BadStart as bad:
        assert bad.problems


def test_a_profile_is_added_to_those_in_the_code(tmp_path: Path) -> None:
    """A named profile adds to or replaces the code's profiles, and is published as plain JSON."""
    text = "[capability.a.profiles.strict]\nn = 1\n[capability.a.profiles.fast]\nn = 2\n"
    declared = Capability("a", profiles={"default": {}, "fast": {"n": 9}})
    found = declared.with_override(load(tmp_path, text)["a"])
    assert json.loads(json.dumps(describe(found)))["profiles"] == {
        "default": {},
        "fast": {"n": 2},
        "strict": {"n": 1},
    }


def test_every_override_can_be_read() -> None:
    """Every field has a reader and every reader a field."""
    assert {*READERS, "options"} == {each.name for each in fields(Override)}
