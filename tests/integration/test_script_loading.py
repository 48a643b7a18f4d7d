"""Script calls in a real store: lists of keys, type checks, and a script the store has forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from worker.store.data_model import Keys
from worker.store.scripts import Scripts

LISTS = """\
-- Counts what it was given.
--
-- keys
--   turns jobs(tools)* indexes*=zset
-- args
--   first
--   rest*
-- returns
--   what it was given
redis.call('HSET', TURNS, 'first', first)
return {#JOBS, #INDEXES, first, #rest, JOBS[#JOBS], INDEXES[#INDEXES], rest[#rest]}
"""


@pytest.fixture(name="scripts")
def _scripts(client: redis.Redis, tmp_path: Path) -> Scripts:
    (tmp_path / "lists.lua").write_text(LISTS)
    return Scripts(client, Keys(), tmp_path)


def test_10000_keys_and_arguments_are_passed(scripts: Scripts) -> None:
    """Key lists and the argument list take 10,000 entries each, in order and kept apart."""
    tools = [f"tool {at}" for at in range(10_000)]
    indexes = [f"index {at}" for at in range(10_000)]
    rest = [str(at) for at in range(10_000)]
    found = scripts.value("lists", first="a", rest=rest, tools=tools, indexes=indexes)
    last = [Keys().jobs(tools[-1]).encode(), b"index 9999", b"9999"]
    assert found == [10_000, 10_000, b"a", 10_000, *last]


def test_empty_lists_are_passed(scripts: Scripts) -> None:
    """A script gets empty tables for empty lists of keys and arguments."""
    found = scripts.value("lists", first="a", rest=[], tools=[], indexes=[])
    assert found[:4] == [0, 0, b"a", 0]


@pytest.mark.parametrize("wrong", ["w:turns", Keys().jobs("t"), "index"])
def test_wrong_key_type_stops_before_any_write(client: redis.Redis, scripts: Scripts, wrong: str) -> None:
    """For one key or one of a list, the script fails and nothing is written."""
    client.set(wrong, "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        scripts.value("lists", first="a", rest=[], tools=["t"], indexes=["index"])
    assert client.keys("*") == [wrong.encode()]


def test_forgotten_script_is_sent_again(client: redis.Redis, scripts: Scripts) -> None:
    """After the store has dropped its scripts, calls and batches succeed as before."""
    call = scripts.call("lists", first="a", rest=[], tools=[], indexes=[])
    assert scripts.send(call) == scripts.send(call)
    client.script_flush()
    assert scripts.batch([call, call]) == [scripts.send(call)] * 2
    client.script_flush()
    together = scripts.send_together(call, ("INCR", "k"), call)
    assert together == [scripts.send(call), 1, scripts.send(call)]
