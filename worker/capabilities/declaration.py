"""The options of `@agent(...)` and `@tool(...)`: one rule per option.

A declaration that breaks a rule is recorded with its module and line, so that startup can report all
of them at once; see `declare.load`.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.core.amounts import to_atomic
from worker.core.errors import Problem
from worker.core.settings import BadSetting
from worker.core.values import InvalidValue

LONGEST_SECONDS = 7 * 86_400
MOST_ATTEMPTS = 100
_FOUND = 60
# Names that need no escaping in a URL.
_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9._~:@-]{1,100}", re.ASCII)
_TOOL_NAME = re.compile(r"[!-~]{1,100}", re.ASCII)
# Names that HIRE accepts; sold capabilities appear in the manifest.
_SOLD_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}", re.ASCII)
_ICON = re.compile(r"https?://[!-~]{1,2040}", re.ASCII)
_FILE_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}", re.ASCII)
_EXAMPLE_FILES, _EXAMPLE_CHARS = 8, 65_536
_TASK_TYPE = re.compile(r"[A-Za-z0-9_.:*-]{1,100}", re.ASCII)

# The field, the value found, what was expected.
Fault = tuple[str, Any, str]


@dataclass(frozen=True, slots=True)
class Place:
    """The source location of a declaration."""

    module: str
    line: int

    @classmethod
    def of_caller(cls, depth: int) -> Place:
        """Returns the line that called the function `depth` frames above this one."""
        frame = sys._getframe(depth + 1)
        return cls(str(frame.f_globals.get("__name__", "?")), frame.f_lineno)

    def problem(self, name: Any, fault: Fault) -> BadSetting:
        field, found, expected = fault
        where = f"{self.module}:{self.line} {_short(name)}" + (f".{field}" if field else "")
        return BadSetting(where, _short(found), expected)


def agent_faults(name: Any, options: Mapping[str, Any]) -> Iterator[Fault]:
    """Yields every error in the options of an agent."""
    yield from _name_faults(name, "agent")
    for option, value in options.items():
        rule = _RULES.get(option)
        if rule is None:
            yield option, "an unknown option", nearest(option, _RULES)
            continue
        try:
            rule(value)
        except InvalidValue as unfit:
            yield option, value, unfit.expected
    yield from _price_faults(options)
    if _is_sold(options) and isinstance(name, str) and not _SOLD_NAME.fullmatch(name):
        yield "", name, "a name of a-z, 0-9 and -, beginning with a letter, because it has a price"


def schema_faults(options: Mapping[str, Any]) -> Iterator[Fault]:
    """Yields schemas that do not compile and examples that do not fit theirs. Compiling is slow."""
    from worker.schemas.validators import SchemaRefused, compile_schema, validate

    for side in ("input", "output"):
        schema, example = options.get(f"{side}_schema"), options.get(f"example_{side}")
        if not isinstance(schema, Mapping):
            continue
        try:
            validator = compile_schema(dict(schema), field=f"{side}_schema")
            problems = [] if example is None else validate(validator, example)
        except SchemaRefused as refused:
            where = refused.details.get("field", f"{side}_schema")
            yield str(where), refused.message, "a self-contained JSON Schema"
            continue
        for problem in problems[:1]:
            field, found, expected = problem["field"], problem["received"], problem["expected"]
            yield f"example_{side}", f"{field}: {_short(found)}", f"{expected}, as {side}_schema says"


def tool_faults(name: Any, options: Mapping[str, Any]) -> Iterator[Fault]:
    """Yields every error in the options of a tool."""
    yield from _name_faults(name, "tool")
    for option, value in options.items():
        if option != "attempts":
            yield option, "an unknown option", nearest(option, ("attempts",))
            continue
        try:
            _whole(1, MOST_ATTEMPTS)(value)
        except InvalidValue as unfit:
            yield option, value, unfit.expected


def _name_faults(name: Any, kind: str) -> Iterator[Fault]:
    if callable(name):
        yield "", f"@{kind} without parentheses", f'a name in parentheses: @{kind}("...")'
    elif not isinstance(name, str):
        yield "", name, f'a name as text: @{kind}("...")'
    elif kind == "agent" and not _NAME.fullmatch(name):
        yield "", name, "a name of 1 to 100 letters, digits and . _ ~ : @ -, which a URL can carry"
    elif not _TOOL_NAME.fullmatch(name):
        yield "", name, "a name of 1 to 100 letters, digits and signs, without spaces"


def nearest(option: str, known: Collection[str]) -> str:
    """The closest known option; all options if none is close."""
    near = difflib.get_close_matches(option, known, 1)
    return f"{near[0]}, perhaps" if near else "one of " + ", ".join(known)


def _price_faults(options: Mapping[str, Any]) -> Iterator[Fault]:
    if callable(options.get("price")) != ("max_price" in options):
        expected = 'a price by input and its maximum, such as price=lambda input: ..., max_price="2.00"'
        yield "max_price", options.get("max_price"), expected


def _is_sold(options: Mapping[str, Any]) -> bool:
    if callable(options.get("price")):
        return True
    try:
        return to_atomic(options.get("price", "0")) > 0
    except Problem:
        return False


def _price_or_function(value: Any) -> None:
    if not callable(value):
        _price(value)


def _price(value: Any) -> None:
    try:
        to_atomic(value)
    except Problem:
        raise InvalidValue('a price in dollars as text, such as "0.50", with at most six decimals') from None


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidValue("text")


def _title(value: Any) -> None:
    if not isinstance(value, str) or len(value) > 100 or not (value == "" or value.isprintable()):
        raise InvalidValue("a line of at most 100 characters")


def _icon(value: Any) -> None:
    if value != "" and not (isinstance(value, str) and _ICON.fullmatch(value)):
        raise InvalidValue("the http(s) address of an image, at most 2048 characters")


def _flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidValue("True or False")


def _whole(low: int, high: int) -> Callable[[Any], None]:
    def rule(value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidValue(f"a whole number from {low} to {high}")

    return rule


def _seconds(value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 < value <= LONGEST_SECONDS:
        raise InvalidValue(f"seconds as a number above 0, at most {LONGEST_SECONDS}")


def _settle(value: Any) -> None:
    if value not in ("", "after_work", "before_work"):
        raise InvalidValue('"after_work" or "before_work"')


def _json(value: Any) -> None:
    """Requires a JSON value, because published options travel as JSON."""
    try:
        json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise InvalidValue("a value that JSON can carry") from None


def _schema(value: Any) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidValue("a JSON Schema as a dictionary, or None")
    _json(None if value is None else dict(value))


def _function(value: Any) -> None:
    if value is not None and not callable(value):
        raise InvalidValue("a function that takes the input and raises InvalidInput")


def _texts(pattern: re.Pattern[str], expected: str) -> Callable[[Any], None]:
    def rule(value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise InvalidValue(expected)
        if not all(isinstance(each, str) and pattern.fullmatch(each) for each in value):
            raise InvalidValue(expected)

    return rule


def _example_files(value: Any) -> None:
    expected = (
        f"text by file names of letters, digits and . _ -: at most {_EXAMPLE_FILES} files and "
        f"{_EXAMPLE_CHARS} characters"
    )
    if not isinstance(value, Mapping) or len(value) > _EXAMPLE_FILES:
        raise InvalidValue(expected)
    if not all(isinstance(name, str) and _FILE_NAME.fullmatch(name) for name in value):
        raise InvalidValue(expected)
    texts = list(value.values())
    if not all(isinstance(text, str) for text in texts) or sum(map(len, texts)) > _EXAMPLE_CHARS:
        raise InvalidValue(expected)


def _profiles(value: Any) -> None:
    expected = "dictionaries of plain values by the names of profiles"
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidValue(expected)
    if not all(isinstance(each, Mapping) for each in value.values()):
        raise InvalidValue(expected)
    _json({name: dict(each) for name, each in value.items()})


def _settings(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise InvalidValue("a dictionary")


_RULES: dict[str, Callable[[Any], None]] = {
    "description": _text,
    "price": _price_or_function,
    "max_price": _price,
    "input_schema": _schema,
    "output_schema": _schema,
    "example_input": _json,
    "example_output": _json,
    "example_files": _example_files,
    "check": _function,
    "inline": _flag,
    "stream": _flag,
    "time_limit": _seconds,
    "max_latency_ms": lambda value: None if value is None else _whole(1, LONGEST_SECONDS * 1000)(value),
    "attempts": _whole(1, MOST_ATTEMPTS),
    "settle": _settle,
    "model": _text,
    "profiles": _profiles,
    "settings": _settings,
    "swarm": _flag,
    "task_types": _texts(_TASK_TYPE, 'task types in a list, such as ["swarm"]'),
    "remote": _flag,
    "version": _text,
    "resumes": _flag,
    "title": _title,
    "icon": _icon,
    "tags": _texts(re.compile(r"[^\x00-\x1f]{1,100}"), "short texts in a list"),
}


def _short(value: Any) -> str:
    shown = value if isinstance(value, str) and value.isprintable() else repr(value)
    return shown if len(shown) <= _FOUND else shown[: _FOUND - 3] + "..."
