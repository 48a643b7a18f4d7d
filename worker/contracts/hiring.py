"""What `POST /execute` comes to: the record answers first, refusals come before money, then the claim."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from worker.agents.catalog import Catalog
from worker.agents.declare import Capability
from worker.contracts.asking import Asking
from worker.contracts.book import Contract, ContractBook
from worker.contracts.claiming import Claims
from worker.contracts.signatures import recover_digest
from worker.contracts.task import Body, PaymentRequired, Task
from worker.contracts.terms import Listing, which_capability
from worker.delivery.webhooks import Hook
from worker.errors import Conflict, NotFound, Problem, Unavailable
from worker.executions.events import Kind
from worker.executions.load import Load
from worker.executions.service import Executions
from worker.executions.states import Lane, Phase
from worker.payments.found import FoundMoney
from worker.payments.ledger import Ledger
from worker.payments.offer import Offer, mismatch, signature_mismatch
from worker.payments.settler import Settler
from worker.payments.wire import Payment, read_payment, restore

# Copies of a request that wait for the answer of the first; more are told at once that it is under way.
MOST_WAITING = 8
# Between an answer from the record and a claim somebody else may be faster, once or twice.
_TRIES = 3
# Events after which a waiting request has something to say or to do.
_SETTLE = frozenset({Kind.EXECUTION_SEALED, Kind.PAYMENT_VERIFIED})
_TURNS = _SETTLE | {Kind.EXECUTION_RESET, Kind.PAYMENT_REFUSED}


@dataclass
class Hiring:
    """The paid door's decisions."""

    book: ContractBook
    executions: Executions
    catalog: Catalog
    ledger: Ledger
    settler: Settler
    asking: Asking
    claims: Claims
    found: FoundMoney
    push: Callable[[str], None]
    listing: Callable[[], Listing]
    spawn: Callable[[Callable[[], object]], None]
    _waiting: Counter[str] = field(default_factory=Counter, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def execute(
        self, contract_id: str, body: Body, headers: Mapping[str, str], webhook_url: str | None = None
    ) -> Task:
        """Answers from the record, or refuses, or asks for money, or claims the payment and begins."""
        for _ in range(_TRIES):
            contract = self._signed(contract_id)
            known = None if contract.execution is None else self.task(contract, contract.execution)
            if known is not None and not known.unpaid:
                return self._from_record(known, body, _pays(headers))
            task = self._sell(contract, known, body, headers, webhook_url)
            if task is not None:
                return task
        raise Unavailable("too many requests for this contract at once", code="WORKER_BUSY", retry_after=1)

    def task(self, contract: Contract, id: str) -> Task:
        money = self.ledger.money(id)
        if money is None:
            raise NotFound("no such task", code="TASK_NOT_FOUND")
        execution = self.executions.get(id)
        # What was sold stays sold, also when it is not on offer any more.
        capability = self.catalog.get(execution.agent) or Capability(name=execution.agent)
        return Task(execution, money, contract, capability)

    def find(self, contract_id: str, task_id: str) -> Task:
        """A task for its own contract; anything else looks unknown."""
        contract = self.book.find(contract_id) if contract_id else None
        if contract is None or contract.execution is None or contract.execution != task_id:
            raise NotFound("no such task", code="TASK_NOT_FOUND")
        return self.task(contract, task_id)

    def cancel(self, task: Task) -> Task:
        self.executions.cancel(task.execution.id, "cancelled by the seeker", by="seeker")
        return self.task(task.contract, task.execution.id)

    def wait(self, task: Task, until: float) -> Task:
        """The task as it is when there is something to say, at the latest at `until` (monotonic)."""
        id = task.execution.id
        if not task.first and not self._joins(id):
            return task
        try:
            return replace(self._follow(task, until), paid_already=task.paid_already)
        finally:
            if not task.first:
                self._leaves(id)

    def demand(self, task: Task) -> Problem:
        """The 402 for a task whose payment came to nothing while its request waited."""
        load = self.asking.read(task.capability)
        self.asking.may_ask(task.contract, load)
        return task.refusal(self.asking.offer(task.contract, task.capability, load, sealed=task.sealed))

    # Waiting

    def _follow(self, task: Task, until: float) -> Task:
        id = task.execution.id
        for batch in self.executions.follow(id, until=until):
            if any(event.terminal for event in batch):
                break
            if any(event.kind in _TURNS for event in batch):
                now = self.task(task.contract, id)
                if now.execution.phase is Phase.SETTLING:
                    self.spawn(lambda: self.settler.settle(id))
                if now.unpaid or now.parked:
                    break
            if time.monotonic() >= until:
                break
        after = self.task(task.contract, id)
        return replace(after, paid_already=task.paid_already)

    def _joins(self, id: str) -> bool:
        with self._lock:
            joins = self._waiting[id] < MOST_WAITING
            self._waiting[id] += joins
            return joins

    def _leaves(self, id: str) -> None:
        with self._lock:
            self._waiting[id] -= 1
            if not self._waiting[id]:
                del self._waiting[id]

    # The record

    def _from_record(self, task: Task, body: Body, paying: bool) -> Task:
        if task.parked:
            return replace(self._resume(task, body), paid_already=paying)
        if task.execution.digest != body.digest:
            raise _other_input()
        return replace(task, replayed=task.execution.state.terminal, paid_already=paying)

    def _resume(self, task: Task, body: Body) -> Task:
        """The free next attempt of a parked execution, on the stored authorization if it can still settle."""
        execution, contract, capability = task.execution, task.contract, task.capability
        if execution.digest != body.digest:
            if execution.raw["parked"] != b"input":
                raise _other_input()
            self.asking.fits(capability, body)
        load = self.asking.read(capability)
        payment = task.money.payment()
        if payment is not None and not task.money.paid:
            needed_s = self.asking.times(contract, capability, load).needed_s
            if payment.valid_before_s < load.at // 1_000_000 + needed_s:
                self.asking.may_ask(contract, load)
                offer = self.asking.offer(contract, capability, load)
                if self.ledger.repay(execution.id) == "payment_due":
                    raise PaymentRequired(offer, "the authorization has run out")
        blob, ref = self.claims.pack(body.value)
        what, lane = self.ledger.unpark(execution.id, body.digest, blob, ref)
        self.claims.drop_unused(execution.id, execution.raw.get("input_ref", b""), ref)
        if what == "conflict":
            raise _other_input()
        if what == "queued" and lane == Lane.QUEUE:
            self.push(execution.id)
        return self.task(contract, execution.id)

    # Before money

    def _signed(self, contract_id: str) -> Contract:
        contract = self.book.find(contract_id)
        if contract is not None:
            return contract
        if self.book.is_draft(contract_id):
            raise Problem(
                "the contract waits for the seeker's signature",
                code="CONTRACT_NOT_SIGNED",
                status=403,
                advice="Sign its hash and PUT the whole document to /contracts; nothing was charged.",
            )
        raise _no_contract()

    def _capability(self, contract: Contract) -> Capability:
        name = which_capability(contract.terms, self.listing().capabilities)
        capability = self.catalog.get(name)
        if capability is None:
            raise Unavailable("this capability is not offered now", code="CAPABILITY_UNAVAILABLE")
        return capability

    def _sell(
        self,
        contract: Contract,
        known: Task | None,
        body: Body,
        headers: Mapping[str, str],
        webhook_url: str | None,
    ) -> Task | None:
        """Refuses, asks, or claims; None when somebody else was faster and the record answers now.

        `known` is the task of this contract when it waits for another payment.
        """
        capability = known.capability if known else self._capability(contract)
        load = self.asking.read(capability)
        if known is None and contract.found:
            self.asking.fits(capability, body)
            hooks = self.asking.hooks(contract, webhook_url, begun=True)
            return self._claim_found(contract, capability, body, load, hooks, paying=_pays(headers))
        if known is not None and known.sealed:
            # The work is done: nothing but the payment is still to come.
            if known.execution.digest != body.digest:
                raise _other_input()
            self.asking.may_ask(contract, load)
            offer = self.asking.offer(contract, capability, load, sealed=True)
        else:
            self.asking.room(contract, capability, body, load)
            offer = self.asking.offer(contract, capability, load)
        hooks = self.asking.hooks(contract, webhook_url, begun=known is not None and known.sealed)
        payment = read_payment(headers, offer.requirements())
        if payment is None:
            last = known.money.payment() if known else None
            raise PaymentRequired(offer, (last.code if last else "") or "payment required")
        refusal = mismatch(payment, offer, load.at // 1_000_000)
        refusal = refusal or signature_mismatch(payment, offer, _recover)
        if refusal is not None:
            raise PaymentRequired.mismatched(offer, refusal, payment)
        return self._claim(contract, capability, body, offer, payment, hooks)

    # The claim

    def _claim(
        self,
        contract: Contract,
        capability: Capability,
        body: Body,
        offer: Offer,
        payment: Payment,
        hooks: list[Hook],
    ) -> Task | None:
        self.settler.checkpoint("before_claim")
        id, reply = self.claims.make(contract, capability, body, offer, payment, hooks)
        self.settler.checkpoint("after_claim")
        if reply[0] == b"claimed":
            # Verifying outlives the request: its budget limits how long it waits, never the call.
            self.spawn(lambda: self.settler.verify(id, int(reply[1])))
            return replace(self.task(contract, id), first=True)
        return self._not_claimed(reply, contract, offer)

    def _claim_found(
        self,
        contract: Contract,
        capability: Capability,
        body: Body,
        load: Load,
        hooks: list[Hook],
        *,
        paying: bool,
    ) -> Task | None:
        """The contract was paid for, as the chain shows; only the input was still missing."""
        found = self.found.waiting_for(contract.ref)
        if found is None:
            return None
        offer = self.asking.offer(contract, capability, load, sealed=True)
        id, reply = self.claims.make(contract, capability, body, offer, restore(found.payload), hooks)
        self.settler.checkpoint("after_claim_found")
        if reply[0] != b"claimed":
            return self._not_claimed(reply, contract, offer)
        self.settler.record_settled(id, int(reply[1]), found.transaction, "chain", found.payload)
        return replace(self.task(contract, id), first=True, paid_already=paying)

    def _not_claimed(self, reply: list[bytes], contract: Contract, offer: Offer) -> Task | None:
        """Why not, or None when the record has the answer by now."""
        match reply[0]:
            case b"same":
                # This very payment came before; if it came to nothing it is not tried again.
                task = self.task(contract, reply[1].decode())
                if task.unpaid:
                    raise task.refusal(offer)
                return None
            case b"exists" | b"paying":
                return None
            case b"conflict":
                raise _other_input()
            case b"used":
                raise Conflict(
                    "this payment belongs to another contract",
                    code="PAYMENT_USED",
                    advice="Sign a new payment for this contract; this one was not charged again.",
                )
            case b"identifier":
                raise Conflict(
                    "this payment-identifier was used with another payment", code="PAYMENT_IDENTIFIER_USED"
                )
            case b"payments":
                raise Conflict(
                    "too many payments of this contract came to nothing",
                    code="TOO_MANY_PAYMENTS",
                    advice="Draft a new contract; nothing was charged.",
                )
            case b"budget":
                raise Unavailable(
                    "this wallet has too much unpaid work",
                    code="UNPAID_WORK_LIMIT",
                    retry_after=60,
                    limit=reply[1].decode(),
                )
            case _:
                raise _no_contract()


def _pays(headers: Mapping[str, str]) -> bool:
    return "PAYMENT-SIGNATURE" in headers or "X-PAYMENT" in headers


def _recover(digest: bytes, signature: bytes) -> str:
    return recover_digest(digest, signature)


def _other_input() -> Conflict:
    return Conflict(
        "this contract was already used with another input",
        code="IDEMPOTENCY_CONFLICT",
        advice="Send the first input again to get its result; another input needs another contract.",
    )


def _no_contract() -> NotFound:
    return NotFound(
        "no such contract",
        code="CONTRACT_NOT_FOUND",
        advice="POST a draft to /contracts, sign it and PUT it back; nothing was charged.",
    )
