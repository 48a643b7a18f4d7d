"""The code review agent: Python source in, a score and issues out, by real static analysis.

The code is parsed and never run. Syntax errors are issues too, with a score of 0. The score is
10 minus 2 per error, 0.75 per warning and 0.2 per note, each rule counted three times at most.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from worker.capabilities.declare import agent
from worker.core.errors import InvalidInput
from worker.shipped import review  # noqa: F401  registers the rules
from worker.shipped.review.rules import TOPICS, ReviewFinding, findings, score
from worker.shipped.review.source import MAX_CODE, Unreadable, read
from worker.shipped.text.prune import prune

if TYPE_CHECKING:
    from worker.agents.job import Job

MAX_ISSUES = 200

INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["code"],
    "properties": {
        "code": {"type": "string", "minLength": 1, "maxLength": MAX_CODE},
        "language": {"type": "string"},
        "focus": {"type": "array", "maxItems": len(TOPICS), "items": {"type": "string"}},
    },
    "additionalProperties": False,
}
OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["score", "issues"],
    "properties": {
        "score": {"type": "number", "minimum": 0, "maximum": 10},
        "issues": {
            "type": "array",
            "maxItems": MAX_ISSUES,
            "items": {
                "type": "object",
                "required": ["line", "severity", "message"],
                "properties": {
                    "line": {"type": "integer", "minimum": 1},
                    "severity": {"type": "string", "enum": ["error", "warning", "info"]},
                    "message": {"type": "string"},
                    "rule": {"type": "string"},
                },
            },
        },
        "summary": {"type": "string"},
    },
}
EXAMPLE_INPUT: dict[str, Any] = {
    "code": "import os\n\ndef total(xs=[]):\n    return sum(xs)\n",
    "language": "python",
}
EXAMPLE_OUTPUT: dict[str, Any] = {
    "score": 8.5,
    "issues": [
        {
            "line": 1,
            "severity": "warning",
            "message": "`os` is imported but never used",
            "rule": "unused-import",
        },
        {
            "line": 3,
            "severity": "warning",
            "message": "a mutable default is shared by all calls; use None and create it inside",
            "rule": "mutable-default",
        },
    ],
    "summary": "2 issues in 4 lines: 2 warnings.",
}


@agent(
    "code-review",
    price="0.25",
    description="Reviews Python source by static analysis: bugs, security, dead code, complexity, style.",
    input_schema=INPUT_SCHEMA,
    output_schema=OUTPUT_SCHEMA,
    inline=True,
    example_input=EXAMPLE_INPUT,
    example_output=EXAMPLE_OUTPUT,
    model="reviewbot-v1",
    time_limit=30,
    settle="after_work",
)
def code_review(job: Job) -> Any:
    """Parse, look, score; fitted to the keys that the contract's schema allows."""
    code, topics = _given(job.input)
    job.progress(0.1, "reading the code")
    try:
        source = read(code)
    except Unreadable as refusal:
        issue = ReviewFinding(max(refusal.line, 1), "error", refusal.message, "syntax")
        output = {"score": 0, "issues": [issue.as_json()], "summary": "The code could not be parsed."}
        return prune(output, job.output_schema)
    job.progress(0.4, "looking for issues")
    found = findings(source, topics)
    output = {
        "score": score(found),
        "issues": [finding.as_json() for finding in _worst(found)],
        "summary": _summary(found, len(code.splitlines())),
    }
    job.progress(1.0, "done")
    return prune(output, job.output_schema)


def _given(given: Any) -> tuple[str, tuple[str, ...]]:
    if not isinstance(given, dict):
        raise InvalidInput(field="", expected="an object with code", received=type(given).__name__)
    code = given.get("code")
    if not isinstance(code, str) or not code.strip() or len(code) > MAX_CODE:
        received = f"{len(code)} characters" if isinstance(code, str) else type(code).__name__
        raise InvalidInput(
            field="code", expected=f"Python source of 1 to {MAX_CODE} characters", received=received
        )
    language = given.get("language", "python")
    if not isinstance(language, str) or language.lower() not in {"python", "python3", "py"}:
        raise InvalidInput(field="language", expected="python", received=_echo(language))
    focus = given.get("focus")
    if focus is None or focus == []:
        return code, TOPICS
    if not isinstance(focus, list):
        raise InvalidInput(field="focus", expected="a list of topics", received=_echo(focus))
    for index, topic in enumerate(focus):
        if topic not in TOPICS:
            raise InvalidInput(
                field=f"focus[{index}]", expected="one of " + ", ".join(TOPICS), received=_echo(topic)
            )
    return code, tuple(focus)


def _worst(found: list[ReviewFinding]) -> list[ReviewFinding]:
    """At most 200, by line; when there are more, errors stay before warnings and those before notes."""
    ranks = {"error": 0, "warning": 1, "info": 2}
    return sorted(sorted(found, key=lambda finding: ranks[finding.severity])[:MAX_ISSUES])


def _summary(found: list[ReviewFinding], lines: int) -> str:
    if not found:
        return f"No issues in {lines} lines."
    counts = Counter(finding.severity for finding in found)
    words = {"error": "error", "warning": "warning", "info": "note"}
    parts = [f"{counts[key]} {word}{'s' * (counts[key] > 1)}" for key, word in words.items() if counts[key]]
    shown = f" The worst {MAX_ISSUES} are listed." if len(found) > MAX_ISSUES else ""
    return f"{len(found)} issue{'s' * (len(found) > 1)} in {lines} lines: {', '.join(parts)}.{shown}"


def _echo(value: Any) -> str:
    return value[:60] if isinstance(value, str) else type(value).__name__
