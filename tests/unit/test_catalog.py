"""Capability descriptions, published by work processes and read by the web."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

from worker.capabilities.catalog import Catalog, describe, from_description, offered
from worker.capabilities.declare import Capability, Registry
from worker.capabilities.overrides import Override, load_overrides
from worker.capabilities.serving import Served


class FakeServing:
    """Descriptions by process tree, newest first; counts reads."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.older: bytes | None = None
        self.read_times = 0

    def publish(self, tree: str, description: str) -> bool:
        if description:
            self.held = {tree: description.encode()} | {
                name: each for name, each in self.held.items() if name != tree
            }
        return tree in self.held

    def read(self) -> Served:
        self.read_times += 1
        return Served(tuple(self.held.values()), self.older)


def catalog(shelf: FakeServing) -> Catalog:
    return Catalog(shelf)


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


def test_description_round_trips() -> None:
    """Everything except the function and its settings survives the round trip through the store."""
    shelf = FakeServing()
    catalog(shelf).publish([FULL, Capability(name="bare")])
    found = catalog(shelf).all()
    assert found["bare"] == Capability(name="bare")
    assert describe(found["full"]) == describe(FULL)
    assert (found["full"].run, found["full"].settings) == (None, {})
    assert (found["full"].tags, found["full"].task_types) == (("a", "b"), ("t",))


def test_settings_stay_in_the_work_process() -> None:
    """An operator's settings for an agent are in no description."""
    shelf = FakeServing()
    catalog(shelf).publish([FULL])
    assert b"secret" not in shelf.held["tree"]


def test_unknown_fields_of_a_newer_worker_are_ignored() -> None:
    """A description with unknown fields is still read."""
    assert from_description({"name": "x", "colour": "red"}) == Capability(name="x")


def test_profiles_from_the_configuration_are_published(tmp_path: Path) -> None:
    """A capability whose profiles come from the file is described like any other."""
    path = tmp_path / "worker.toml"
    path.write_text('[capability.a]\nprofiles.fast = {model = "m"}\n')
    registry = Registry()
    registry.agent("a")(function)
    shelf = FakeServing()
    catalog(shelf).publish(offered(registry, load_overrides(path)).values())
    assert catalog(shelf).all()["a"].profiles == {"default": {}, "fast": {"model": "m"}}
    assert describe(Capability("x", profiles=MappingProxyType({})))["profiles"] == {}


def test_remote_capabilities_come_from_the_configuration() -> None:
    """A remote name without code is offered; an override of an unknown local one is not."""
    registry = Registry()
    registry.agent("a")(function)
    found = offered(registry, {"r": Override(price=1, remote=True), "gone": Override(price=1)})
    assert set(found) == {"a", "r"}
    assert (found["r"].remote, found["r"].price, found["r"].run) == (True, "0.000001", None)


def test_store_is_read_at_most_once_a_second() -> None:
    """Many requests within a second read the description once; later a change is seen."""
    shelf = FakeServing()
    reader = catalog(shelf)
    assert (reader.get("full"), reader.published) == (None, False)
    catalog(shelf).publish([FULL])
    assert [reader.get("full") for _ in range(50)] == [None] * 50
    assert shelf.read_times == 1
    reader._read_at -= 1.1
    assert reader.get("full") is not None
    assert (shelf.read_times, reader.published) == (2, True)


def test_a_tree_publishes_again_only_what_is_missing() -> None:
    """The clock republishes after the store lost its data, and keeps what is there."""
    shelf = FakeServing()
    catalog(shelf).publish([FULL], tree="old")
    catalog(shelf).keep_published([], "old")
    assert set(catalog(shelf).all()) == {"full"}
    shelf.held.clear()
    catalog(shelf).keep_published([FULL], "old")
    assert set(catalog(shelf).all()) == {"full"}


def test_trees_side_by_side_offer_all_that_any_can_run() -> None:
    """A restart of the old tree removes nothing, and the newest description of an agent counts."""
    shelf = FakeServing()
    old, new = [Capability("a", price="1"), Capability("gone")], [Capability("a", price="2"), Capability("b")]
    catalog(shelf).publish(old, tree="old")
    catalog(shelf).publish(new, tree="new")
    found = catalog(shelf).all()
    assert set(found) == {"a", "b", "gone"} and found["a"].price == "2"
    catalog(shelf).publish(old, tree="old")
    assert catalog(shelf).all().keys() == found.keys()


def test_beside_processes_of_an_older_release_nothing_new_is_offered() -> None:
    """Older processes would take and fail unknown capabilities; these can be run, but not requested."""
    shelf = FakeServing()
    catalog(shelf).publish([Capability("a"), Capability("b"), Capability("_internal")])
    shelf.older = b'[{"name":"a"},{"name":"z"}]'
    reader = catalog(shelf)
    assert set(reader.all()) == {"a", "_internal"}
    assert set(reader.runnable()) == {"a", "b", "_internal"}
