"""Runs Lua scripts by name with named keys and arguments, as declared in each script's manifest.

`scripts.run(TAKE, id=id, lease=lease_us, ...)` returns a member of the script's enum and the values after
it; `scripts.value("time")` is for scripts that return a plain value. Scripts are sent by hash, or in full
when the store does not have them.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

import redis
from redis.exceptions import NoScriptError

from worker.store.commands import OneConnection, Word, ask, begin, checked, hear, replies_together
from worker.store.data_model import Keys
from worker.store.link import Begun
from worker.store.manifests import BadManifest, KeyUse, ScriptManifest, assemble, read_manifest

# Scripts that every room may call; a room's own folder comes first.
LUA = Path(__file__).parent / "lua"

Arg = str | bytes | int | float
Value = Arg | Sequence[Arg]
A = TypeVar("A", bound=StrEnum)

# A script formats few numbers, one of them, its time, again and again.
_PRELUDE = """\
local last_number, last_text
local function whole(n)
  if n ~= last_number then last_number, last_text = n, string.format('%.0f', n) end
  return last_text
end
"""
_CLOCK = """\
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end"""
# Only WORKER_ENV=test may shift time: every script adds this offset in microseconds.
_TEST_CLOCK = """\
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2] + tonumber(redis.call('GET', '%s') or 0)
end"""


@dataclass(frozen=True)
class Script(Generic[A]):
    """A script's name and the enum of its answers."""

    name: str
    answers: type[A]


@dataclass(frozen=True, slots=True)
class Reply(Generic[A]):
    """A script's answer and the values that came with it."""

    answer: A
    values: list[Any]

    def text(self, at: int = 0) -> str:
        """Returns a value as text; '' if there is none."""
        return _text(self.values[at]) if at < len(self.values) else ""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A script call ready to be sent, alone or in a batch."""

    source: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[Arg, ...]

    @property
    def words(self) -> tuple[Word, ...]:
        """The command that runs it, if the store has it."""
        return "EVALSHA", self.sha, len(self.keys), *self.keys, *self.args


@dataclass(frozen=True, slots=True)
class _Loaded:
    source: str
    sha: str
    binding: Binding


class Scripts:
    """The scripts of one room's folder and of LUA, with the shared functions of the library files."""

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        folder: Path,
        *,
        libraries: Sequence[Path] = (),
        test_clock: bool = False,
    ) -> None:
        self._client = client
        self._asked: redis.Redis | OneConnection = client
        self._keys = keys
        self._folder = folder
        self._libraries = tuple(libraries)
        self._prelude = _PRELUDE + (_TEST_CLOCK % keys.test_clock if test_clock else _CLOCK)
        self._loaded: dict[str, _Loaded] = {}

    def prepare(self, *scripts: str) -> None:
        """Assembles scripts for processes that are forked later; each takes milliseconds."""
        for name in scripts:
            self._load(name)

    def run(self, script: Script[A], /, **values: Value) -> Reply[A]:
        """Runs a script and parses its answer."""
        return read_reply(script, self.value(script.name, **values))

    def value(self, script: str, /, **values: Value) -> Any:
        """Runs a script; returns its reply unchanged."""
        return self.send(self.call(script, **values))

    def send(self, call: ScriptCall) -> Any:
        """Runs one call; returns the script's reply unchanged."""
        try:
            return ask(self._asked, *call.words)
        except NoScriptError:
            return ask(self._asked, "EVAL", call.source, len(call.keys), *call.keys, *call.args)

    def begin(self, call: ScriptCall) -> Begun:
        """Sends one call and does not wait for its reply."""
        sent = begin(self._client, *call.words)

        def reply() -> Any:
            try:
                return sent.reply()
            except NoScriptError:
                return self.send(call)

        return Begun(reply, sent.refused)

    def hear(self) -> None:
        """Reads what has come of calls that were begun, without waiting."""
        hear(self._client)

    def send_together(self, *parts: ScriptCall | tuple[Word, ...]) -> list[Any]:
        """Runs calls and commands in one round trip, in this order; returns all replies.

        Scripts that the store does not have yet run after all others.
        """
        return checked(self.send_each(*parts))

    def send_each(self, *parts: ScriptCall | tuple[Word, ...]) -> list[Any]:
        """The same, but each reply may be an error."""
        words = [part.words if isinstance(part, ScriptCall) else part for part in parts]
        replies = replies_together(self._client, *words)
        for at, part in enumerate(parts):
            if isinstance(part, ScriptCall) and isinstance(replies[at], NoScriptError):
                replies[at] = self.send(part)
        return replies

    def call(self, script: str, /, **values: Value) -> ScriptCall:
        loaded = self._loaded.get(script) or self._load(script)
        return ScriptCall(loaded.source, loaded.sha, *loaded.binding(values))

    def on(self, connection: OneConnection) -> Scripts:
        """Returns the same scripts on this connection."""
        other = copy.copy(self)
        other._asked = connection
        return other

    def batch(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Runs several scripts in one round trip, in order; each must be safe to run twice."""
        replies = replies_together(self._client, *(call.words for call in calls))
        unknown = next((at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)), None)
        if unknown is not None:
            again = [self._client.eval(c.source, len(c.keys), *c.keys, *c.args) for c in calls[unknown:]]
            return [*replies[:unknown], *again]
        return checked(replies)

    def _path(self, name: str) -> Path:
        own = self._folder / f"{name}.lua"
        return own if own.exists() else LUA / own.name

    def _load(self, name: str) -> _Loaded:
        manifest, source, sha = _assembled(self._path(name), self._libraries, self._prelude)
        self._loaded[name] = _Loaded(source, sha, Binding(manifest, self._keys))
        return self._loaded[name]


def read_reply(script: Script[A], raw: Any) -> Reply[A]:
    """Parses a reply: the answer alone, or a list that begins with it."""
    first, *values = raw if isinstance(raw, list) else [raw]
    return Reply(script.answers(_text(first)), values)


class Binding:
    """Builds the keys and arguments of one script; what does not vary is looked up once."""

    def __init__(self, manifest: ScriptManifest, keys: Keys) -> None:
        self._script = manifest.script
        self._parameters = frozenset(manifest.parameters)
        names = [_name(use, keys) for use in manifest.single]
        self._names = [name if isinstance(name, str) else "" for name in names]
        self._built = [(at, name) for at, name in enumerate(names) if not isinstance(name, str)]
        self._lists = [_list(use, keys) for use in manifest.lists]
        self._args, self._rest = _getter(manifest.args), manifest.rest

    def __call__(self, values: Mapping[str, Value]) -> tuple[tuple[str, ...], tuple[Arg, ...]]:
        """A caller passes exactly what the manifest names."""
        if values.keys() != self._parameters:
            wrong = sorted(values.keys() ^ self._parameters)
            raise BadManifest(f"{self._script}: arguments that are missing or not in the manifest: {wrong}")
        names = self._names.copy()
        for at, build in self._built:
            names[at] = build(values)
        args: Any = self._args(values)
        if self._lists:
            lists = [each(values) for each in self._lists]
            names.extend(name for found in lists for name in found)
            args = (*map(len, lists), *args)
        return tuple(names), (*args, *values[self._rest]) if self._rest else args  # type: ignore[misc]


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """What takes these values from a mapping."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: tuple(values[name] for name in names)


def _name(use: KeyUse, keys: Keys) -> str | Callable[[Mapping[str, Any]], str]:
    """A key's name, or what builds it from the values that a caller passes."""
    if use.built_by_caller:
        return itemgetter(use.local.lower())
    key, of = getattr(keys, use.name), use.of
    if use.entry:
        return str(key(use.entry))
    if len(of) == 1:
        [name] = of
        return lambda values: key(values[name])
    return (lambda values: key(*(values[name] for name in of))) if of else str(key)


def _list(use: KeyUse, keys: Keys) -> Callable[[Mapping[str, Any]], list[str]]:
    if use.built_by_caller:
        local = use.local.lower()
        return lambda values: [str(part) for part in values[local]]
    key, name = getattr(keys, use.name), use.of[0]
    return lambda values: [key(part) for part in values[name]]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@cache
def _assembled(path: Path, libraries: tuple[Path, ...], prelude: str) -> tuple[ScriptManifest, str, str]:
    """What a script's file declares, its source with what it uses of the libraries, and the hash of that."""
    body = path.read_text(encoding="utf-8")
    manifest = read_manifest(path.stem, body)
    source = assemble(manifest, body, libraries, prelude)
    return manifest, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
