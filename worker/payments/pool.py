"""Thread pool in the clock's process that drives open payments, legs, the audit and the chain comparison.

A facilitator may take minutes to answer and the clock must tick meanwhile. Due work is read from the store.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from worker.payments.leg import LegKey
from worker.store.outage import REST
from worker.store.task_pool import TaskPool

THREADS = 8
# Queue limit for threads: work beyond it stays due.
MOST_IN_LINE = 64


class OpenPayments(Protocol):
    """The ledger's side: executions whose money is due."""

    def due(self, at: int, most: int = 50) -> list[str]: ...


class PaymentDriver(Protocol):
    def attend(self, id: str) -> None: ...


class LegDriver(Protocol):
    def due(self, at: int) -> list[LegKey]: ...

    def attend(self, leg: LegKey) -> None: ...


class ComparisonRunner(Protocol):
    def run(self) -> bool: ...


class Audits(Protocol):
    def run(self) -> int: ...


class MoneyPool:
    """Starts due money work."""

    def __init__(
        self,
        ledger: OpenPayments,
        settler: PaymentDriver,
        legs: LegDriver | None,
        comparison: ComparisonRunner,
        *,
        audit: Audits | None = None,
        rechecks: Callable[[], list[str]] = list,
        threads: int = THREADS,
        rest: float = REST,
    ) -> None:
        self._ledger = ledger
        self._settler = settler
        self._legs = legs
        self._comparison = comparison
        self._audit = audit
        self._rechecks = rechecks
        self._pool = TaskPool("money", threads, most=MOST_IN_LINE, rest=rest)
        # A hanging facilitator must not keep contracts waiting for the comparison.
        self._comparing = TaskPool("comparison", 1, most=1, rest=rest)

    def chore(self, at: int) -> None:
        """Called by the clock about once a second, with the store's time."""
        self._comparing.begin("comparison", self._comparison.run)
        if self._audit is not None:
            self._pool.begin("audit", self._audit.run)
        for id in dict.fromkeys([*self._rechecks(), *self._ledger.due(at)]):
            self._pool.begin(f"payment {id}", partial(self._settler.attend, id))
        if self._legs is not None:
            for leg in self._legs.due(at):
                self._pool.begin(leg.member, partial(self._legs.attend, leg))

    @property
    def under_way(self) -> set[str]:
        return self._pool.under_way | self._comparing.under_way

    def close(self, grace_s: float) -> None:
        """Waits up to `grace_s` for open calls; the rest stays due for other clocks."""
        for pool in (self._pool, self._comparing):
            pool.close(grace_s)
