"""Persistent spending limits: per purchase, per day and per host.

Every approved amount is journaled before its payment is signed. It counts for a day even if nobody takes the
payment, because an issued signature may still be used.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from worker.core.amounts import to_text
from worker.core.errors import BadRequest
from worker.seeker.checks import cap_reached
from worker.seeker.problems import HostNotAllowed, SpendingDeclined

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Spent:
    """One approved payment; the amount is in atomic units."""

    at: float
    host: str
    amount: int
    ref: str


@dataclass(frozen=True, slots=True)
class Question:
    """The question to a person before a larger payment is signed; the amount is in USDC."""

    amount: str
    host: str
    ref: str


@dataclass(frozen=True, slots=True)
class SpendingRules:
    """Amounts in atomic units. Without `hosts` every host may be paid; an unset cap means no limit."""

    each: int
    day: int
    host_day: int | None = None
    hosts: frozenset[str] = frozenset()
    ask_above: int | None = None


class Spending:
    """The journal of one purse, and the limits on what it may still pay."""

    def __init__(
        self,
        path: Path,
        rules: SpendingRules,
        now: Callable[[], float],
        ask: Callable[[Question], bool] | None = None,
    ) -> None:
        self._path = path
        self._rules = rules
        self._now = now
        self._ask = ask

    def check_host(self, host: str) -> None:
        """Refuse a host before anything is sent to it."""
        if self._rules.hosts and host not in self._rules.hosts:
            raise HostNotAllowed(field="url", expected=", ".join(sorted(self._rules.hosts)), received=host)

    def approve(self, amount: int, host: str, ref: str) -> None:
        """Record a payment before it is signed, or refuse it."""
        self.check_host(host)
        if amount > self._rules.each:
            raise cap_reached(amount, self._rules.each)
        with self._locked() as spent:
            self._check_room(spent, amount, host)
        above = self._rules.ask_above
        if above is not None and amount > above:
            question = Question(to_text(amount), host, ref)
            if self._ask is None or not self._ask(question):
                raise SpendingDeclined(field="amount", received=question.amount)
        # Another process may have spent while the person was asked.
        with self._locked() as spent:
            self._check_room(spent, amount, host)
            self._write([*spent, Spent(self._now(), host, amount, ref)])

    def today(self) -> list[Spent]:
        """Amounts approved in the last 24 hours."""
        with self._locked() as spent:
            return spent

    def _check_room(self, spent: list[Spent], amount: int, host: str) -> None:
        rules = self._rules
        left = rules.day - sum(each.amount for each in spent)
        if rules.host_day is not None:
            left = min(left, rules.host_day - sum(each.amount for each in spent if each.host == host))
        if amount > left:
            raise cap_reached(amount, left)

    @contextmanager
    def _locked(self) -> Iterator[list[Spent]]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self._path.with_suffix(".lock").open("w")
        except OSError as fault:
            raise BadRequest(f"{str(self._path)!r} cannot keep what was spent") from fault
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._read()

    def _read(self) -> list[Spent]:
        """The last day's entries. Never skips an unreadable journal, because it could hide spending."""
        if not self._path.exists():
            return []
        try:
            entries = [Spent(**each) for each in json.loads(self._path.read_text("utf-8"))]
        except (OSError, ValueError, TypeError) as fault:
            raise BadRequest(
                f"{str(self._path)!r} cannot be read", advice="Look at it before you move it away."
            ) from fault
        since = self._now() - DAY_S
        return [each for each in entries if each.at > since]

    def _write(self, spent: list[Spent]) -> None:
        fresh = self._path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump([asdict(each) for each in spent], file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
