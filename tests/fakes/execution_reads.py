"""Reads an execution's record, log and money for tests."""

from __future__ import annotations

from worker.engine.record import Execution
from worker.parts import Parts
from worker.payments.payment import ExecutionMoney, Payment


class ExecutionReads:
    """Reads through the parts of the worker under test, which the inheriting class provides."""

    parts: Parts

    def execution(self, id: str) -> Execution:
        return self.parts.executions.get(id)

    def stored(self, id: str, field: str) -> int:
        """A numeric field of the record that otherwise only scripts read."""
        return int(self.parts.client.hget(self.parts.keys.record(id), field) or 0)

    def money(self, id: str) -> ExecutionMoney:
        money = self.parts.ledger.money(id)
        assert money is not None
        return money

    def payment(self, id: str) -> Payment:
        payment = self.money(id).payment()
        assert payment is not None
        return payment

    def kinds(self, id: str) -> list[str]:
        return [str(event.kind) for event in self.parts.store.events(id, 0, 10_000)]

    def runs(self, id: str) -> int:
        return self.kinds(id).count("execution.started")
