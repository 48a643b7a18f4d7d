"""Describes for the author why an attempt failed: the exception, and the line of the author's code.

Only author and operator see causes. They go to the log and, without third-party error texts, to a field of
the execution that no door shows. The seeker's error message is built elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from worker.capabilities.modules import is_authors
from worker.core.errors import Failed, Problem, ToolDenied, ToolMissing, Transient, WaitExpired
from worker.core.json import NotJson, encode, short

_MOST_REASON = 500
_MOST_CAUSES = 3


class OutputUnfit(ValueError):
    """Describes where an output violates its schema: fields and what they should be, without values."""


# Errors whose text is ours, or was written for the seeker and is in the record anyway. All other texts may
# contain secrets and go to the log only.
_STORED = (Failed, Problem, Transient, WaitExpired, ToolDenied, ToolMissing, NotJson, OutputUnfit)


@dataclass(frozen=True, slots=True)
class FailureCause:
    """One failed attempt. `where` is the line of the author's code, or the start of the function.

    `reason` includes the error's text and is for the log; `stored_reason` may be stored.
    """

    agent: str
    attempt: int
    code: str
    error: str
    where: str
    reason: str
    stored_reason: str

    def packed(self) -> bytes:
        """The form stored in the execution."""
        shown = {name: getattr(self, name) for name in ("agent", "attempt", "code", "error", "where")}
        return encode({**shown, "reason": self.stored_reason})


def cause_of(
    fault: BaseException, *, agent: str, attempt: int, code: str, function: Callable[..., Any] | None
) -> FailureCause:
    """Describes the exception that ended an attempt."""
    return FailureCause(
        agent=agent,
        attempt=attempt,
        code=code,
        error=type(fault).__name__,
        where=_line_of(fault.__traceback__) or _begins(function),
        reason=short(_reason(fault, _text), _MOST_REASON),
        stored_reason=short(_reason(fault, _stored_text), _MOST_REASON),
    )


def _reason(fault: BaseException, text: Callable[[BaseException], str]) -> str:
    """The messages of the exception chain, each cause with its line of the author's code."""
    parts = [text(fault)]
    cause = _cause(fault)
    while cause is not None and len(parts) < _MOST_CAUSES:
        place = _line_of(cause.__traceback__)
        words = f"{type(cause).__name__}: {text(cause)}".removesuffix(": ")
        parts.append(f"because of {words}" + (f" ({place})" if place else ""))
        cause = _cause(cause)
    return ", ".join(part for part in parts if part)


def _cause(fault: BaseException) -> BaseException | None:
    """The cause of an exception; none for NotJson, whose own message suffices."""
    return None if isinstance(fault, NotJson) else fault.__cause__


def _stored_text(fault: BaseException) -> str:
    return _text(fault) if isinstance(fault, _STORED) else ""


def _text(fault: BaseException) -> str:
    details = getattr(fault, "details", None)
    text = str(fault) or str(getattr(fault, "message", ""))
    return f"{text} {details}" if details else text


def _line_of(trace: TracebackType | None) -> str:
    """The deepest line of the author's code that the traceback passes through."""
    found = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_authors(code.co_filename):
            found = f"{_shown(code.co_filename)}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return found


def _begins(function: Callable[..., Any] | None) -> str:
    """Location of the agent's function, for errors found after it returned."""
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    if code is None:
        return ""
    return f"{_shown(code.co_filename)}:{code.co_firstlineno} in {code.co_name}"


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
