"""How the dashboard writes times, durations, money and states."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from worker.core.amounts import to_text
from worker.doors.dashboard_timeline import seconds
from worker.engine.events import iso

_BADGES = {
    "completed": "good",
    "settled": "good",
    "done": "good",
    "ok": "good",
    "allow": "good",
    "failed": "bad",
    "unknown": "bad",
    "refused": "bad",
    "deny": "bad",
    "wrong": "bad",
    "unproven": "bad",
    "unreachable": "warn",
    "blocked": "warn",
    "payment_due": "warn",
    "presumed": "warn",
    "warn": "warn",
    "require_approval": "warn",
    "due": "warn",
    "running": "busy",
    "settling": "busy",
    "verifying": "busy",
    "working": "busy",
}
_MOST_TEXT = 20_000


@dataclass(frozen=True, slots=True)
class Format:
    """The templates' `show`; `now` is the store's time."""

    now: int

    def usd(self, amount: int) -> str:
        """Dollars with cents, and with more digits where there are more."""
        whole, _, part = exact(amount).partition(".")
        return f"{whole}.{part:0<2}"

    def seconds(self, us: int) -> str:
        return seconds(max(0, us))

    def ago(self, at: int) -> str:
        """How long ago, or in how long, roughly."""
        return f"{_roughly(self.now - at)} ago" if at <= self.now else f"in {_roughly(at - self.now)}"

    def iso(self, at: int) -> str:
        return iso(at)

    def when(self, at: int) -> str:
        """To the second, in UTC."""
        return iso(at)[:19].replace("T", " ")

    def badge(self, state: str) -> str:
        return _BADGES.get(state, "")

    def short(self, text: str, most: int = 13) -> str:
        """The two ends of a long name or hash."""
        return text if len(text) <= most else f"{text[: most - 5]}…{text[-4:]}"

    def json(self, value: Any) -> str:
        """For people; what is longer than a screen of pages is cut."""
        text = json.dumps(value, ensure_ascii=False, indent=2)
        return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n… ({len(text):,} characters)"

    def line(self, value: Any, most: int = 120) -> str:
        """JSON in one line."""
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= most else f"{text[:most]}…"

    def percent(self, share: float | None) -> str:
        return "–" if share is None else f"{share:.1%}".replace(".0%", "%")


def exact(amount: int) -> str:
    """Dollars as `worker money` writes them."""
    return to_text(amount) if amount >= 0 else f"-{to_text(-amount)}"


def _roughly(us: int) -> str:
    left = us // 1_000_000
    for size, unit in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if left >= size * (2 if unit == "day" else 1):
            count = left // size
            return f"{count} {unit}{'s' if unit == 'day' else ''}"
    return f"{left} s"
