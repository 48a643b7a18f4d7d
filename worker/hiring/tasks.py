"""Reads, follows, awaits and cancels bought executions for their seekers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, replace

from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Capability
from worker.contracts.book import Contract, ContractBook
from worker.core.amounts import to_text
from worker.core.errors import Conflict
from worker.core.ids import is_id
from worker.core.states import Phase
from worker.delivery.event_streams import opens_early, released
from worker.engine.events import TERMINAL_KINDS, Event, Kind
from worker.engine.load import Load, LoadMeter
from worker.engine.refusals import Forfeits
from worker.engine.service import Executions
from worker.hiring.refusals import no_task
from worker.hiring.task import Task
from worker.hiring.waiting_requests import WaitingRequests
from worker.payments.ledger import Ledger
from worker.payments.settler import Settler
from worker.store.pool import use

# Events after which a waiting request must settle or answer.
_DECISIVE = frozenset(
    {Kind.EXECUTION_SEALED, Kind.PAYMENT_VERIFIED, Kind.EXECUTION_RESET, Kind.PAYMENT_REFUSED}
)


@dataclass(frozen=True)
class Tasks:
    """Reads tasks from the record; a waiting request settles the payment of work that is done."""

    book: ContractBook
    executions: Executions
    catalog: Catalog
    ledger: Ledger
    settler: Settler
    meter: LoadMeter
    spawn: Callable[[Callable[[], object]], None]
    _waiting: WaitingRequests = field(default_factory=WaitingRequests, init=False)

    def read(self, contract: Contract, id: str) -> Task:
        """Reads the task from the record; a caller with a record has paid or is about to."""
        use("paid")
        found = self.ledger.read(id)
        if found is None:
            raise no_task()
        # A sold task stays valid after its capability was withdrawn.
        agent = found.execution.agent
        capability = self.catalog.get(agent) or Capability(name=agent)
        return Task(found.execution, found.money, contract, capability, sequence=found.sequence)

    def find(self, contract_id: str, task_id: str) -> Task:
        """Returns a contract's own task; any other combination counts as unknown."""
        contract = self.book.find(contract_id) if contract_id else None
        if contract is None or contract.execution is None or contract.execution != task_id:
            raise no_task()
        return self.read(contract, task_id)

    def by_id(self, task_id: str) -> Task:
        """Returns a task for a caller that has shown other proof than its contract."""
        found = self.ledger.read(task_id) if is_id(task_id) else None
        contract = self.book.by_ref(found.execution.contract) if found else None
        if contract is None:
            raise no_task()
        return self.read(contract, task_id)

    def cancel(self, task: Task, *, forfeit: bool = False) -> Task:
        """Cancels the work; with `forfeit` even if the seeker has paid and loses the payment."""
        id = task.execution.id
        try:
            self.executions.cancel(id, "cancelled by the seeker", by="seeker", forfeit=forfeit)
        except Forfeits as refused:
            refused.details["amount"] = to_text(refused.amount)
            raise
        except Conflict as refused:  # too late: it may have been paid for
            refused.charged = self.read(task.contract, id).charged
            refused.advice = "GET this address to see its result."
            raise
        self.settler.forget_unpaid(id)
        return self.read(task.contract, id)

    def wait(self, task: Task, until: float, *, until_paid: bool = False) -> Task:
        """Waits until the task ends or needs a decision, at most until `until` (monotonic).

        `until_paid`: or until its payment has settled.
        """
        enough = TERMINAL_KINDS | ({Kind.PAYMENT_SETTLED} if until_paid else set())
        if task.first:
            return self._follow(task, until, enough)
        with self._waiting.one_more(task.execution.id) as waits:
            return self._follow(task, until, enough) if waits else task

    def events(self, id: str, after: int) -> Iterator[list[Event]]:
        """The task's events for its seeker; content is held back until it is paid for."""
        sealed = not opens_early(self.executions.get(id))
        return released(self.executions, id, after, sealed=sealed)

    def load(self, task: Task) -> Load:
        """Current load of the task's lane."""
        return self.meter.read(task.execution.agent, task.execution.lane)

    def _follow(self, task: Task, until: float, enough: Set[str]) -> Task:
        id = task.execution.id
        for batch in self.executions.follow(id, until=until):
            if any(event.kind in enough for event in batch):
                break
            if any(event.kind in _DECISIVE for event in batch):
                now = self.read(task.contract, id)
                if now.execution.phase is Phase.SETTLING:
                    self.spawn(lambda: self.settler.settle(id))
                if now.unpaid or now.parked:
                    break
            if time.monotonic() >= until:
                break
        after = self.read(task.contract, id)
        return replace(after, paid_already=task.paid_already)
