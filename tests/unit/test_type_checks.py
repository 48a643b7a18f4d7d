"""Which keys a script must check before its first write, and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import worker
from worker.store.key_types import Type
from worker.store.type_checks import Key, with_type_checks

KEYS = [
    Key("RECORD", "KEYS[1]", Type.HASH),
    Key("LOG", "KEYS[2]", Type.LIST),
    Key("LEASES", "KEYS[3]", Type.ZSET),
    Key("BY_STATE.pending", "KEYS[4]", Type.ZSET),
    Key("WAITS", "KEYS[5]", Type.ANY),
]
WRITE = "redis.call('DEL', RECORD)"
ALL = ["redis.call('ZDIFF', 3, KEYS[3], KEYS[3], KEYS[4])", "redis.call('HLEN', KEYS[1])"]
ALL += ["redis.call('LLEN', KEYS[2])"]


def checks(body: str, functions: str = "") -> list[str]:
    """The lines that are added to a script with these functions, one in a paragraph."""
    found = re.findall(r"local function (\w+)", functions)
    texts = dict(zip(found, functions.split("\n\n"), strict=True)) if functions else {}
    lines = with_type_checks(body, texts, KEYS, []).split("\n")
    return [line for line in lines if line not in body.split("\n")]


def test_checks_precede_the_first_statement_that_may_write() -> None:
    """What precedes it stays there; a key of any type is not checked."""
    body = f"local a = 1\nif b then\n  {WRITE}\nend\n{WRITE}"
    assert with_type_checks(body, {}, KEYS, []).split("\n") == ["local a = 1", *ALL, *body.split("\n")[1:]]


def test_scripts_that_write_nothing_check_nothing() -> None:
    """A read that fails leaves nothing behind."""
    assert checks("local at = redis.call('TIME')\nreturn redis.call('HGET', RECORD, 'a')") == []


def test_lists_of_keys_are_checked() -> None:
    """Sorted sets in parts, because a call takes a few thousand arguments at most."""
    lists = [Key("INDEXES", "INDEXES", Type.ZSET), Key("PAYMENTS", "PAYMENTS", Type.STRING)]
    found = with_type_checks(WRITE, {}, [], lists)
    assert "for first = 1, #INDEXES, 1000 do" in found and "unpack(INDEXES, first, last)" in found
    assert "for _, key in ipairs(PAYMENTS) do redis.call('STRLEN', key) end" in found


def test_sorted_sets_are_checked_with_the_first_list_of_them() -> None:
    """In one call; those of no list also where the list is empty."""
    lists = [Key("INDEXES", "INDEXES", Type.ZSET), Key("OFFERS", "OFFERS", Type.ZSET)]
    found = with_type_checks(WRITE, {}, KEYS, lists)
    assert "for first = 1, math.max(1, #INDEXES), 1000 do" in found
    each = "redis.call('ZDIFF', last - first + 4, KEYS[3], KEYS[3], KEYS[4], unpack(INDEXES, first, last))"
    assert each in found and ALL[0] not in found and ALL[1] in found
    assert "for first = 1, #OFFERS, 1000 do" in found and found.count("ZDIFF") == 2


READS = {
    "a command of the key's type": "local a = redis.call('HGET', RECORD, 'a') or 0",
    "on a further line": "local a,\n  b = unpack(redis.call('HMGET', RECORD, 'a',\n  'b'))",
    "a condition": "if redis.call('HGET', RECORD, 'a') then return end",
    "a loop's source": "for _, a in ipairs(redis.call('HGETALL', RECORD)) do b = a end",
    "after a way out": "if a then return end\nlocal b = redis.call('HGET', RECORD, 'a')",
    "a function": "local a = get('a')",
    "a function's first write": "change()",
    "a name in a string": "local b = f('change')\nlocal a = redis.call('HGET', RECORD, 'change')",
}
NO_READS = {
    "behind `and`": "local a = b and redis.call('HGET', RECORD, 'a')",
    "behind `or`": "local a = b or redis.call('HGET', RECORD, 'a')",
    "in a branch": "if a then b = redis.call('HGET', RECORD, 'a') end",
    "in a branch of several lines": "if a then\n  b = redis.call('HGET', RECORD, 'a')\nelse\n  b = 1\nend",
    "in a loop": "for _, a in ipairs(b) do c = redis.call('HGET', RECORD, a) end",
    "of another key": "local a = redis.call('HGET', STEPS, 'a')",
    "by a command that any type allows": "local a = redis.call('EXISTS', RECORD)",
    "by a command of another type": "local a = redis.call('LLEN', RECORD)",
    "in a comment": "local a = 1 -- redis.call('HGET', RECORD, 'a')",
    "in a string": "local a = \"get('a')\"",
    "by a function that is only named": "local a = get",
    "behind dashes in a string": f"local a = '--' {WRITE}\nlocal b = get('a')",
    "in a function that is not called": "local function mine()\n  return get('a')\nend",
    "behind a function's way out": "early()",
    "behind a function's write": "late()",
    "behind a write": f"{WRITE}\nlocal a = redis.call('HGET', RECORD, 'a')",
    "behind a command that is not named": "redis.call(a, LOG)\nlocal b = redis.call('HGET', RECORD, 'a')",
    "behind a call of itself": "circle()",
}
FUNCTIONS = """\
local function get(...) return redis.call('HMGET', RECORD, ...) end

local function change()
  local a = get('a')
  redis.call('DEL', LOG)
end

local function early()
  if a then return end
  return get('a')
end

local function late()
  redis.call('DEL', LOG)
  return get('a')
end

local function circle()
  circle()
  return get('a')
end"""


@pytest.mark.parametrize("body", READS.values(), ids=list(READS))
def test_keys_that_are_surely_read_first_are_not_checked(body: str) -> None:
    """The read fails by type itself."""
    assert checks(f"{body}\n{WRITE}", FUNCTIONS) == [ALL[0], ALL[2]]


@pytest.mark.parametrize("body", NO_READS.values(), ids=list(NO_READS))
def test_keys_that_may_not_be_read_first_are_checked(body: str) -> None:
    """In doubt a key is checked."""
    assert checks(f"{body}\n{WRITE}", FUNCTIONS) == ALL


def test_nothing_makes_plain_sets() -> None:
    """The one check of all sorted sets would let them pass; RQ's set of queues is no key of a script."""
    sources = [path for kind in ("lua", "py") for path in Path(worker.__file__).parent.rglob(f"*.{kind}")]
    makes = re.compile(
        r"\.(?:sadd|smove|s\w+store)\(|['\"](?:SADD|SMOVE|S\w+STORE)['\"](?!, Queue\.redis_queues_keys)"
    )
    assert not [path for path in sources if makes.search(path.read_text())]
