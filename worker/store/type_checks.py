"""Inserts the type checks into a script: no write may fail by type, because the store does not roll back.

The checks stand before the first statement that may write. A script that writes nothing has none, and a key
that is surely read before that point has none of its own, because a read fails by type, too. What is surely
read is judged by the text, and where in doubt, a key is checked: a statement counts up to its first `and`,
`or` or `function`, of a block only the condition counts, and of a function only what precedes its first
conditional `return`.

All sorted sets are checked by one ZDIFF. Its result is empty at once, because the first key is subtracted
from itself, but the store looks up all the keys before that. It takes plain sets for sorted ones; nothing
here ever makes a plain set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from worker.store.key_types import Type

_READS = {
    "GET": Type.STRING,
    "STRLEN": Type.STRING,
    "HEXISTS": Type.HASH,
    "HGET": Type.HASH,
    "HGETALL": Type.HASH,
    "HLEN": Type.HASH,
    "HMGET": Type.HASH,
    "HSTRLEN": Type.HASH,
    "LINDEX": Type.LIST,
    "LLEN": Type.LIST,
    "LPOS": Type.LIST,
    "LRANGE": Type.LIST,
    "ZCARD": Type.ZSET,
    "ZCOUNT": Type.ZSET,
    "ZRANGE": Type.ZSET,
    "ZRANGEBYLEX": Type.ZSET,
    "ZRANGEBYSCORE": Type.ZSET,
    "ZREVRANGE": Type.ZSET,
    "ZSCORE": Type.ZSET,
}
# They neither write nor depend on a key's type.
_NEUTRAL = ("EXISTS", "INFO", "PTTL", "TIME", "TYPE")
_TEXT = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_COMMENT = re.compile(rf"({_TEXT})|--.*")
_COMMAND = r"redis\.p?call\(\s*(?:'(?P<command>\w+)'(?:,\s*(?P<key>[A-Z_]+(?:\.\w+)?))?)?"
_STEP = re.compile(rf"{_COMMAND}|{_TEXT}|(?<![.:\w])(?P<name>[a-z_]\w*)(?P<called>\()?")
_BRANCH = re.compile(r"\b(?:and|or|function)\b")
_LEAVES = re.compile(r"\b(?:return|break|error)\b")
# In parts, because `unpack` takes a few thousand items at most. OTHERS are keys of no list, the first twice.
_SORTED_LIST = """\
for first = 1, #LIST, 1000 do
  local last = math.min(first + 999, #LIST)
  redis.call('ZDIFF', last - first + 2, LIST[first], unpack(LIST, first, last))
end"""
_SORTED_LIST_AND_OTHERS = """\
for first = 1, math.max(1, #LIST), 1000 do
  local last = math.min(first + 999, #LIST)
  redis.call('ZDIFF', last - first + COUNT, OTHERS, unpack(LIST, first, last))
end"""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a script: what its text calls it, and where the generated code finds it."""

    name: str
    place: str
    type: Type


def with_type_checks(
    body: str, functions: Mapping[str, str], keys: Sequence[Key], lists: Sequence[Key]
) -> str:
    """The script with checks of these keys, and of the keys in these lists, before its first write."""
    lines = body.split("\n")
    text = _Text({**functions, **_own_functions(lines)}, {key.name: key.type for key in keys})
    read: set[str] = set()
    for at, statement in _statements(lines):
        found, writes = text.look(statement)
        read |= found
        if writes:
            checks = _checks([key for key in keys if key.name not in read], lists)
            return "\n".join([*lines[:at], *checks, *lines[at:]])
    return body


class _Text:
    """What statements and functions of one script do."""

    def __init__(self, functions: Mapping[str, str], types: Mapping[str, Type]) -> None:
        self._functions = functions
        self._types = types
        self._seen: dict[str, tuple[set[str], bool]] = {}

    def look(self, statement: str) -> tuple[set[str], bool]:
        """The keys that a statement surely reads before it writes, and whether it may write."""
        if statement.startswith(("local function", "function")):
            return set(), False
        found = self._surely_read(_unconditional(statement))
        return found, any(self._writes(step) for step in _STEP.finditer(statement))

    def _surely_read(self, part: str) -> set[str]:
        found: set[str] = set()
        for step in _STEP.finditer(part):
            if step["key"] in self._types and _READS.get(step["command"]) is self._types[step["key"]]:
                found.add(step["key"])
            elif step["called"] and step["name"] in self._functions:
                found |= self._function(step["name"])[0]
            if self._writes(step):
                break
        return found

    def _writes(self, step: re.Match[str]) -> bool:
        if step[0].startswith("redis"):
            return step["command"] not in _READS and step["command"] not in _NEUTRAL
        return step["name"] in self._functions and self._function(step["name"])[1]

    def _function(self, name: str) -> tuple[set[str], bool]:
        """The same of a function. One that calls itself counts as writing."""
        if name not in self._seen:
            self._seen[name] = set(), True
            read: set[str] = set()
            sure, writes = True, False
            for _, statement in _statements(_inside(self._functions[name])):
                found, writing = self.look(statement)
                read |= found if sure else set()
                writes = writes or writing
                sure = sure and not writing and not _LEAVES.search(statement)
            self._seen[name] = read, writes
        return self._seen[name]


def _checks(keys: Sequence[Key], lists: Sequence[Key]) -> Iterator[str]:
    sorted_sets = [key.place for key in keys if key.type is Type.ZSET]
    sorted_lists = [key.place for key in lists if key.type is Type.ZSET]
    words = ", ".join([*sorted_sets[:1], *sorted_sets])
    together = sorted_lists[0] if sorted_sets and sorted_lists else ""
    if together:
        text = _SORTED_LIST_AND_OTHERS.replace("COUNT", str(len(sorted_sets) + 2))
        yield text.replace("OTHERS", words).replace("LIST", together)
    elif len(sorted_sets) > 1:
        yield f"redis.call('ZDIFF', {len(sorted_sets) + 1}, {words})"
    for key in keys:
        if key.type is not Type.ANY and not (key.type is Type.ZSET and (together or len(sorted_sets) > 1)):
            yield f"redis.call('{key.type.length}', {key.place})"
    for key in lists:
        if key.place == together:
            continue
        if key.type is Type.ZSET:
            yield _SORTED_LIST.replace("LIST", key.place)
        else:
            yield f"for _, key in ipairs({key.place}) do redis.call('{key.type.length}', key) end"


def _own_functions(lines: Sequence[str]) -> dict[str, str]:
    """Functions that the script defines for itself."""
    starts = ((re.match(r"local function (\w+)", text), text) for _, text in _statements(lines))
    return {start[1]: text for start, text in starts if start}


def _inside(function: str) -> list[str]:
    """The lines of a function's body; none of what is no function."""
    match = re.match(r"(?:local )?function \w+\([^)]*\)(.*)\bend\s*$", function, re.DOTALL)
    return match[1].split("\n") if match else []


def _statements(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Statements that are not part of another one, without comments: where each begins, and its text."""
    code = [_COMMENT.sub(lambda match: match[1] or "", line).rstrip() for line in lines]
    depth = min((len(line) - len(line.lstrip()) for line in code if line), default=0)
    start, text = -1, ""
    for at, line in enumerate(code):
        if not line:
            continue
        begins = not line[depth].isspace() and not re.match(r"(?:end|else|elseif|until)\b|[)}]", line[depth:])
        if begins and text:
            yield start, text
        start, text = (at, line.strip()) if begins else (start, f"{text}\n{line.strip()}")
    if text:
        yield start, text


def _unconditional(statement: str) -> str:
    """The part of a statement that is evaluated first and in any case."""
    block = re.match(r"(if|for|while|repeat|do)\b", statement)
    if block:
        condition = re.split(r"\b(?:then|do)\b", statement, maxsplit=1)[0]
        statement = condition if block[1] in ("if", "for") else ""
    branch = _BRANCH.search(statement)
    return statement[: branch.start()] if branch else statement
