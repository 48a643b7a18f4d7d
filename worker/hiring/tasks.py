"""Reads, follows, awaits and cancels bought executions for their seekers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Capability
from worker.contracts.book import Contract, ContractBook
from worker.core.amounts import to_text
from worker.core.errors import Conflict
from worker.core.ids import is_id
from worker.core.states import Phase
from worker.delivery.event_streams import opens_early, released
from worker.engine.decisions import LOOK, SETTLE, Decisions
from worker.engine.events import Event
from worker.engine.load import Load, LoadMeter
from worker.engine.refusals import Forfeits
from worker.engine.service import Executions
from worker.hiring.finished_tasks import FinishedTasks
from worker.hiring.own_calls import OwnCalls
from worker.hiring.refusals import no_task
from worker.hiring.task import Task, TaskRecord
from worker.hiring.waiting_requests import WaitingRequests
from worker.payments.ledger import Ledger
from worker.payments.ledger_reader import Reading
from worker.payments.payment import PaymentState
from worker.payments.settlement_lease import SEAL_TOKEN
from worker.payments.settler import Settler
from worker.store.outage import insist

# How often a waiting request looks at the record without being told to: processes of an older release, and a
# process that dies, tell it nothing.
_LOOK_AGAIN = 1.0


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
    _finished: FinishedTasks = field(default_factory=FinishedTasks, init=False)

    def __post_init__(self) -> None:
        self.executions.own_channel.give_back = self._give_back

    def read(self, contract: Contract, id: str) -> Task:
        """Reads the task from the record; a caller with a record has paid or is about to."""
        found = self._finished_reading(contract, id) or self._reading(id)
        return self._task(contract, found)

    def _task(self, contract: Contract, found: Reading) -> Task:
        # A sold task stays valid after its capability was withdrawn.
        agent = found.execution.agent
        capability = self.catalog.get(agent) or Capability(name=agent)
        return Task(found.execution.id, TaskRecord.known(found), contract, capability)

    def finished(self, contract_id: str) -> Task | None:
        """The contract's task, if this process keeps its final record and the store still has it."""
        contract = self.book.remembered(contract_id)
        if contract is None or contract.execution is None:
            return None
        found = self._finished_reading(contract, contract.execution)
        return None if found is None else self._task(contract, found)

    def begun(self, contract: Contract, capability: Capability, id: str, calls: OwnCalls | None) -> Task:
        """The task that this request has claimed; its record is read only if it is shown before its end."""
        return Task(id, TaskRecord(lambda: self._reading(id)), contract, capability, first=True, calls=calls)

    def _reading(self, id: str) -> Reading:
        found = self.ledger.read(id)
        if found is None:
            raise no_task()
        self._finished.add(found)
        return found

    def _finished_reading(self, contract: Contract, id: str) -> Reading | None:
        """The kept record of a finished task, if the store still has it, and its payment, as they were."""
        kept = self._finished.get(id)
        if kept is None:
            return None
        if self.ledger.unchanged(contract.ref, kept):
            return kept
        self._finished.drop(id)
        return None

    def find(self, contract_id: str, task_id: str) -> Task:
        """Returns a contract's own task; any other combination counts as unknown."""
        kept = self.finished(contract_id)
        if kept is not None and kept.id == task_id:
            return kept
        contract = self.book.find(contract_id) if contract_id else None
        if contract is None or contract.execution is None or contract.execution != task_id:
            raise no_task()
        return self.read(contract, task_id)

    def ordered_input(self, task: Task) -> Any:
        """What was ordered; a finished task's kept record has no input."""
        return self.executions.input(self.executions.get(task.id))

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
        self.settler.verifier.forget_unpaid(id)
        return self.read(task.contract, id)

    def wait(self, task: Task, until: float, *, until_paid: bool = False) -> Task:
        """Waits until the task ends or needs a decision, at most until `until` (monotonic).

        `until_paid`: or until its payment has settled.
        """
        if task.first:
            return self._follow(task, until, until_paid)
        with self._waiting.one_more(task.id) as waits:
            return self._follow(task, until, until_paid) if waits else task

    @property
    def listens(self) -> bool:
        """Whether this process is told of the ends of work that it has claimed."""
        return self.executions.own_channel.confirmed

    def waits(self, id: str, payment: int) -> bool:
        """Whether the request that claimed this payment waits in this process."""
        return self.executions.own_channel.waits(id, payment)

    def events(self, id: str, after: int) -> Iterator[list[Event]]:
        """The task's events for its seeker; content is held back until it is paid for."""
        sealed = not opens_early(self.executions.get(id))
        return released(self.executions, id, after, sealed=sealed)

    def load(self, task: Task) -> Load:
        """Current load of the task's lane."""
        return self.meter.read(task.execution.agent, task.execution.lane)

    def _follow(self, task: Task, until: float, until_paid: bool) -> Task:
        # A request that claimed nothing has read the record before it listens.
        calls = task.calls or OwnCalls(self.spawn, recorded_at=time.monotonic())
        may_have_missed = True
        with self.executions.decisions(task.id, calls.payment.number if calls.payment else 0) as told:
            calls.tell = told.wake
            while True:
                if calls.completed is not None:
                    self._finished.add(calls.completed)
                    return replace(task, record=TaskRecord.known(calls.completed))
                if may_have_missed and calls.recorded_at < told.began < float("inf"):
                    may_have_missed, calls.look = False, True
                over = time.monotonic() >= until
                if over or calls.look:
                    now = self._look(task, calls, told, until)
                    if over or _is_enough(now, until_paid):
                        return now
                left = until - time.monotonic()
                # Its own call tells in any case how it ended.
                heard = told.wait(left if calls.settling else min(_LOOK_AGAIN, left))
                self._hear(task, calls, told, timed_out=not heard)

    def _look(self, task: Task, calls: OwnCalls, told: Decisions, until: float) -> Task:
        """Reads the record, waiting out a short outage of the store; settles what nobody was told of."""
        calls.look = False
        patience = max(0.0, until - time.monotonic())
        now = insist(lambda: self.read(task.contract, task.id), "hire.wait", patience=patience)
        if now.execution.phase is Phase.SETTLING and not calls.settled_once and not told.lease:
            number = _leased(now, calls)
            if number:
                calls.lease_used = True
                calls.settle(lambda: self.settler.settle_unheard(task.id, number))
            else:
                calls.settle(lambda: self.settler.settle(task.id))
        return replace(now, paid_already=task.paid_already)

    def _hear(self, task: Task, calls: OwnCalls, decisions: Decisions, *, timed_out: bool) -> None:
        told, lease = decisions.take(), decisions.lease
        if lease and calls.payment is not None and not (calls.lease_used or calls.settling):
            decisions.lease, calls.lease_used = b"", True
            settle = partial(self.settler.settle_sealed, task.id, calls.payment, lease, calls.began_after)
            calls.settle(lambda: settle(calls.complete))
        elif SETTLE in told:
            calls.settle(lambda: self.settler.settle(task.id))
        elif (LOOK in told or timed_out) and not calls.settling:
            # What this process settles itself comes with the answer.
            calls.look = True

    def _give_back(self, id: str, payment: int) -> None:
        self.spawn(lambda: self.settler.give_back(id, payment))


def _leased(task: Task, calls: OwnCalls) -> int:
    """The number of the payment that this request has claimed, if its lease came with the seal; else 0."""
    payment = task.money.payment()
    if payment is None or calls.payment is None or payment.number != calls.payment.number:
        return 0
    if calls.lease_used:
        return 0
    leased = payment.state is PaymentState.SETTLING and payment.holder == SEAL_TOKEN
    return payment.number if leased else 0


def _is_enough(task: Task, until_paid: bool) -> bool:
    """Whether a request for the task need not wait longer."""
    paid = until_paid and task.money.paid > 0
    return paid or task.execution.state.terminal or task.unpaid or task.parked
