"""Descriptions of capabilities, written by work processes and read by the web."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import redis

from worker.agents.catalog import Catalog, describe, from_description, offered
from worker.agents.config import Override, load_overrides
from worker.agents.declare import Capability, Registry


class Shelf:
    """A store with one text in it, which counts its readings."""

    def __init__(self) -> None:
        self.held: bytes | None = None
        self.read = 0

    def get(self, key: str) -> bytes | None:
        self.read += 1
        return self.held

    def set(self, key: str, value: str, nx: bool = False) -> None:
        if not (nx and self.held is not None):
            self.held = value.encode()


def catalog(shelf: Shelf) -> Catalog:
    return Catalog(cast(redis.Redis, shelf), "k")


def function(job: Any) -> None:
    """Does it."""


FULL = Capability(
    name="full",
    run=function,
    description="d",
    price="0.50",
    input_schema={"type": "object"},
    output_schema={"type": "array", "items": {}},
    example_input=[],
    example_output={"a": []},
    inline=True,
    stream=True,
    time_limit=1.5,
    max_latency_ms=20,
    settle="before_work",
    model="m",
    profiles={"p": {"x": 1}},
    settings={"secret": "s"},
    swarm=True,
    task_types=("t",),
    remote=False,
    version="v",
    tags=("a", "b"),
)


def test_a_description_comes_back_as_it_went() -> None:
    """All but the function and its settings survives the way through the store."""
    shelf = Shelf()
    catalog(shelf).publish([FULL, Capability(name="bare")])
    found = catalog(shelf).all()
    assert found["bare"] == Capability(name="bare")
    assert describe(found["full"]) == describe(FULL)
    assert (found["full"].run, found["full"].settings) == (None, {})
    assert (found["full"].tags, found["full"].task_types) == (("a", "b"), ("t",))


def test_settings_never_leave_the_work_process() -> None:
    """What an operator configured for an agent is in no description."""
    shelf = Shelf()
    catalog(shelf).publish([FULL])
    assert b"secret" not in (shelf.held or b"")


def test_unknown_words_of_a_newer_worker_are_left_out() -> None:
    """A description with more in it than we know is still read."""
    assert from_description({"name": "x", "colour": "red"}) == Capability(name="x")


def test_profiles_from_the_configuration_can_be_published(tmp_path: Path) -> None:
    """A capability whose profiles come from the file is described like any other."""
    path = tmp_path / "worker.toml"
    path.write_text('[capability.a]\nprofiles.fast = {model = "m"}\n')
    registry = Registry()
    registry.agent("a")(function)
    shelf = Shelf()
    catalog(shelf).publish(offered(registry, load_overrides(path)).values())
    assert catalog(shelf).all()["a"].profiles == {"default": {}, "fast": {"model": "m"}}
    assert describe(Capability("x", profiles=MappingProxyType({})))["profiles"] == {}


def test_only_the_configuration_knows_remote_capabilities() -> None:
    """A remote name without code here is on offer; an override of an unknown local one is not."""
    registry = Registry()
    registry.agent("a")(function)
    found = offered(registry, {"r": Override(price=1, remote=True), "gone": Override(price=1)})
    assert set(found) == {"a", "r"}
    assert (found["r"].remote, found["r"].price, found["r"].run) == (True, "0.000001", None)


def test_the_store_is_read_at_most_once_a_second() -> None:
    """Many requests in one second read the description once; later a change is seen."""
    shelf = Shelf()
    reader = catalog(shelf)
    assert (reader.get("full"), reader.published) == (None, False)
    catalog(shelf).publish([FULL])
    assert [reader.get("full") for _ in range(50)] == [None] * 50
    assert shelf.read == 1
    reader._read_at -= 1.1
    assert reader.get("full") is not None
    assert (shelf.read, reader.published) == (2, True)


def test_publishing_again_does_not_overwrite_what_is_there() -> None:
    """A clock that repairs a forgetful store leaves a newer description alone."""
    shelf = Shelf()
    catalog(shelf).publish([FULL])
    catalog(shelf).publish([], only_if_absent=True)
    assert set(catalog(shelf).all()) == {"full"}
