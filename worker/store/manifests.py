"""Parses the manifest of a Lua script, and assembles the source that the store runs.

The comment at the top of a script describes what it does; after a line `--` come blocks:

    -- keys
    --   record log leases by_state.pending mail(session) worker_mail=mail(worker) indexes*=zset
    -- hook keys
    --   money ledger
    -- args
    --   id
    --   lease     us
    --   fields*   field, value, ...
    -- answers
    --   taken     time, fields of the record
    --   gone

- `keys` are names of the data model. A key of many is built from a parameter that the caller passes: `record`
  from the parameter in its own pattern, `mail(session)` from `session`. `worker_mail=mail(worker)` renames
  the key in the script. `jobs(tools)*` is a list of keys, one per value. The caller builds the names of
  `indexes*=zset` (a list of keys) and `takers=zset` (one key). `by_state.pending` is one entry of the table
  BY_STATE, `by_state` alone is all of them.
- `hook keys` are used only by another room's hook.
- `args` become locals of the same name, as text; `fields*` takes all remaining ones, as a table. The text
  after a name explains it and may continue on lines that are indented further.
- `answers` are the first words of a reply. A script that replies with a plain value declares it under
  `returns`.

In the script every key is a local in capitals. Before the script's own lines the loader inserts the locals
and the shared functions that the script uses, directly or through one another; and before its first write,
checks of the keys' types (`type_checks.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path

from worker.store.data_model import Keys
from worker.store.key_types import Declared, Each, Type
from worker.store.type_checks import Key, with_type_checks

_TYPES = {"string": Type.STRING, "hash": Type.HASH, "list": Type.LIST, "zset": Type.ZSET, "any": Type.ANY}
_KEY = re.compile(
    r"(?:(?P<local>\w+)=)?(?P<name>\w+)(?:\.(?P<entry>\w+))?(?:\((?P<of>[\w,]+)\))?(?P<many>\*)?$"
)
_MADE = re.compile(r"(?P<local>\w+)(?P<many>\*)?=(?P<type>string|hash|list|zset|any)$")
# Stands for a script's own lines among the names of functions.
_BODY = ""
_BLOCKS = ("keys", "hook keys", "args", "answers", "returns")
_LUA_WORDS = re.compile(
    r"(and|break|do|else|elseif|end|false|for|function|if|in|local|nil|not|or|repeat|return|then|true"
    r"|until|while|redis|table|string|math|now|whole)$"
)


class BadManifest(Exception):
    """Invalid manifest. Raised when the script is loaded, never for a caller's input."""


@dataclass(frozen=True, slots=True)
class KeyUse:
    """One word of a `keys` line."""

    local: str
    name: str
    type: Type
    of: tuple[str, ...] = ()
    entry: str = ""
    many: bool = False

    @property
    def built_by_caller(self) -> bool:
        """Whether the caller builds the key name."""
        return not self.name


@dataclass(frozen=True, slots=True)
class ScriptManifest:
    """The parsed manifest of a script."""

    script: str
    keys: tuple[KeyUse, ...]
    args: tuple[str, ...]
    rest: str = ""
    answers: tuple[str, ...] = ()
    hook: frozenset[str] = field(default_factory=frozenset)

    @property
    def single(self) -> list[KeyUse]:
        return [use for use in self.keys if not use.many]

    @property
    def lists(self) -> list[KeyUse]:
        """Lists of keys; they follow the single ones."""
        return [use for use in self.keys if use.many]

    @property
    def locals(self) -> set[str]:
        return {use.local for use in self.keys}

    @property
    def parameters(self) -> set[str]:
        """Names of everything a caller passes."""
        of = {name for use in self.keys for name in use.of}
        built = {use.local.lower() for use in self.keys if use.built_by_caller}
        return {*self.args, *of, *built, *([self.rest] if self.rest else [])}


def read_manifest(script: str, source: str) -> ScriptManifest:
    """Parses a script's manifest; raises BadManifest if it is invalid."""
    blocks = _blocks(script, source)
    args = _first_words(blocks["args"])
    rest = args.pop()[:-1] if args and args[-1].endswith("*") else ""
    _check_args(script, [*args, *([rest] if rest else [])])
    hook = _uses(script, blocks["hook keys"])
    keys = (*_uses(script, blocks["keys"]), *hook)
    _check_keys(script, keys, args)
    return ScriptManifest(
        script=script,
        keys=keys,
        args=tuple(args),
        rest=rest,
        answers=tuple(_first_words(blocks["answers"])),
        hook=frozenset(use.local for use in hook),
    )


def assemble(manifest: ScriptManifest, body: str, libraries: Sequence[Path], clock: str) -> str:
    """Returns the source that the store runs, with the shared functions that the script uses."""
    functions = _needed(body, libraries)
    if shadowed := {*manifest.args, manifest.rest} & functions.keys():
        raise BadManifest(
            f"{manifest.script}: arguments have the names of shared functions: {sorted(shadowed)}"
        )
    used = {word for text in (body, *functions.values()) for word in _words(text)}
    known = set(_locals(Keys))
    undeclared = (used & known) - manifest.locals
    if undeclared:
        raise BadManifest(
            f"{manifest.script}: uses keys that its manifest does not name: {sorted(undeclared)}"
        )
    body = with_type_checks(body, functions, *_checked(manifest))
    parts = [clock, _key_locals(manifest), _Nesting(functions, body).source(), _arg_locals(manifest), body]
    return "\n".join(part for part in parts if part)


def unused_keys(manifest: ScriptManifest, body: str, libraries: Sequence[Path]) -> set[str]:
    """Returns the keys that the manifest names and nothing uses."""
    functions = _needed(body, libraries)
    used = {word for text in (body, *functions.values()) for word in _words(text)}
    return manifest.locals - used


def _check_args(script: str, names: Sequence[str]) -> None:
    if any(not re.fullmatch(r"[a-z]\w*", name) for name in names):
        raise BadManifest(f"{script}: argument names must be lower-case words: {names}")
    if taken := [name for name in names if _LUA_WORDS.match(name) or names.count(name) > 1]:
        raise BadManifest(f"{script}: an argument has a reserved name or is named twice: {taken}")


def _check_keys(script: str, keys: Sequence[KeyUse], args: Sequence[str]) -> None:
    """Checks that names are unique, and that each name a caller passes has one meaning."""
    names = [(use.local, use.entry) for use in keys]
    twice = {local for local, entry in names if names.count((local, entry)) > 1}
    if twice := twice | {use.local for use in keys if use.built_by_caller and use.local.lower() in args}:
        raise BadManifest(f"{script}: names twice: {sorted(twice)}")


def _blocks(script: str, source: str) -> dict[str, list[str]]:
    """Returns the lines below each heading of the leading comment; further indented ones continue a line."""
    found: dict[str, list[str]] = {name: [] for name in _BLOCKS}
    block = None
    for line in source.splitlines():
        if not line.startswith("--"):
            break
        text = line[2:]
        if text.strip() in _BLOCKS and not text.startswith("   "):
            block = text.strip()
            if found[block]:
                raise BadManifest(f"{script}: has two blocks called {block}")
        elif block and text.startswith("    ") and found[block]:
            found[block][-1] += f" {text.strip()}"
        elif block and text.startswith("   "):
            found[block].append(text.strip())
        elif block:
            raise BadManifest(f"{script}: cannot read the line {line!r}")
    return found


def _first_words(lines: Sequence[str]) -> list[str]:
    return [line.split()[0] for line in lines]


def _uses(script: str, lines: Sequence[str]) -> list[KeyUse]:
    return [use for line in lines for word in line.split() for use in _use(script, word)]


def _use(script: str, word: str) -> list[KeyUse]:
    if match := _MADE.match(word):
        return [KeyUse(match["local"].upper(), "", _TYPES[match["type"]], many=bool(match["many"]))]
    match = _KEY.match(word)
    declared = getattr(Keys, match["name"], None) if match else None
    if match is None or not isinstance(declared, Declared):
        raise BadManifest(f"{script}: {word} is no key of the data model")
    each = declared if isinstance(declared, Each) else None
    if match["entry"] and (each is None or match["entry"] not in each.entries):
        raise BadManifest(f"{script}: {word} is no entry of {match['name']}")
    if (match["of"] or match["many"]) and (each is None or each.entries):
        raise BadManifest(f"{script}: {word}: there is one {match['name']}")
    name, local = match["name"], (match["local"] or match["name"]).upper()
    if not isinstance(declared, Each):
        return [KeyUse(local, name, declared.type)]
    if declared.entries:
        wanted = (match["entry"],) if match["entry"] else declared.entries
        return [KeyUse(local, name, declared.type, entry=entry) for entry in wanted]
    of = tuple(match["of"].split(",")) if match["of"] else declared.parameters
    return [KeyUse(local, name, declared.type, of=of, many=bool(match["many"]))]


def _key_locals(manifest: ScriptManifest) -> str:
    """Generates locals for the keys, in the order in which the caller sends them."""
    lines: list[str] = []
    tables: dict[str, list[str]] = {}
    for at, use in enumerate(manifest.single, 1):
        if use.entry:
            tables.setdefault(use.local, []).append(f"{use.entry} = KEYS[{at}]")
        else:
            lines.append(f"local {use.local} = KEYS[{at}]")
    lines += [f"local {name} = {{{', '.join(entries)}}}" for name, entries in tables.items()]
    before = [str(len(manifest.single))]
    for at, use in enumerate(manifest.lists, 1):
        lines.append(_table(use.local, "KEYS", " + ".join(before), f"ARGV[{at}]"))
        before.append(f"ARGV[{at}]")
    return "\n".join(lines)


def _checked(manifest: ScriptManifest) -> tuple[list[Key], list[Key]]:
    """The single keys and the lists of keys whose types matter."""
    singles = [
        Key(f"{use.local}.{use.entry}" if use.entry else use.local, f"KEYS[{at}]", use.type)
        for at, use in enumerate(manifest.single, 1)
    ]
    lists = [Key(use.local, use.local, use.type) for use in manifest.lists]
    return singles, lists


def _arg_locals(manifest: ScriptManifest) -> str:
    """Generates locals for the arguments; the lengths of key lists precede the arguments."""
    first = len(manifest.lists) + 1
    lines = [f"local {name} = ARGV[{at}]" for at, name in enumerate(manifest.args, first)]
    if manifest.rest:
        before = len(manifest.lists) + len(manifest.args)
        lines.append(_table(manifest.rest, "ARGV", str(before), f"#ARGV - {before}"))
    return "\n".join(lines)


def _table(name: str, source: str, before: str, count: str) -> str:
    """Generates a loop, because `unpack` takes a few thousand items at most."""
    return f"local {name} = {{}}\nfor at = 1, {count} do {name}[at] = {source}[{before} + at] end"


def _locals(keys: type[Keys]) -> list[str]:
    return [name.upper() for name in dir(keys) if isinstance(getattr(keys, name), Declared)]


class _Nesting:
    """Defines shared functions inside the one that alone needs them, where that is called at one place only.

    A script pays for each function that it defines, called or not. This way it defines few of those on paths
    that it does not take. Each group is declared first, so that its functions may call each other in any
    order.
    """

    def __init__(self, functions: Mapping[str, str], body: str) -> None:
        self._functions = functions
        self._words = {name: Counter(_all_words(text)) for name, text in {**functions, _BODY: body}.items()}
        self._users = {
            name: [user for user in self._words if user != name and self._words[user][name]]
            for name in functions
        }
        self._found: dict[str, list[str]] = {}

    def source(self, inside: str = _BODY) -> str:
        """The functions that are defined in this one."""
        names = [name for name in self._functions if self._places(name)[-1] == inside]
        if not names:
            return ""
        return "\n".join([f"local {', '.join(names)}", *map(self._definition, names)])

    def _definition(self, name: str) -> str:
        text = re.sub(r"^local (function )?", r"\1", self._functions[name])
        inner = self.source(name)
        return re.sub(r"^[^)]*\)", lambda head: f"{head[0]}\n{inner}\n", text, count=1) if inner else text

    def _places(self, name: str, below: tuple[str, ...] = ()) -> list[str]:
        """The functions around a definition, from the script itself inwards: those around all its users."""
        if name not in self._found:
            around = [self._around(user, (*below, name)) for user in self._users[name]]
            levels = zip(*around, strict=False)
            common = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
            self._found[name] = common or [_BODY]
        return self._found[name]

    def _around(self, user: str, below: tuple[str, ...]) -> list[str]:
        """The functions that can hold what this user needs, itself included."""
        if user == _BODY or user in below:
            return [_BODY]
        places = self._places(user, below)
        return [*places, user] if self._may_hold(user) else places

    def _may_hold(self, user: str) -> bool:
        """Whether it is a function called at one place, none of whose parameters hides a shared name.

        What is defined inside, or inside that, may use any of those.
        """
        head = re.match(r"local function \w+\(([^)]*)\)", self._functions[user])
        if head is None or self._functions.keys() & _all_words(head[1]):
            return False
        calls = sum(words[user] for words in self._words.values()) - 1  # its definition
        return calls == 1


def _words(text: str) -> set[str]:
    """Names in Lua code, excluding comments and strings."""
    return set(_all_words(text))


def _all_words(text: str) -> list[str]:
    text = re.sub(r"--[^\n]*", "", text)
    text = re.sub(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", "''", text)
    return re.findall(r"[A-Za-z_]\w*", text)


def _needed(body: str, libraries: Sequence[Path]) -> Mapping[str, str]:
    """Returns the library definitions that the script needs, in file order."""
    defined: dict[str, str] = {}
    for path in libraries:
        defined |= _definitions(path)
    needed, open_ = set(), _words(body) & defined.keys()
    while open_:
        name = open_.pop()
        needed.add(name)
        open_ |= (_words(defined[name]) & defined.keys()) - needed
    return {name: text for name, text in defined.items() if name in needed}


@cache
def _definitions(path: Path) -> dict[str, str]:
    """Returns every top-level `local` with its lines, by name."""
    found: dict[str, str] = {}
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        start = re.match(r"local (?:function )?(\w+)", line)
        if start:
            name = start[1]
            found[name] = line
        elif name and line and not line.startswith("--"):
            found[name] += "\n" + line
    return found
