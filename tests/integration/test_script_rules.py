"""Rules for all scripts: declared keys, type checks before writes, unchanged JSON, bounded logs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.engine import ERROR, HOUR, LEASE, SECOND, Engine
from tests.fakes.no_money import NO_MONEY
from tests.fakes.restricted_scripts import RestrictedScripts
from worker.core.errors import Conflict
from worker.core.ids import new_id
from worker.core.states import Lane
from worker.engine import events as limits
from worker.engine import transitions
from worker.engine.answers import TAKE_HANDED, TAKE_NEXT, StepBeginAnswer
from worker.engine.transitions import ExecutionStore
from worker.files.store import DiskFiles
from worker.payments.money_store import HOOKS
from worker.remote import store as remote
from worker.store.scripts import LUA as STORE
from worker.store.scripts import Reply, ScriptCall, Scripts, Value

LUA = sorted([*transitions.LUA.glob("*.lua"), *remote.LUA.glob("*.lua"), *STORE.glob("*.lua")])
EVERY_LUA = sorted(Path(limits.__file__).parents[1].glob("*/lua/*.lua"))
NASTY = b'{"a":[],"b":{},"c":[[]],"d":1.0,"e":1e2,"f":12345678901234567890,"g":"\\u00e9 \\\\ \\"","h":null}'


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.stem)
def test_scripts_never_decode_json_or_build_key_names(path: Path) -> None:
    """No script decodes JSON, and every key of a command comes from KEYS."""
    code = re.sub(r"--[^\n]*", "", path.read_text())
    assert "cjson" not in code and "cmsgpack" not in code
    names = r"RECORD|LOG|STEPS|MONEY|LEDGER|[A-Z_]+(\.\w+|\[\w+\])?|KEYS\[[^\]]+\]|key"
    for command, first in re.findall(r"redis\.p?call\((?:'(\w+)'|[^,]+),\s*([^,)]+)", code):
        assert re.fullmatch(names, first.strip()), (command, first)


@pytest.mark.parametrize("path", EVERY_LUA, ids=lambda path: path.stem)
def test_scripts_quote_the_names_they_put_into_json(path: Path) -> None:
    """Only times, and metric labels that the script itself chooses, are quoted as they are."""
    lines = [line for line in path.read_text().splitlines() if "'HINCRBY', STATS" not in line]
    unquoted = re.findall(r"""\"' \.\. (?!iso\(|string\.gsub\(text)\w+""", "\n".join(lines))
    assert not unquoted


def test_a_name_with_quotes_leaves_the_log_readable(engine: Engine) -> None:
    """Whatever checked the name before, its event is valid JSON with exactly this name."""
    name = 'a "b" \\ \n \x01 é /'
    id = engine.new()
    engine.store.take(id, lease_us=LEASE, worker=name, session="s")
    assert json.loads(engine.log(id, "execution.started")[0].payload)["consumer_id"] == name


@pytest.fixture(name="fenced")
def _fenced(client: redis.Redis, tmp_path: Path) -> Engine:
    """An engine whose scripts run as that user, on the store's own clock."""
    engine = Engine(client, DiskFiles(tmp_path / "files"))
    engine.store = ExecutionStore(client, hooks=NO_MONEY)
    engine.store.scripts = RestrictedScripts(client)
    return engine


def test_scripts_touch_only_declared_keys(fenced: Engine) -> None:
    """A full execution sequence runs as a user who may access only each script's declared keys."""
    store, scripts = fenced.store, fenced.store.scripts
    id = fenced.new(labels={"a": "b"}, scope="s", key="k", timeout_us=HOUR)
    store.hint(id)
    execution = fenced.take(id)
    store.renew(id, 1, LEASE)
    store.append(id, 1, 1, [("progress.updated", b"{}")], {"message": "m"})
    store.remember(id, 1, "once:x", b"1", kind="file.written", payload=b"{}")
    step = fenced.begin(execution).text()
    store.step_end(id, 1, step, "retry", b"", b"{}")
    store.step_end(id, 1, step, "succeeded", b"1", b"{}")
    late = fenced.begin(execution, "t#2", timeout_us=-SECOND).text()
    store.requeue(id, 1, "handed_back")
    take_next(fenced, fenced.new(lane=Lane.EXPRESS))
    take_next(fenced, new_id())
    fenced.client.lpush(fenced.keys.handed("s2"), fenced.new())
    take_handed(fenced)
    store.requeue(fenced.running(attempts=1).id, 1, "process_lost", crashed=ERROR)
    store.requeue(fenced.running().id, 1, "transient", delay_us=SECOND)
    fenced.take(id)
    assert store.step_expire(id, late, ERROR) == "gone"
    store.park(fenced.running().id, 1, ERROR, "retry")
    timed = fenced.running()
    late = fenced.begin(timed, timeout_us=-SECOND).text()
    assert store.step_expire(timed.id, late, ERROR) == "failed"
    assert fenced.seal(id, 2) == "ok"
    assert fenced.cancel(fenced.new()) == "cancelled"
    assert fenced.expire(fenced.new(timeout_us=-1)) == "failed"
    store.due(tree="t", retention_us=1)
    assert store.now() > 0
    assert store.pass_on(fenced.new()) == "queue"
    store.sign_on("express", "w")
    assert (store.takers("express"), store.clock_age() is not None) == (1, True)
    store.sign_off("express", "w")
    assert store.takers("express") == 0
    assert store.purge(fenced.get(id), 2**52)
    assert isinstance(scripts, RestrictedScripts)
    # The scripts of remote agents and runners have the same test in a file of their own.
    ours = {path.stem for path in transitions.LUA.glob("*.lua") if not path.stem.startswith("_")}
    assert ours - {"load"} <= scripts.ran


def test_restricted_user_is_really_restricted(fenced: Engine) -> None:
    """The same script is refused if one of its keys is not allowed: the test above can fail."""
    scripts = fenced.store.scripts
    assert isinstance(scripts, RestrictedScripts)
    call = scripts.call("hint", id=fenced.new())
    scripts.open(call.keys[:-1])
    with pytest.raises(redis.ResponseError, match="(?i)permission"):
        Scripts(scripts.user, fenced.keys, transitions.LUA).send(call)


def take_next(engine: Engine, id: str) -> None:
    engine.store.scripts.run(TAKE_NEXT, id=id, lease=LEASE, worker="w1", session="s", instead="1", waits="")


def take_handed(engine: Engine) -> None:
    engine.store.scripts.run(TAKE_HANDED, id="", lease=LEASE, worker="w1", session="s2", before="s1")


Act = Callable[[Engine, str, Any], object]
ACTS: dict[str, tuple[str, Act]] = {
    "create": ("none", lambda e, id, _: e.new(id=id, labels={"a": "b"}, scope="s", key="k")),
    "take": ("pending", lambda e, id, _: e.take(id)),
    "take_next": ("express", lambda e, id, _: take_next(e, id)),
    "take_handed": ("handed", lambda e, *_: take_handed(e)),
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
    lane = Lane.EXPRESS if state == "express" else Lane.QUEUE
    timeout = -1 if state == "old" else HOUR
    id = engine.new(labels={"a": "b"}, scope="s", key="k", lane=lane, timeout_us=timeout)
    if state == "handed":
        engine.client.lpush(engine.keys.handed("s2"), id)
    if state in ("pending", "express", "old", "handed"):
        return id
    execution = engine.take(id)
    if state == "stepping":
        step = engine.begin(execution, timeout_us=-SECOND).values[0]
        engine.client.hset("saved", id, step)
    if state == "ended":
        engine.seal(id, 1)
    return id


def _keys_of(engine: Engine, name: str, act: Act, id: str) -> list[str]:
    """The keys given to the action's script."""
    seen: list[str] = []
    scripts = engine.store.scripts

    class Spy(Scripts):
        def call(self, script: str, /, **arguments: Value) -> ScriptCall:
            call = super().call(script, **arguments)
            if script == name:
                seen.extend(call.keys)
                raise LookupError
            return call

    engine.store.scripts = Spy(
        engine.client, engine.keys, transitions.LUA, libraries=[transitions.SHARED, *HOOKS], test_clock=True
    )
    with pytest.raises(LookupError):
        act(engine, id, engine.store.get(id))
    engine.store.scripts = scripts
    return seen


@pytest.mark.parametrize("name", ACTS)
def test_wrong_key_type_stops_a_script_before_it_writes(engine: Engine, name: str) -> None:
    """With any one of its keys of the wrong type, a script fails without writing."""
    state, act = ACTS[name]
    count = len(_keys_of(engine, name, act, _prepare(engine, state)))
    assert count >= 2
    for number in range(count):
        engine.client.flushall()
        id = _prepare(engine, state)
        key = _keys_of(engine, name, act, id)[number]
        key += id if key.endswith(":") else ""
        found = engine.store.get(id)
        engine.client.delete(key)
        lists = (engine.keys.express, engine.keys.log(id), engine.keys.ledger(id), engine.keys.journal)
        if key in lists or key.startswith(engine.keys.handed("")):
            engine.client.hset(key, "spoilt", "1")
        else:
            engine.client.rpush(key, "spoilt")
        before = engine.whole()
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            act(engine, id, found)
        assert engine.whole() == before, key


def test_scripts_store_json_byte_for_byte(engine: Engine) -> None:
    """Inputs, outputs, results, errors, payloads and step values are preserved byte for byte: [] stays []."""
    id = engine.new(input=NASTY, context=NASTY)
    execution = engine.take(id)
    engine.store.append(id, 1, 1, [("output.chunk", NASTY)])
    assert engine.store.remember(id, 1, "once:x", NASTY) == NASTY
    step = engine.begin(execution, intent=NASTY).text()
    engine.store.step_end(id, 1, step, "succeeded", NASTY, NASTY)
    assert engine.begin(execution, intent=NASTY).values[1] == NASTY
    engine.executions.signal(id, "x", json.loads(NASTY))
    engine.store.seal(id, 1, "failed", output=NASTY, result=NASTY, error=NASTY, payload=NASTY)
    ended = engine.get(id)
    for field in ("input", "context_json", "output", "result_json", "error_json"):
        assert getattr(ended, field) == NASTY
    payloads = [event.payload for event in engine.store.events(id)]
    assert payloads.count(NASTY) == 4 and NASTY in payloads[0]


def test_log_event_count_is_limited(engine: Engine) -> None:
    """Text stops at the reserve, steps and signals at the end of the log; nothing is partly written."""
    execution = engine.running()
    id = execution.id
    most = limits.MOST_EVENTS - limits.RESERVED_EVENTS
    many = [("output.chunk", b"{}")] * (most - 2)
    assert engine.store.append(id, 1, 1, [*many, ("output.chunk", b"{}")], {"said": 9}) == "full"
    assert (engine.client.llen(engine.keys.log(id)), engine.get(id).streamed) == (2, 0)
    assert engine.store.append(id, 1, 2, many, {"said": 9}) == "ok"
    assert engine.store.append(id, 1, 3, [("output.chunk", b"{}")], {"said": 10}) == "full"
    # A remembered value is no event.
    assert engine.store.append(id, 1, 4, [], {"message": "still here"}) == "ok"
    assert (engine.get(id).streamed, engine.get(id).message) == (9, "still here")
    assert engine.begin(execution).answer == "new"
    pipe = engine.client.pipeline(transaction=False)
    for _ in range(limits.RESERVED_EVENTS - 3):
        pipe.rpush(engine.keys.log(id), "1 signal.received - 0 0 {}")
    pipe.execute()
    before = engine.whole()
    assert engine.begin(execution, "t#2") == Reply(StepBeginAnswer.FULL, [])
    assert engine.whole() == before
    engine.executions.signal(id, "x", {})
    with pytest.raises(Conflict, match="full"):
        engine.executions.signal(id, "x", {})
    assert engine.store.remember(id, 1, "file:x", b"1", kind="file.written", payload=b"{}") == b"1"
    assert engine.client.llen(engine.keys.log(id)) == limits.MOST_EVENTS
    # The terminal event always fits.
    assert engine.seal(id, 1) == "ok"


def test_log_size_is_limited(engine: Engine) -> None:
    """Chunks count by their bytes; one that would pass the limit is refused entirely."""
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
    assert engine.begin(execution, intent=b"1" * most) == Reply(StepBeginAnswer.FULL, [])
    engine.executions.signal(id, "x", "1")


def test_purge_leaves_nothing_behind(engine: Engine) -> None:
    """After an execution is removed, no key, list entry or index row of it remains."""
    before = engine.whole()
    id = engine.new(labels={"a": "b", "é:": "x" * 500}, scope="s", key="k")
    execution = engine.take(id)
    engine.store.remember(id, 1, "once:x", b"1")
    step = engine.begin(execution).text()
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
def test_purge_spares_unfinished_executions_and_open_money(engine: Engine, state: str) -> None:
    """An unfinished execution, or one with open money, is never removed, however old."""
    id = engine.new()
    if state != "pending":
        engine.take(id)
    if state == "money":
        engine.seal(id, 1)
        engine.client.hset(engine.keys.record(id), mapping={"phase": "payment_due", "ended": "1"})
    before = engine.whole()
    assert not engine.store.purge(engine.get(id), 2**52)
    assert engine.whole() == before


def test_purge_dry_run_removes_nothing(engine: Engine) -> None:
    """A dry run reports what purge would remove and removes nothing."""
    id = engine.new()
    engine.take(id)
    assert not engine.store.purge(engine.get(id), 2**52, look=True)
    engine.seal(id, 1)
    before = engine.whole()
    assert engine.store.purge(engine.get(id), 2**52, look=True)
    assert engine.whole() == before


def test_purge_spares_a_reused_idempotency_key(engine: Engine) -> None:
    """An idempotency key is removed with its own execution only."""
    id = engine.new(scope="s", key="k")
    engine.take(id)
    engine.seal(id, 1)
    name = engine.keys.idempotency("s", "k")
    engine.client.set(name, "somebody else")
    assert engine.store.purge(engine.get(id), 2**52)
    assert engine.client.get(name) == b"somebody else"


def test_scripts_are_reloaded_after_a_store_restart(engine: Engine) -> None:
    """A restarted store has no scripts; the next call loads them again."""
    id = engine.new()
    engine.client.script_flush()
    assert engine.take(id).fence == 1
