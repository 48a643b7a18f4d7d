"""Results of the checks of `worker doctor`, and what they mean for a release."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

# wrong: something must be changed. unreachable: no answer now; it may answer in a minute.
# unknown: cannot be determined, because a hosted store hides it.
Level = Literal["ok", "warn", "unknown", "unreachable", "wrong"]

FIT, WRONG, REFUSED, UNREACHABLE, UNKNOWN = 0, 1, 2, 3, 4


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    name: str
    level: Level
    found: str
    expected: str


def exit_code(results: Iterable[CheckResult], *, unreachable: bool = False, unknown: bool = False) -> int:
    """The worst result; `unreachable` and `unknown` say which of these a release tolerates."""
    levels = {each.level for each in results}
    if "wrong" in levels:
        return WRONG
    if "unreachable" in levels and not unreachable:
        return UNREACHABLE
    if "unknown" in levels and not unknown:
        return UNKNOWN
    return FIT


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: libraries chain the reason, or pass it as an argument."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        each = waiting.pop(0)
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__, getattr(each, "reason", None), *each.args]
