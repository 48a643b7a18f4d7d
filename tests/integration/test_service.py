"""What doors may do with executions, beyond what scripts and lists already show."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.engine import Engine
from worker.agents.declare import Capability
from worker.agents.output import NotJson, encode
from worker.delivery.files import DiskFiles
from worker.errors import BadRequest, Conflict, NotFound
from worker.executions.states import Lane
from worker.ids import new_id


def stored(engine: Engine) -> int:
    assert isinstance(engine.files, DiskFiles)
    return sum(path.is_file() for path in engine.files.directory.rglob("*"))


def test_the_catalog_decides_the_lane(engine: Engine) -> None:
    """Inline work takes the express lane, other work the queue; what is remote or unknown waits."""
    engine.catalog.publish(
        [Capability("quick", inline=True), Capability("slow"), Capability("far", remote=True, inline=True)]
    )
    made = {
        name: engine.get(engine.executions.create(name, {}, door="test")[1])
        for name in ("quick", "slow", "far", "unknown")
    }
    assert {name: each.lane for name, each in made.items()} == {
        "quick": Lane.EXPRESS,
        "slow": Lane.QUEUE,
        "far": Lane.REMOTE,
        "unknown": Lane.REMOTE,
    }
    assert engine.client.lrange("rq:queue:work", 0, -1) == [made["slow"].id.encode()]


def test_before_anything_is_offered_work_waits_where_it_will_be_found(engine: Engine) -> None:
    """A name that comes before the first work process waits in the queue, and runs once there is one."""
    _, id = engine.executions.create("soon", {}, door="test")
    assert engine.get(id).lane is Lane.QUEUE
    assert engine.client.lrange("rq:queue:work", 0, -1) == [id.encode()]


def test_limits_of_the_capability_hold(engine: Engine) -> None:
    """The run limit and the version come from the description."""
    engine.catalog.publish([Capability("a", time_limit=1.5, version="v7")])
    execution = engine.get(engine.executions.create("a", {}, door="test")[1])
    assert (execution.raw["run_limit"], execution.raw["version"]) == (b"1500000", b"v7")


@pytest.mark.parametrize("large", [False, True])
def test_the_same_key_is_the_same_execution(engine: Engine, large: bool) -> None:
    """However often and at once, a key makes one execution, one message and, for large inputs, one file."""
    value = {"x": "y" * (50_000 if large else 1)}

    def create(_: int) -> tuple[bool, str]:
        return engine.executions.create("a", value, door="test", scope="s", key="k")

    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(create, range(12)))
    assert sum(new for new, _ in made) == 1 and len({id for _, id in made}) == 1
    assert engine.client.llen("rq:queue:work") == 1
    assert stored(engine) == (1 if large else 0)
    execution = engine.get(made[0][1])
    assert engine.executions.input(execution) == value
    assert execution.digest == hashlib.sha256(encode(value)).hexdigest()


def test_a_given_id_is_used_and_must_be_one(engine: Engine) -> None:
    """A door may choose the id; creating it again finds it, and what is no UUID is refused."""
    id = new_id()
    assert engine.executions.create("a", 1, door="test", id=id) == (True, id)
    assert engine.executions.create("b", 2, door="test", id=id) == (False, id)
    assert engine.get(id).agent == "a"
    for bad in ("", "x", id.upper(), id + "\n"):
        with pytest.raises(BadRequest):
            engine.executions.create("a", 1, door="test", id=bad)


def test_a_refused_creation_leaves_nothing(engine: Engine) -> None:
    """Bad labels or an input that is no JSON are refused before anything is written, files included."""
    for input, labels in (("x" * 50_000, {"a": "b" * 2000}), ({1, 2}, {}), (float("nan"), {})):
        with pytest.raises((BadRequest, NotJson)):
            engine.executions.create("a", input, door="test", labels=labels)
    assert stored(engine) == 0
    assert engine.client.keys("w:x:*") == []


def test_the_log_tells_of_an_input_in_a_file(engine: Engine) -> None:
    """execution.created shows size and digest of a large input, and not the key that opens it."""
    _, id = engine.executions.create("a", "x" * 50_000, door="test", labels={"l": "v"})
    created = engine.log(id, "execution.created")[0].data()
    ref = json.loads(engine.get(id).raw["input_ref"])
    assert created["input"] is None and created["labels"] == {"l": "v"}
    assert created["input_file"] == {name: ref[name] for name in ("name", "mime", "size", "sha256")}


@pytest.mark.parametrize(
    "act",
    [
        lambda executions, id: executions.get(id),
        lambda executions, id: executions.cancel(id),
        lambda executions, id: executions.signal(id, "x", None),
    ],
)
def test_what_is_not_there_is_not_found(engine: Engine, act: Any) -> None:
    """Unknown ids and texts that are no ids look the same."""
    for id in (new_id(), "x", "", "../x"):
        with pytest.raises(NotFound):
            act(engine.executions, id)


def test_a_sealed_result_cannot_be_cancelled(engine: Engine) -> None:
    """When only the payment is open, a cancel is a conflict that says so."""
    id = engine.running().id
    engine.client.hset(engine.keys.record(id), "sealed_by", "1")
    with pytest.raises(Conflict, match="only its payment is open"):
        engine.executions.cancel(id)
