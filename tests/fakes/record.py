"""What a test reads of one execution: its record, its log and its money."""

from __future__ import annotations

from worker.executions.record import Execution
from worker.parts import Parts
from worker.payments.ledger import Money, Payment


class Reads:
    """Reads over the parts of the worker under test, which whoever inherits this has."""

    parts: Parts

    def execution(self, id: str) -> Execution:
        return self.parts.executions.get(id)

    def money(self, id: str) -> Money:
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
