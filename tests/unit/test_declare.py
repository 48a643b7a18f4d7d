"""How modules declare agents and tools."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from worker.capabilities.declare import Registry
from worker.capabilities.overrides import Override


def plain(job: Any) -> int:
    """First paragraph.

    Second paragraph.
    """
    return 1


def streaming(job: Any) -> Any:
    yield "a"


def test_declaration_derives_its_description() -> None:
    """Description, streaming and version are taken from the function, which stays callable."""
    registry = Registry()
    assert registry.agent("one", price="0.50", inline=True)(plain) is plain
    one = registry.capabilities["one"]
    assert (one.name, one.description, one.price, one.inline, one.stream) == (
        "one",
        "First paragraph.",
        "0.50",
        True,
        False,
    )
    registry.agent("two")(streaming)
    assert registry.capabilities["two"].stream
    assert registry.capabilities["two"].description == ""


def test_explicit_values_win() -> None:
    """An author's own description and version are kept."""
    registry = Registry()
    registry.agent("one", description="mine", version="7", stream=True)(plain)
    one = registry.capabilities["one"]
    assert (one.description, one.version, one.stream) == ("mine", "7", True)


def test_duplicate_name_is_refused() -> None:
    """Declaring the same function again is harmless; another under its name is refused, for tools too."""
    registry = Registry()
    for _ in range(2):
        registry.agent("one")(plain)
        registry.tool("t")(plain)
    assert registry.take_problems() == []
    registry.agent("one")(streaming)
    registry.tool("t")(streaming)
    assert [each.found for each in registry.take_problems()] == ["a second one", "a second t"]
    assert registry.capabilities["one"].run is plain
    assert registry.tools["t"].run is plain


def test_unknown_option_is_refused() -> None:
    """A misspelt option is refused; the message names the module, the line and the options."""
    registry = Registry()
    registry.agent("one", prize="0.50")(plain)
    [problem] = registry.take_problems()
    assert re.fullmatch(rf"{re.escape(__name__)}:\d+ one\.prize", problem.name)
    assert "price" in problem.expected
    assert registry.capabilities == {}


def test_version_follows_the_source() -> None:
    """Changed code changes the version, the same code keeps it."""
    registry = Registry()
    registry.agent("one")(plain)
    registry.agent("same")(plain)
    registry.agent("other")(streaming)
    versions = {name: each.version for name, each in registry.capabilities.items()}
    assert versions["one"] == versions["same"] != versions["other"]
    assert len(versions["one"]) == 12


@pytest.mark.parametrize("make", ["partial", "object", "shell"])
def test_any_callable_can_be_declared(make: str) -> None:
    """A partial, a callable object and a function without source have a version too."""

    class Callable:
        def __call__(self, job: Any) -> int:
            return 1

    scope: dict[str, Any] = {}
    exec("def typed(job): return 1", scope)
    function = {"partial": functools.partial(plain), "object": Callable(), "shell": scope["typed"]}[make]
    registry = Registry()
    registry.agent("one")(function)
    assert len(registry.capabilities["one"].version) == 12


def test_tool_attempts_are_configurable() -> None:
    """Three attempts by default."""
    registry = Registry()
    registry.tool("a")(plain)
    registry.tool("b", attempts=1)(plain)
    assert (registry.tools["a"].attempts, registry.tools["b"].attempts) == (3, 1)


def test_override_changes_only_its_fields() -> None:
    """The price becomes text and the latency milliseconds; unset fields stay."""
    registry = Registry()
    registry.agent("one", price="0.50", time_limit=3.0, task_types=("x",))(plain)
    one = registry.capabilities["one"]
    changed = one.with_override(Override(price=1_250_000, max_latency=1.5))
    assert (changed.price, changed.max_latency_ms, changed.time_limit) == ("1.25", 1500, 3.0)
    assert (changed.task_types, changed.run) == (("x",), plain)
    assert one.with_override(Override()) == one
    assert one.with_override(Override(swarm=False)).swarm is False


def test_a_price_by_input_needs_its_maximum() -> None:
    """The pricing function stays in this process; the maximum is published."""
    registry = Registry()
    registry.agent("by-input", price=lambda input: "0.01", max_price="0.50")(plain)
    priced = registry.capabilities["by-input"]
    assert (priced.price, priced.prices_input) == ("0.50", True) and priced.price_of is not None
    for options in ({"price": lambda input: "0.01"}, {"price": "0.01", "max_price": "0.50"}):
        registry.agent("no-maximum", **options)(plain)
        (problem,) = registry.take_problems()
        assert problem.name.endswith("no-maximum.max_price")
