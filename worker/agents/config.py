"""What an operator changes about capabilities without touching their code: `config/worker.toml`.

    [capability.logo-design]
    price = "0.75"

Every mistake in the file is reported at once, each with its line.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import MappingProxyType
from typing import Any

from worker.settings import BadSetting, BadStart
from worker.values import Unfit, duration

DECIMALS = 6
_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9_.:*-]{1,100}", re.ASCII)
_NONE: Mapping[str, dict[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Override:
    """What the file says about one capability; None means it says nothing.

    `price` is in atomic units, times are seconds. `profiles` are settings that reach the
    author's function by the profile's name. `swarm` opens or closes the capability to swarm
    kernels; `task_types` are those it serves there, `*` whatever nobody else serves.
    """

    price: int | None = None
    time_limit: float | None = None
    max_latency: float | None = None
    remote: bool = False
    swarm: bool | None = None
    task_types: tuple[str, ...] = ()
    profiles: Mapping[str, dict[str, Any]] = field(default_factory=lambda: _NONE)


def load_overrides(path: str | os.PathLike[str]) -> dict[str, Override]:
    """The overrides by capability name. A file that is not there overrides nothing."""
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
    lines = _Lines(text)
    problems: list[BadSetting] = []
    overrides: dict[str, Override] = {}

    def wrong(where: tuple[str, ...], found: Any, expected: str) -> None:
        shown = found if isinstance(found, str) else repr(found)
        short = shown if len(shown) <= 60 else shown[:57] + "..."
        problems.append(BadSetting(_place(name, lines.of(where)) + " " + ".".join(where), short, expected))

    for key in document:
        if key != "capability":
            wrong((key,), "an unknown name", "tables [capability.NAME]")
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
            overrides[capability] = _override(table, lambda key, *rest, at=where: wrong((*at, key), *rest))
    for task_type, capability in _served_twice(overrides):
        wrong(("capability", capability, "task_types"), task_type, "a task type that nobody else serves")
    if problems:
        raise BadStart(problems)
    return overrides


def _override(table: Mapping[str, Any], wrong: Callable[[str, Any, str], None]) -> Override:
    read: dict[str, Any] = {}
    for key, value in table.items():
        reader = _READERS.get(key)
        if reader is None:
            wrong(key, "an unknown name", "one of " + ", ".join(_READERS))
            continue
        try:
            read[key] = reader(value)
        except Unfit as unfit:
            wrong(key, value, unfit.expected)
    if read.get("task_types") and read.get("swarm") is not True:
        wrong("task_types", list(read["task_types"]), "swarm = true beside it")
    if read.get("remote") and "price" not in table:
        wrong("remote", True, "a price beside it: no code here declares one")
    return Override(**read)


def _price(value: Any) -> int:
    expected = f'a price in dollars as text, such as "0.50", with at most {DECIMALS} decimals'
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,9}(\.\d+)?", value, re.ASCII):
        raise Unfit(expected)
    try:
        atomic = Decimal(value).scaleb(DECIMALS)
    except InvalidOperation as broken:
        raise Unfit(expected) from broken
    if atomic != atomic.to_integral_value():
        raise Unfit(expected)
    return int(atomic)


def _time(value: Any) -> float:
    read = duration(0.1, 7 * 86_400)
    return read(value) if isinstance(value, str) else read(str(value) if type(value) is int else "")


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unfit("true or false")
    return value


def _task_types(value: Any) -> tuple[str, ...]:
    expected = 'a list of task types, such as ["swarm"]'
    if not isinstance(value, list) or len(set(map(str, value))) < len(value):
        raise Unfit(expected)
    if not all(isinstance(each, str) and _WORD.fullmatch(each) for each in value):
        raise Unfit(expected)
    return tuple(value)


def _profiles(value: Any) -> Mapping[str, dict[str, Any]]:
    expected = "tables [capability.NAME.profiles.PROFILE] of plain values"
    if not isinstance(value, dict):
        raise Unfit(expected)
    for profile, content in value.items():
        if not _WORD.fullmatch(profile) or not isinstance(content, dict) or not _is_json(content):
            raise Unfit(expected)
    return MappingProxyType(value)


def _is_json(value: Any) -> bool:
    """TOML also has dates and infinities, which could not travel with an execution."""
    if isinstance(value, dict):
        return all(_is_json(each) for each in value.values())
    if isinstance(value, list):
        return all(_is_json(each) for each in value)
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    return isinstance(value, (str, bool, int))


_READERS: dict[str, Callable[[Any], Any]] = {
    "price": _price,
    "time_limit": _time,
    "max_latency": _time,
    "remote": _switch,
    "swarm": _switch,
    "task_types": _task_types,
    "profiles": _profiles,
}
assert set(_READERS) == {each.name for each in fields(Override)}


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


class _Lines:
    """Where tables and keys stand. The parser keeps no lines, so each header and key is parsed alone."""

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
        """The line of this name, or of the nearest thing around it."""
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
