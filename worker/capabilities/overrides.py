"""Which modules are loaded, and the operator's overrides of capabilities: `config/worker.toml`.

    agents = ["agents"]

    [capability.logo-design]
    price = "0.75"

All errors in the file are reported at once, each with its line.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from worker.capabilities.declaration import nearest
from worker.capabilities.remote_options import REMOTE_OPTIONS, read_options
from worker.core.amounts import DECIMALS, atomic_units
from worker.core.settings import BadSetting, BadStart
from worker.core.values import InvalidValue, duration

_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9_.:*-]{1,100}", re.ASCII)
_NONE: Mapping[str, dict[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Override:
    """The file's settings for one capability; None means not set.

    `price` is in atomic units, times are in seconds. `profiles` are settings passed to the
    author's function by the profile's name. `swarm` opens or closes the capability to swarm
    kernels; `task_types` are those it serves there, `*` any that no other capability serves. `options`
    declare a remote agent as `@agent` declares a local one.
    """

    price: int | None = None
    time_limit: float | None = None
    max_latency: float | None = None
    remote: bool = False
    swarm: bool | None = None
    task_types: tuple[str, ...] = ()
    profiles: Mapping[str, dict[str, Any]] = field(default_factory=lambda: _NONE)
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def load_overrides(path: str | os.PathLike[str]) -> dict[str, Override]:
    """Loads the overrides by capability name. A missing file overrides nothing."""
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as broken:
        raise BadStart([BadSetting(name, "a file that cannot be read", "TOML in UTF-8")]) from broken
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise BadStart([BadSetting(_place(name, _syntax_line(broken)), "not TOML", "TOML")]) from broken
    lines = _LineNumbers(text)
    problems: list[BadSetting] = []
    overrides: dict[str, Override] = {}

    def wrong(where: tuple[str, ...], found: Any, expected: str) -> None:
        shown = found if isinstance(found, str) else repr(found)
        short = shown if len(shown) <= 60 else shown[:57] + "..."
        problems.append(BadSetting(_place(name, lines.of(where)) + " " + ".".join(where), short, expected))

    if not _is_modules(document.get("agents", [])):
        wrong(("agents",), document["agents"], 'a list of modules, such as ["agents"]')
    for key in document:
        if key not in ("agents", "capability"):
            wrong((key,), "an unknown name", "agents, and tables [capability.NAME]")
    capabilities = document.get("capability", {})
    if not isinstance(capabilities, dict):
        wrong(("capability",), capabilities, "tables [capability.NAME]")
        capabilities = {}
    for capability, table in capabilities.items():
        where = ("capability", capability)
        if not _NAME.fullmatch(capability):
            wrong(where, capability, "a name of a-z, 0-9 and -, beginning with a letter")
        elif not isinstance(table, dict):
            wrong(where, table, "a table")
        else:
            report = partial(_report, wrong, where)
            overrides[capability] = _override(table, Path(name).parent, report)
    for task_type, capability in _served_twice(overrides):
        wrong(
            ("capability", capability, "task_types"), task_type, "a task type that no other capability serves"
        )
    if problems:
        raise BadStart(problems)
    return overrides


def configured_modules(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Returns the modules listed in the file; none if it is missing or has mistakes."""
    try:
        agents = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("agents", [])
    except (OSError, ValueError):
        return ()
    return tuple(agents) if _is_modules(agents) else ()


def _is_modules(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(name, str) and all(part.isidentifier() for part in name.split(".")) for name in value
    )


def _report(
    wrong: Callable[[tuple[str, ...], Any, str], None],
    where: tuple[str, ...],
    key: str,
    found: Any,
    expected: str,
) -> None:
    wrong((*where, *key.split(".")), found, expected)


def _override(table: Mapping[str, Any], folder: Path, wrong: Callable[[str, Any, str], None]) -> Override:
    read: dict[str, Any] = {}
    for key, value in table.items():
        if key in REMOTE_OPTIONS:
            if table.get("remote") is not True:
                wrong(key, value, "remote = true in the same table: code declares it for a local agent")
            continue
        reader = READERS.get(key)
        if reader is None:
            wrong(key, "an unknown name", nearest(key, (*READERS, *REMOTE_OPTIONS)))
            continue
        try:
            read[key] = reader(value)
        except InvalidValue as unfit:
            wrong(key, value, unfit.expected)
    if read.get("task_types") and read.get("swarm") is not True:
        wrong("task_types", list(read["task_types"]), "swarm = true in the same table")
    if read.get("remote") and "price" not in table:
        wrong("remote", True, "a price in the same table: the code does not declare one")
    options, faults = read_options(table, folder)
    for fault in faults:
        wrong(*fault)
    return Override(**read, options=options)


def _price(value: Any) -> int:
    expected = f'a price in dollars as text, such as "0.50", with at most {DECIMALS} decimals'
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,9}(\.\d+)?", value, re.ASCII):
        raise InvalidValue(expected)
    try:
        return atomic_units(value)
    except ValueError as broken:
        raise InvalidValue(expected) from broken


def _time(value: Any) -> float:
    read = duration(0.1, 7 * 86_400)
    return read(value) if isinstance(value, str) else read(str(value) if type(value) is int else "")


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("true or false")
    return value


def _task_types(value: Any) -> tuple[str, ...]:
    expected = 'a list of task types, such as ["swarm"]'
    if not isinstance(value, list) or len(set(map(str, value))) < len(value):
        raise InvalidValue(expected)
    if not all(isinstance(each, str) and _WORD.fullmatch(each) for each in value):
        raise InvalidValue(expected)
    return tuple(value)


def _profiles(value: Any) -> Mapping[str, dict[str, Any]]:
    expected = "tables [capability.NAME.profiles.PROFILE] of plain values"
    if not isinstance(value, dict):
        raise InvalidValue(expected)
    for profile, content in value.items():
        if not _WORD.fullmatch(profile) or not isinstance(content, dict) or not _is_json(content):
            raise InvalidValue(expected)
    return MappingProxyType(value)


def _is_json(value: Any) -> bool:
    """Whether JSON can carry the value: TOML's dates and infinities cannot travel with an execution."""
    if isinstance(value, dict):
        return all(_is_json(each) for each in value.values())
    if isinstance(value, list):
        return all(_is_json(each) for each in value)
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    return isinstance(value, (str, bool, int))


READERS: dict[str, Callable[[Any], Any]] = {
    "price": _price,
    "time_limit": _time,
    "max_latency": _time,
    "remote": _switch,
    "swarm": _switch,
    "task_types": _task_types,
    "profiles": _profiles,
}


def _served_twice(overrides: Mapping[str, Override]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for capability, override in overrides.items():
        for task_type in override.task_types:
            if task_type in seen:
                yield task_type, capability
            seen.add(task_type)


def _place(name: str, line: int | None) -> str:
    return f"{name}:{line}" if line else name


def _syntax_line(error: tomllib.TOMLDecodeError) -> int | None:
    match = re.search(r"at line (\d+)", str(error))
    return int(match[1]) if match else None


class _LineNumbers:
    """Lines of tables and keys. The parser keeps none, so each header and key is parsed alone."""

    def __init__(self, text: str) -> None:
        self._at: dict[tuple[str, ...], int] = {}
        table: tuple[str, ...] = ()
        for number, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith("["):
                header = _path(line)
                if header:
                    table = header
                    self._note(table, number)
            elif "=" in line:
                self._note((*table, *_path(line.split("=", 1)[0] + "= 0")), number)

    def of(self, where: tuple[str, ...]) -> int | None:
        """Returns the line of this name, or of its nearest parent."""
        for end in range(len(where), 0, -1):
            if where[:end] in self._at:
                return self._at[where[:end]]
        return None

    def _note(self, path: tuple[str, ...], number: int) -> None:
        for end in range(1, len(path) + 1):
            self._at.setdefault(path[:end], number)


def _path(line: str) -> tuple[str, ...]:
    try:
        inner: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    path = []
    while isinstance(inner, dict) and inner:
        key, inner = next(iter(inner.items()))
        path.append(key)
    return tuple(path)
