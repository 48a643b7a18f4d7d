"""What holds for all scripts: declared keys, types checked before writing, JSON untouched, bounded logs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.engine import ERROR, HOUR, LEASE, SECOND, Engine
from tests.fakes.fenced import Fenced
from worker.delivery.files import DiskFiles
from worker.errors import Conflict
from worker.executions import store as limits
from worker.executions.keys import Keys
from worker.executions.scripts import Scripts
from worker.executions.store import ExecutionStore
from worker.ids import new_id

REMOTE = {
    path.stem
    for path in (Path(limits.__file__).parent / "lua").glob("*.lua")
    if re.search(r"epochs|stand_still|jobs of|waiting|step.started", path.read_text())
}
LUA = sorted((Path(limits.__file__).parent / "lua").glob("*.lua"))
NASTY = b'{"a":[],"b":{},"c":[[]],"d":1.0,"e":1e2,"f":12345678901234567890,"g":"\\u00e9 \\\\ \\"","h":null}'


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.stem)
def test_no_script_reads_json_or_names_a_key(path: Path) -> None:
    """No script decodes anything, and every key that a command is given comes from KEYS."""
    code = re.sub(r"--[^\n]*", "", path.read_text())
    assert "cjson" not in code and "cmsgpack" not in code
    names = r"RECORD|LOG|STEPS|MONEY|LEDGER|[A-Z_]+(\.\w+|\[\w+\])?|KEYS\[[^\]]+\]|key"
    for command, first in re.findall(r"redis\.p?call\((?:'(\w+)'|[^,]+),\s*([^,)]+)", code):
        assert re.fullmatch(names, first.strip()), (command, first)


@pytest.fixture(name="fenced")
def _fenced(client: redis.Redis, tmp_path: Path) -> Engine:
    """An engine whose scripts run under that user, on the store's own clock."""
    engine = Engine(client, DiskFiles(tmp_path / "files"))
    engine.store = ExecutionStore(client)
    engine.store.scripts = Fenced(client)
    return engine


def test_no_script_touches_a_key_it_was_not_given(fenced: Engine) -> None:
    """A whole life of an execution runs under a user who may touch only the declared keys of each script."""
    store, scripts = fenced.store, fenced.store.scripts
    id = fenced.new(labels={"a": "b"}, scope="s", key="k", timeout_us=HOUR)
    store.hint(id)
    execution = fenced.take(id)
    store.renew(id, 1, LEASE)
    store.append(id, 1, 1, [("progress.updated", b"{}")], {"message": "m"})
    store.remember(id, 1, "once:x", b"1", kind="file.written", payload=b"{}")
    step = fenced.begin(execution)[1].decode()
    store.step_end(id, 1, step, "retry", b"", b"{}")
    store.step_end(id, 1, step, "succeeded", b"1", b"{}")
    late = fenced.begin(execution, "t#2", timeout_us=-SECOND)[1].decode()
    store.requeue(id, 1, "handed_back")
    store.requeue(fenced.running(attempts=1).id, 1, "process_lost", crashed=ERROR)
    store.requeue(fenced.running().id, 1, "transient", delay_us=SECOND)
    fenced.take(id)
    assert store.step_expire(id, late, ERROR) == "gone"
    store.park(fenced.running().id, 1, ERROR, "retry")
    timed = fenced.running()
    late = fenced.begin(timed, timeout_us=-SECOND)[1].decode()
    assert store.step_expire(timed.id, late, ERROR) == "failed"
    assert fenced.seal(id, 2) == "ok"
    assert fenced.cancel(fenced.new()) == "cancelled"
    assert fenced.expire(fenced.new(timeout_us=-1)) == "failed"
    store.due(tree="t", queued_age_us=1, retention_us=1)
    store.sign_on("express", "w")
    assert (store.takers("express"), store.clock_age() is not None) == (1, True)
    assert store.purge(fenced.get(id), 2**52)
    assert isinstance(scripts, Fenced)
    # Those of remote agents and runners are held to the same in a file of their own.
    untouched = {"_common", "_remote", "rate_limit", *REMOTE}
    ours = {path.stem for path in LUA if "transition(id)" in path.read_text() or path.stem in scripts.ran}
    assert ours - untouched <= scripts.ran


def test_that_user_really_is_kept_out(fenced: Engine) -> None:
    """The same script is refused when one of its keys is not allowed: the test above can fail."""
    keys = fenced.keys.transition(fenced.new())
    scripts = fenced.store.scripts
    assert isinstance(scripts, Fenced)
    scripts.open(keys[:-1])
    with pytest.raises(redis.ResponseError, match="(?i)permission"):
        Scripts(scripts.user)("hint", keys, [new_id()])


Act = Callable[[Engine, str, Any], object]
ACTS: dict[str, tuple[str, Act]] = {
    "create": ("none", lambda e, id, _: e.new(id=id, labels={"a": "b"}, scope="s", key="k")),
    "take": ("pending", lambda e, id, _: e.take(id)),
    "hint": ("pending", lambda e, id, _: e.store.hint(id)),
    "renew": ("running", lambda e, id, _: e.store.renew(id, 1, LEASE)),
    "append": ("running", lambda e, id, _: e.store.append(id, 1, 1, [("x", b"{}")], {"message": "m"})),
    "remember": ("running", lambda e, id, _: e.store.remember(id, 1, "o", b"1", kind="x", payload=b"{}")),
    "step_begin": ("running", lambda e, _, execution: e.begin(execution)),
    "step_end": (
        "stepping",
        lambda e, id, _: e.store.step_end(id, 1, _open_step(e, id), "succeeded", b"1", b"{}"),
    ),
    "step_expire": ("stepping", lambda e, id, _: e.store.step_expire(id, _open_step(e, id), ERROR)),
    "requeue": ("stepping", lambda e, id, _: e.store.requeue(id, 1, "process_lost", crashed=ERROR)),
    "seal": ("stepping", lambda e, id, _: e.seal(id, 1)),
    "park": ("stepping", lambda e, id, _: e.store.park(id, 1, ERROR, "retry")),
    "cancel": ("stepping", lambda e, id, _: e.cancel(id)),
    "expire": ("old", lambda e, id, _: e.expire(id)),
    "purge": ("ended", lambda e, _, execution: e.store.purge(execution, 2**52)),
}


def _open_step(engine: Engine, id: str) -> str:
    steps = engine.client.hget("saved", id)
    assert steps is not None
    return steps.decode()


def _prepare(engine: Engine, state: str) -> str:
    if state == "none":
        return new_id()
    id = engine.new(labels={"a": "b"}, scope="s", key="k", timeout_us=-1 if state == "old" else HOUR)
    if state in ("pending", "old"):
        return id
    execution = engine.take(id)
    if state == "stepping":
        step = engine.begin(execution, timeout_us=-SECOND)[1]
        engine.client.hset("saved", id, step)
    if state == "ended":
        engine.seal(id, 1)
    return id


def _keys_of(engine: Engine, name: str, act: Act, id: str) -> list[str]:
    """The keys that the act's script is given."""
    seen: list[str] = []
    scripts = engine.store.scripts

    class Spy(Scripts):
        def __call__(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
            if script == name:
                seen.extend(keys)
                raise LookupError
            return scripts(script, keys, args)

    engine.store.scripts = Spy(engine.client)
    with pytest.raises(LookupError):
        act(engine, id, engine.store.get(id))
    engine.store.scripts = scripts
    return seen


@pytest.mark.parametrize("name", ACTS)
def test_a_key_of_a_wrong_type_stops_a_script_before_it_writes(engine: Engine, name: str) -> None:
    """Whichever of its keys is spoilt, a script fails and has written nothing at all."""
    state, act = ACTS[name]
    count = len(_keys_of(engine, name, act, _prepare(engine, state)))
    assert count >= 17
    for number in range(count):
        engine.client.flushall()
        id = _prepare(engine, state)
        key = _keys_of(engine, name, act, id)[number]
        found = engine.store.get(id)
        engine.client.delete(key)
        lists = (engine.keys.express, engine.keys.log(id), engine.keys.ledger(id), engine.keys.journal)
        if key in lists:
            engine.client.hset(key, "spoilt", "1")
        else:
            engine.client.rpush(key, "spoilt")
        before = engine.whole()
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            act(engine, id, found)
        assert engine.whole() == before, key


def test_no_script_changes_a_byte_of_json(engine: Engine) -> None:
    """Inputs, outputs, results, errors, payloads and step values come back byte for byte: [] stays []."""
    id = engine.new(input=NASTY, context=NASTY)
    execution = engine.take(id)
    engine.store.append(id, 1, 1, [("output.chunk", NASTY)])
    assert engine.store.remember(id, 1, "once:x", NASTY) == NASTY
    step = engine.begin(execution, intent=NASTY)[1].decode()
    engine.store.step_end(id, 1, step, "succeeded", NASTY, NASTY)
    assert engine.begin(execution, intent=NASTY)[2] == NASTY
    engine.executions.signal(id, "x", json.loads(NASTY))
    engine.store.seal(id, 1, "failed", output=NASTY, result=NASTY, error=NASTY, payload=NASTY)
    ended = engine.get(id)
    for field in ("input", "context", "output", "result", "error"):
        assert ended.raw[field] == NASTY
    told = [event.payload for event in engine.store.events(id)]
    assert told.count(NASTY) == 4 and NASTY in told[0]


def test_a_log_takes_no_more_events_than_it_may(engine: Engine) -> None:
    """Text ends where the reserve begins, steps and signals where the log ends; nothing is half written."""
    execution = engine.running()
    id = execution.id
    most = limits.MOST_EVENTS - limits.RESERVED_EVENTS
    many = [("output.chunk", b"{}")] * (most - 2)
    assert engine.store.append(id, 1, 1, [*many, ("output.chunk", b"{}")], {"said": 9}) == "full"
    assert (engine.client.llen(engine.keys.log(id)), engine.get(id).said) == (2, 0)
    assert engine.store.append(id, 1, 2, many, {"said": 9}) == "ok"
    assert engine.store.append(id, 1, 3, [("output.chunk", b"{}")], {"said": 10}) == "full"
    # What is only remembered is no event.
    assert engine.store.append(id, 1, 4, [], {"message": "still here"}) == "ok"
    assert (engine.get(id).said, engine.get(id).message) == (9, "still here")
    assert engine.begin(execution)[0] == b"new"
    pipe = engine.client.pipeline(transaction=False)
    for _ in range(limits.RESERVED_EVENTS - 3):
        pipe.rpush(engine.keys.log(id), "1 signal.received - 0 0 {}")
    pipe.execute()
    before = engine.whole()
    assert engine.begin(execution, "t#2") == [b"full"]
    assert engine.whole() == before
    engine.executions.signal(id, "x", {})
    with pytest.raises(Conflict, match="full"):
        engine.executions.signal(id, "x", {})
    assert engine.store.remember(id, 1, "file:x", b"1", kind="file.written", payload=b"{}") == b"1"
    assert engine.client.llen(engine.keys.log(id)) == limits.MOST_EVENTS
    # The end itself always has room.
    assert engine.seal(id, 1) == "ok"


def test_a_log_takes_no_more_bytes_than_it_may(engine: Engine) -> None:
    """Chunks are counted by their bytes; one that would pass the limit is refused whole."""
    execution = engine.running()
    id = execution.id
    most = limits.MOST_LOG_BYTES - limits.RESERVED_BYTES
    chunk = b'{"text":"' + b"x" * (most // 3) + b'"}'
    for number in (1, 2):
        assert engine.store.append(id, 1, number, [("output.chunk", chunk)]) == "ok"
    assert engine.store.append(id, 1, 3, [("output.chunk", chunk)]) == "full"
    assert engine.store.append(id, 1, 4, [("progress.updated", b"{}")]) == "ok"
    engine.client.hset(engine.keys.record(id), "log_bytes", limits.MOST_LOG_BYTES - 100)
    with pytest.raises(Conflict, match="full"):
        engine.executions.signal(id, "x", "1" * 200)
    assert engine.begin(execution, intent=b"1" * most) == [b"full"]
    engine.executions.signal(id, "x", "1")


def test_purge_leaves_nothing_behind(engine: Engine) -> None:
    """When an execution is removed, not a key, a list entry or an index row of it remains."""
    before = engine.whole()
    id = engine.new(labels={"a": "b", "é:": "x" * 500}, scope="s", key="k")
    execution = engine.take(id)
    engine.store.remember(id, 1, "once:x", b"1")
    step = engine.begin(execution)[1].decode()
    engine.store.step_end(id, 1, step, "succeeded", b"1", b"{}")
    engine.begin(execution, "t#2")
    engine.seal(id, 1)
    ended = engine.get(id)
    assert not engine.store.purge(ended, ended.ended - 1)
    assert engine.store.purge(ended, ended.ended)
    assert not engine.store.purge(ended, ended.ended)
    engine.client.delete(engine.keys.stats)
    assert engine.whole() == before


@pytest.mark.parametrize("state", ["pending", "running", "money"])
def test_purge_spares_what_is_not_over(engine: Engine, state: str) -> None:
    """Neither an unfinished execution nor one whose money is open is removed, however old."""
    id = engine.new()
    if state != "pending":
        engine.take(id)
    if state == "money":
        engine.seal(id, 1)
        engine.client.hset(engine.keys.record(id), mapping={"phase": "payment_due", "ended": "1"})
    before = engine.whole()
    assert not engine.store.purge(engine.get(id), 2**52)
    assert engine.whole() == before


def test_looking_at_a_removal_removes_nothing(engine: Engine) -> None:
    """purge can be asked what it would do, and then does nothing."""
    id = engine.new()
    engine.take(id)
    assert not engine.store.purge(engine.get(id), 2**52, look=True)
    engine.seal(id, 1)
    before = engine.whole()
    assert engine.store.purge(engine.get(id), 2**52, look=True)
    assert engine.whole() == before


def test_purge_spares_a_key_that_now_names_another(engine: Engine) -> None:
    """An idempotency key is removed with its own execution only."""
    id = engine.new(scope="s", key="k")
    engine.take(id)
    engine.seal(id, 1)
    name = engine.keys.idempotency("s", "k")
    engine.client.set(name, "somebody else")
    assert engine.store.purge(engine.get(id), 2**52)
    assert engine.client.get(name) == b"somebody else"


def test_scripts_come_back_after_the_store_forgot_them(engine: Engine) -> None:
    """A store that was restarted knows no scripts; the next call loads them again."""
    id = engine.new()
    engine.client.script_flush()
    assert engine.take(id).fence == 1
    assert Keys().transition(id) == engine.keys.transition(id)
