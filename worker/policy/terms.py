"""Terms of tool-policy conditions: globs, argument predicates, schedules, durations.

Each term is parsed once, when the policy is loaded; bad ones raise a `ValueError` with our own message.
Matching cannot fail and takes time linear in its input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import re2

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _CharacterClass:
    """A bracket expression: code-point ranges, both ends included."""

    negated: bool
    ranges: tuple[tuple[str, str], ...]

    def holds(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.negated


# A token is a literal character, a class, or None for `?`. A part follows a `*` (or the start).
_Token = str | _CharacterClass | None
_Part = tuple[bool, tuple[_Token, ...]]


@dataclass(frozen=True, slots=True)
class Glob:
    """A pattern with the semantics of Go's `path.Match`; a malformed one means plain equality."""

    text: str
    parts: tuple[_Part, ...] | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        try:
            parts = _parse_glob(self.text)
        except ValueError:
            parts = None
        object.__setattr__(self, "parts", parts)

    def matches(self, name: str) -> bool:
        """Whether the whole name matches. `*` and `?` never match a slash; a class may."""
        if self.parts is None:
            return name == self.text
        at = 0
        for index, (star, tokens) in enumerate(self.parts):
            last = index == len(self.parts) - 1
            if star and not tokens:
                return "/" not in name[at:]
            start = at
            while True:
                end = _take(tokens, name, start)
                if end is not None and (not last or end == len(name)):
                    at = end
                    break
                if not star or start >= len(name) or name[start] == "/":
                    return False
                start += 1
        return at == len(name)


def _take(tokens: tuple[_Token, ...], name: str, at: int) -> int | None:
    """Returns the position after the tokens if they match at `at`."""
    if at + len(tokens) > len(name):
        return None
    for char, token in zip(name[at : at + len(tokens)], tokens, strict=True):
        if token is None:
            fits = char != "/"
        elif isinstance(token, _CharacterClass):
            fits = token.holds(char)
        else:
            fits = char == token
        if not fits:
            return None
    return at + len(tokens)


def _parse_glob(text: str) -> tuple[_Part, ...]:
    parts: list[_Part] = []
    star = False
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "*":
            if tokens:
                parts.append((star, tuple(tokens)))
                tokens = []
            star, at = True, at + 1
        elif char == "[":
            bracket, at = _parse_class(text, at + 1)
            tokens.append(bracket)
        elif char == "\\":
            tokens.append(_char_at(text, at + 1))
            at += 2
        else:
            tokens.append(None if char == "?" else char)
            at += 1
    if star or tokens:
        parts.append((star, tuple(tokens)))
    return tuple(parts)


def _parse_class(text: str, at: int) -> tuple[_CharacterClass, int]:
    negated = text[at : at + 1] == "^"
    at += negated
    ranges: list[tuple[str, str]] = []
    while not (ranges and text[at : at + 1] == "]"):
        low, at = _class_end(text, at)
        high = low
        if text[at : at + 1] == "-":
            high, at = _class_end(text, at + 1)
        ranges.append((low, high))
    return _CharacterClass(negated, tuple(ranges)), at + 1


def _class_end(text: str, at: int) -> tuple[str, int]:
    """Parses one end of a range; a bare `-` or `]` cannot be one."""
    if text[at : at + 1] in ("-", "]"):
        raise ValueError("a range has no end")
    if text[at : at + 1] == "\\":
        at += 1
    return _char_at(text, at), at + 1


def _char_at(text: str, at: int) -> str:
    if at >= len(text):
        raise ValueError("the pattern ends too early")
    return text[at]


def compile_pattern(text: str) -> Any:
    """Compiles an RE2 expression: no look-arounds, no back-references, always linear time."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except (re2.error, UnicodeEncodeError):
        raise ValueError("pattern is not a valid RE2 expression") from None


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on one top-level argument of a tool call."""

    argument: str
    pattern: str = ""
    one_of: tuple[str, ...] = ()
    min: float | None = None
    max: float | None = None
    max_length: int | None = None
    required: bool = False
    compiled: Any = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiled", compile_pattern(self.pattern) if self.pattern else None)

    def why_not(self, arguments: Mapping[str, Any]) -> str | None:
        """Returns None if it holds, else what failed. Never repeats the value: it may be a secret."""
        if self.argument not in arguments:
            return f"argument {self.argument} is missing" if self.required else None
        value = arguments[self.argument]
        text = value if isinstance(value, str) else None
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        if self.required and text == "":
            return f"argument {self.argument} is empty"
        if self.compiled and (text is None or not self.compiled.search(_utf8(text))):
            return f"argument {self.argument} does not match the pattern {self.pattern}"
        if self.one_of and text not in self.one_of:
            return f"argument {self.argument} is not one of {', '.join(self.one_of)}"
        if self.min is not None and not (number is not None and number >= self.min):
            return f"argument {self.argument} is not a number of at least {self.min}"
        if self.max is not None and not (number is not None and number <= self.max):
            return f"argument {self.argument} is not a number of at most {self.max}"
        if self.max_length is not None and not (text is not None and len(text) <= self.max_length):
            return f"argument {self.argument} is not a text of at most {self.max_length} characters"
        return None


def _utf8(text: str) -> bytes:
    """Encodes text; half a surrogate pair, valid in JSON but not in UTF-8, becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text).encode()


DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CLOCK = re.compile(r"(\d{1,2}):(\d{1,2})-(\d{1,2}):(\d{1,2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Hours on chosen weekdays in a time zone: start included, end excluded, past midnight if start > end."""

    text: str
    days: frozenset[int]
    start: int
    end: int
    zone: tzinfo

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Parses `Mon-Fri 09:00-17:00 Europe/London`."""
        parts = text.split()
        if len(parts) != 3:
            raise ValueError("schedule must be three words: days, hours, time zone")
        clock = _CLOCK.fullmatch(parts[1])
        if clock is None:
            raise ValueError("the hours of a schedule must be in the form 09:00-17:00")
        from_hour, from_minute, to_hour, to_minute = (int(group) for group in clock.groups())
        if max(from_hour, to_hour) > 23 or max(from_minute, to_minute) > 59:
            raise ValueError("the hours of a schedule must be between 00:00 and 23:59")
        start, end = from_hour * 60 + from_minute, to_hour * 60 + to_minute
        if start == end:
            raise ValueError("a schedule must not start and end at the same time")
        return cls(text, _days(parts[0]), start, end, _zone(parts[2]))

    def covers(self, now_us: int) -> bool:
        """Whether the schedule covers the moment. The weekday is the moment's own, also after midnight."""
        there = (EPOCH + timedelta(microseconds=now_us)).astimezone(self.zone)
        minute = there.hour * 60 + there.minute
        if there.weekday() not in self.days:
            return False
        if self.start > self.end:
            return minute >= self.start or minute < self.end
        return self.start <= minute < self.end


def _days(text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        names = part.split("-")
        if len(names) > 2 or any(name not in DAYS for name in names):
            raise ValueError("the days of a schedule must be in a form such as Mon-Fri or Mon,Wed")
        first, last = DAYS.index(names[0]), DAYS.index(names[-1])
        days.update((first + step) % 7 for step in range((last - first) % 7 + 1))
    return frozenset(days)


def _zone(name: str) -> tzinfo:
    if name == "UTC":  # known even without an installed zone database
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("the time zone of a schedule is unknown; use an IANA name") from None


_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_LENGTH = re.compile(r"(\d{1,19}\.?\d{0,19}|\.\d{1,19})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def duration_us(text: str) -> int:
    """Parses a positive Go duration (`90s`, `1h30m`, `1.5h`) into microseconds."""
    total, at = Decimal(0), 0
    while found := _LENGTH.match(text, at):
        total += Decimal(found[1]) * _UNITS_NS[found[2]]
        at = found.end()
    if at != len(text) or not 1_000 <= total < 2**63:
        raise ValueError("a duration must be positive, in a form such as 30s, 1m or 1h30m")
    return int(total) // 1_000
