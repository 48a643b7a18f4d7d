"""The register of rules: a rule looks at a source and yields lines with messages.

Severities: `error` is wrong or dangerous, `warning` will probably hurt, `info` is a matter of care.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

from worker.shipped.review.source import SourceCode

Severity = Literal["error", "warning", "info"]
Check = Callable[[SourceCode], Iterable[tuple[int, str]]]

TOPICS = ("bugs", "security", "unused", "complexity", "style")
MAX_PER_RULE = 50
PENALTY: dict[str, float] = {"error": 2.0, "warning": 0.75, "info": 0.2}
COUNTED = 3


@dataclass(frozen=True)
class ReviewRule:
    id: str
    severity: Severity
    topic: str
    check: Check


@dataclass(frozen=True, order=True)
class ReviewFinding:
    line: int
    severity: str
    message: str
    rule: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


RULES: dict[str, ReviewRule] = {}


def rule(id: str, severity: Severity, topic: str) -> Callable[[Check], Check]:
    """Register a check under an id."""

    def register(check: Check) -> Check:
        if id in RULES or topic not in TOPICS:
            raise ValueError(f"rule {id} is registered twice or has no known topic")
        RULES[id] = ReviewRule(id, severity, topic, check)
        return check

    return register


def findings(source: SourceCode, topics: Collection[str] = TOPICS) -> list[ReviewFinding]:
    """What all rules of these topics find, by line; a rule that cannot finish says so."""
    found: list[ReviewFinding] = []
    for one in RULES.values():
        if one.topic not in topics:
            continue
        try:
            hits = sorted(set(islice(one.check(source), MAX_PER_RULE)))
        except RecursionError:
            found.append(
                ReviewFinding(1, "info", f"the code is nested too deeply for {one.id}", "not-analysed")
            )
            continue
        found += [ReviewFinding(line, one.severity, message, one.id) for line, message in hits]
    return sorted(found)


def score(found: Iterable[ReviewFinding]) -> float:
    """10 minus 2 per error, 0.75 per warning, 0.2 per note; never below 0.

    A rule counts three times at most: the same habit repeated is one habit.
    """
    counts: dict[tuple[str, str], int] = {}
    for finding in found:
        key = (finding.rule, finding.severity)
        counts[key] = counts.get(key, 0) + 1
    penalty = sum(PENALTY[severity] * min(count, COUNTED) for (_, severity), count in counts.items())
    return round(max(0.0, 10.0 - penalty), 1)
