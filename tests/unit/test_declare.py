"""How modules declare agents and tools."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from worker.agents.config import Override
from worker.agents.declare import Registry


def plain(job: Any) -> int:
    """First paragraph.

    Second paragraph.
    """
    return 1


def streaming(job: Any) -> Any:
    yield "a"


def test_a_declaration_describes_itself() -> None:
    """Description, streaming and version come from the function; the function stays callable."""
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


def test_what_is_given_wins() -> None:
    """An author's own description and version are kept."""
    registry = Registry()
    registry.agent("one", description="mine", version="7", stream=True)(plain)
    one = registry.capabilities["one"]
    assert (one.description, one.version, one.stream) == ("mine", "7", True)


def test_a_name_belongs_to_one_function() -> None:
    """Declaring the same function again is harmless, another under its name is an error; tools likewise."""
    registry = Registry()
    for _ in range(2):
        registry.agent("one")(plain)
        registry.tool("t")(plain)
    with pytest.raises(ValueError, match="'one'"):
        registry.agent("one")(streaming)
    with pytest.raises(ValueError, match="'t'"):
        registry.tool("t")(streaming)
    assert registry.capabilities["one"].run is plain
    assert registry.tools["t"].run is plain


def test_an_unknown_option_is_an_error() -> None:
    """A misspelt option does not pass silently."""
    with pytest.raises(TypeError):
        Registry().agent("one", prize="0.50")(plain)


def test_the_version_changes_with_the_source() -> None:
    """Other code is another version, the same code the same one."""
    registry = Registry()
    registry.agent("one")(plain)
    registry.agent("same")(plain)
    registry.agent("other")(streaming)
    versions = {name: each.version for name, each in registry.capabilities.items()}
    assert versions["one"] == versions["same"] != versions["other"]
    assert len(versions["one"]) == 12


@pytest.mark.parametrize("make", ["partial", "object", "shell"])
def test_whatever_can_be_called_can_be_declared(make: str) -> None:
    """A partial, an object with a call and a function without a source have a version too."""

    class Callable:
        def __call__(self, job: Any) -> int:
            return 1

    scope: dict[str, Any] = {}
    exec("def typed(job): return 1", scope)
    function = {"partial": functools.partial(plain), "object": Callable(), "shell": scope["typed"]}[make]
    registry = Registry()
    registry.agent("one")(function)
    assert len(registry.capabilities["one"].version) == 12


def test_tools_say_how_often_they_are_tried() -> None:
    """Three tries unless the author says otherwise."""
    registry = Registry()
    registry.tool("a")(plain)
    registry.tool("b", attempts=1)(plain)
    assert (registry.tools["a"].attempts, registry.tools["b"].attempts) == (3, 1)


def test_an_override_changes_only_what_it_says() -> None:
    """Price in atomic units becomes text, latency milliseconds; what is not said stays."""
    registry = Registry()
    registry.agent("one", price="0.50", time_limit=3.0, task_types=("x",))(plain)
    one = registry.capabilities["one"]
    changed = one.with_override(Override(price=1_250_000, max_latency=1.5))
    assert (changed.price, changed.max_latency_ms, changed.time_limit) == ("1.25", 1500, 3.0)
    assert (changed.task_types, changed.run) == (("x",), plain)
    assert one.with_override(Override()) == one
    assert one.with_override(Override(swarm=False)).swarm is False
