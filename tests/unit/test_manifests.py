"""Parsing script manifests, what they refuse, and the source assembled from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from worker.store.data_model import Keys
from worker.store.manifests import BadManifest, assemble, read_manifest, unused_keys
from worker.store.scripts import Binding

WHOLE = """\
-- Says what it does.
--
-- keys
--   record log by_state.pending worker_mail=mail(worker)
--   jobs(tools)* indexes*=zset takers=zset
-- hook keys
--   ledger
-- args
--   id
--   lease   us
--   rest*   field, value, ...
-- answers
--   taken   time
--   gone
return redis.call('HGET', RECORD, 'a')
"""


def script(**blocks: str) -> str:
    """Return a script with these blocks and no code."""
    lines = ["-- Says what it does.", "--"]
    for name, text in blocks.items():
        lines += [f"-- {name.replace('_', ' ')}", *(f"--   {line}" for line in text.split("\n"))]
    return "\n".join(lines)


def source(text: str, *libraries: Path) -> str:
    return assemble(read_manifest("s", text), text, libraries, "local function now() return 1 end")


def test_all_manifest_sections_are_read() -> None:
    """Names, arguments, the trailing list and answers are read; text after a name explains it."""
    found = read_manifest("s", WHOLE)
    assert (found.args, found.rest, found.answers) == (("id", "lease"), "rest", ("taken", "gone"))
    assert [use.local for use in found.single] == [
        "RECORD", "LOG", "BY_STATE", "WORKER_MAIL", "TAKERS", "LEDGER"
    ]  # fmt: skip
    assert [use.local for use in found.lists] == ["JOBS", "INDEXES"]
    assert found.hook == {"LEDGER"}
    assert found.parameters == {"id", "lease", "rest", "worker", "tools", "indexes", "takers"}


def test_an_explanation_may_take_several_lines() -> None:
    """A line with deeper indentation continues the explanation above it."""
    found = read_manifest("s", script(keys="record", args="id", answers="go    one, two,\n      three\nno"))
    assert found.answers == ("go", "no")


def test_keys_are_bound_by_data_model_names() -> None:
    """Single keys precede lists; list lengths precede the arguments, the last of which is expanded."""
    keys = Keys("p")
    names, args = Binding(read_manifest("s", WHOLE), keys)(
        {"id": "x", "lease": 5, "rest": ["a", "b"], "worker": "w", "tools": ["t", "u"]}
        | {"indexes": ["p:i"], "takers": "p:q"},
    )
    assert names == (
        *("p:x:x", "p:log:x", "p:by:state:pending", keys.mail("w"), "p:q", "p:ledger:x"),
        *(keys.jobs("t"), keys.jobs("u"), "p:i"),
    )
    assert args == (2, 1, "x", 5, "a", "b")


@pytest.mark.parametrize("change", ["less", "more"])
def test_call_requires_exactly_the_declared_arguments(change: str) -> None:
    """A missing or surplus argument is refused by name before anything is sent."""
    found = read_manifest("s", script(keys="record", args="id\nlease"))
    arguments: dict[str, Any] = {"id": "x"} if change == "less" else {"id": "x", "lease": 1, "other": 2}
    with pytest.raises(BadManifest, match="lease" if change == "less" else "other"):
        Binding(found, Keys())(arguments)


REFUSED = {
    "a key that the data model does not know": script(keys="nonsense"),
    "a word that is no key": script(keys="record;"),
    "a method of the data model that is no key": script(keys="indexes"),
    "an argument in capitals": script(args="Id"),
    "an argument that is a word of Lua": script(args="until"),
    "an argument that hides the clock": script(args="now"),
    "an argument named twice": script(args="id\nid"),
    "a list that is not the last argument": script(args="fields*\nid"),
    "a key named twice": script(keys="record log record"),
    "an entry of a table named twice": script(keys="by_state by_state.pending"),
    "a key of the caller's called like an argument": script(keys="line=zset", args="line"),
    "two blocks of one name": script(keys="record") + "\n" + script(keys="log"),
    "a line that belongs to nothing": script(keys="record") + "\n-- and more prose",
    "an entry that its table does not have": script(keys="by_state.nonsense"),
    "an entry of what is no table": script(keys="record.pending"),
    "a parameter for a key of which there is one": script(keys="leases(id)"),
    "a list of a key of which there is one": script(keys="leases*"),
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=list(REFUSED))
def test_invalid_manifest_lines_are_refused(text: str) -> None:
    """The error begins with the script's name."""
    with pytest.raises(BadManifest, match=r"^s: "):
        read_manifest("s", text)


def test_undeclared_key_is_refused() -> None:
    """A script with an undeclared key is never sent; names in comments and strings do not count."""
    assert source(script(keys="log") + "\nlocal a = 1 -- RECORD\nreturn {'RECORD', LOG}")
    with pytest.raises(BadManifest, match=r"does not name: \['RECORD'\]"):
        source(script(keys="log") + "\nreturn {RECORD, LOG}")


def test_unused_key_is_detected() -> None:
    """A declared key that the script does not use is named."""
    text = script(keys="log record") + "\nreturn LOG"
    assert unused_keys(read_manifest("s", text), text, []) == {"RECORD"}


@pytest.fixture(name="shared")
def _shared(tmp_path: Path) -> Path:
    path = tmp_path / "_shared.lua"
    path.write_text(
        "-- Two functions, one by the other, and one alone.\n"
        "local function outer() return inner() end\n"
        "-- A line about the next one.\n"
        "local function inner()\n  return RECORD\nend\n"
        "local function alone() return LEASES end\n"
    )
    return path


def test_used_shared_functions_are_included(shared: Path) -> None:
    """Functions that a script uses, directly or indirectly and in any order, are included; no others are."""
    lua = source(script(keys="record") + "\nreturn outer()", shared)
    assert "function outer()" in lua and "function inner()" in lua and "alone" not in lua
    assert "RECORD" not in source(script(args="id") + "\nreturn id", shared)


NESTED = {
    "its only user": ("local function outer() return inner() end\n", "outer"),
    "the only user of its only user": (
        "local function outer() return between() end\nlocal function between() return inner() end\n",
        "between",
    ),
    "a user whose parameters take two lines": (
        "local function outer() return long(1, 2) end\nlocal function long(a,\n  b) return inner() end\n",
        "long",
    ),
    "what holds both its users": (
        "local function outer() return left() + right() end\n"
        "local function left() return inner() end\nlocal function right() return inner() end\n",
        "outer",
    ),
}
NOT_NESTED = {
    "a user that is called twice": (
        "local function outer() return twice() + twice() end\nlocal function twice() return inner() end\n",
        "outer",
    ),
    "a user with a parameter of its name": (
        "local function outer() return one(1) end\nlocal function one(inner) return inner end\n",
        "outer",
    ),
    "a user with a parameter of the name of another function": (
        "local function outer() return one(1) + used() end\nlocal function used() return 2 end\n"
        "local function one(used) return inner() + used end\n",
        "outer",
    ),
    "what calls itself": ("local function outer() return outer() or inner() end\n", ""),
    "one of two users": (
        "local function outer() return inner() end\nlocal function other() return inner() end\n",
        "",
    ),
}


@pytest.mark.parametrize(("text", "holder"), [*NESTED.values(), *NOT_NESTED.values()])
def test_shared_functions_are_defined_where_all_their_users_see_them(
    tmp_path: Path, text: str, holder: str
) -> None:
    """A script does not define what only a path needs that it does not take; no parameter is hidden."""
    path = tmp_path / "_shared.lua"
    path.write_text(text + "local function inner() return 1 end\n")
    body = "return outer()" + (" + other()" if "other" in text else "")
    lua = source(script(args="id") + f"\n{body}", path)
    start = lua.index(f"function {holder}(") if holder else lua.index("local outer")
    declared = re.search(r"\n?local ([^=\n]*)\n", lua[start:])
    assert declared and "inner" in declared[1].split(", ")
    assert lua.count("function inner()") == 1


def test_keys_used_by_shared_functions_must_be_declared(shared: Path) -> None:
    """The keys of a shared function count, also when another shared function calls it."""
    with pytest.raises(BadManifest, match="RECORD"):
        source(script(args="id") + "\nreturn outer()", shared)


def test_argument_named_like_a_shared_function_is_refused(shared: Path) -> None:
    """It would add that function's keys and hide it."""
    with pytest.raises(BadManifest, match="alone"):
        source(script(keys="leases", args="id\nalone") + "\nreturn alone", shared)


def test_key_types_are_checked_before_the_first_write() -> None:
    """Under the names that the caller's keys have in the script; a key declared as `any` is not checked."""
    text = script(keys="record by_state.pending leases lane=any jobs(tools)*")
    lua = source(text + "\nlocal a = redis.call('HGET', RECORD, 'a')\nredis.call('ZADD', LEASES, 1, a)")
    checks = lua[lua.index("local a =") : lua.index("redis.call('ZADD'")]
    assert "last - first + 4, KEYS[2], KEYS[2], KEYS[3], unpack(JOBS, first, last))" in checks
    assert "KEYS[1]" not in checks and "KEYS[4]" not in checks
