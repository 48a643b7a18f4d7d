"""Execution operations used by doors, beyond what the script and list tests cover."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.engine import Engine
from worker.capabilities.declare import Capability
from worker.core.errors import BadRequest, Conflict, NotFound
from worker.core.ids import new_id
from worker.core.json import NotJson, encode
from worker.core.states import Lane
from worker.files.store import DiskFiles


def stored(engine: Engine) -> int:
    assert isinstance(engine.files, DiskFiles)
    return sum(path.is_file() for path in engine.files.directory.rglob("*"))


def test_lane_follows_the_catalog(engine: Engine) -> None:
    """Inline work uses the express lane, other work the queue; remote or unknown work waits."""
    engine.catalog.publish(
        [Capability("quick", inline=True), Capability("slow"), Capability("far", remote=True, inline=True)]
    )
    created = {
        name: engine.get(engine.executions.create(name, {}, door="test")[1])
        for name in ("quick", "slow", "far", "unknown")
    }
    assert {name: each.lane for name, each in created.items()} == {
        "quick": Lane.EXPRESS,
        "slow": Lane.QUEUE,
        "far": Lane.REMOTE,
        "unknown": Lane.REMOTE,
    }
    assert engine.client.lrange("rq:queue:work", 0, -1) == [created["slow"].id.encode()]


def test_unknown_capability_waits_in_the_queue(engine: Engine) -> None:
    """A capability unknown before the first work process waits in the queue and runs once there is one."""
    _, id = engine.executions.create("soon", {}, door="test")
    assert engine.get(id).lane is Lane.QUEUE
    assert engine.client.lrange("rq:queue:work", 0, -1) == [id.encode()]


def test_limits_follow_the_capability(engine: Engine) -> None:
    """The run limit and the version come from the description."""
    engine.catalog.publish([Capability("a", time_limit=1.5, version="v7")])
    id = engine.executions.create("a", {}, door="test")[1]
    assert (engine.stored(id, "run_limit"), engine.get(id).version) == (1_500_000, "v7")


@pytest.mark.parametrize("large", [False, True])
def test_idempotency_key_creates_one_execution(engine: Engine, large: bool) -> None:
    """Concurrent or repeated, one key creates one execution, one message and at most one input file."""
    value = {"x": "y" * (50_000 if large else 1)}

    def create(_: int) -> tuple[bool, str]:
        return engine.executions.create("a", value, door="test", scope="s", key="k")

    with ThreadPoolExecutor(6) as pool:
        created = list(pool.map(create, range(12)))
    assert sum(new for new, _ in created) == 1 and len({id for _, id in created}) == 1
    assert engine.client.llen("rq:queue:work") == 1
    assert stored(engine) == (1 if large else 0)
    execution = engine.get(created[0][1])
    assert engine.executions.input(execution) == value
    assert execution.digest == hashlib.sha256(encode(value)).hexdigest()


def test_chosen_id_must_be_a_uuid(engine: Engine) -> None:
    """A door may choose the id; creating it again finds it, and a non-UUID is refused."""
    id = new_id()
    assert engine.executions.create("a", 1, door="test", id=id) == (True, id)
    assert engine.executions.create("b", 2, door="test", id=id) == (False, id)
    assert engine.get(id).agent == "a"
    for bad in ("", "x", id.upper(), id + "\n"):
        with pytest.raises(BadRequest):
            engine.executions.create("a", 1, door="test", id=bad)


def test_refused_creation_leaves_nothing(engine: Engine) -> None:
    """Bad labels and non-JSON input are refused before anything is written, including files."""
    for input, labels in (("x" * 50_000, {"a": "b" * 2000}), ({1, 2}, {}), (float("nan"), {})):
        with pytest.raises((BadRequest, NotJson)):
            engine.executions.create("a", input, door="test", labels=labels)
    assert stored(engine) == 0
    assert engine.client.keys("w:x:*") == []


def test_created_event_shows_size_and_digest_of_a_large_input(engine: Engine) -> None:
    """execution.created shows size and digest of a large input, and not its file key."""
    _, id = engine.executions.create("a", "x" * 50_000, door="test", labels={"l": "v"})
    created = engine.log(id, "execution.created")[0].data()
    ref = json.loads(engine.get(id).input_ref)
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
def test_unknown_ids_are_not_found(engine: Engine, act: Any) -> None:
    """Unknown ids and malformed ids look the same."""
    for id in (new_id(), "x", "", "../x"):
        with pytest.raises(NotFound):
            act(engine.executions, id)


def test_a_sealed_result_cannot_be_cancelled(engine: Engine) -> None:
    """When only the payment is open, a cancel is a conflict that says so."""
    id = engine.running().id
    engine.client.hset(engine.keys.record(id), "sealed_by", "1")
    with pytest.raises(Conflict, match="its payment is still open"):
        engine.executions.cancel(id)
