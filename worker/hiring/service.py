"""Implements `POST /execute`: answer from the record, refuse before the 402, then claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Capability
from worker.contracts.book import Contract, ContractBook
from worker.contracts.terms import Listing, which_capability
from worker.core.errors import BadRequest, Problem, Unavailable
from worker.core.states import Lane
from worker.hiring.checkout import Checkout, request_waits
from worker.hiring.claims import context_of
from worker.hiring.conditions import MayBePaid, PaymentConditions
from worker.hiring.manifest import not_served
from worker.hiring.order import Order
from worker.hiring.payment_match import expect_payment
from worker.hiring.refusals import (
    no_contract,
    other_input,
    result_expired,
    tell_of_money,
)
from worker.hiring.task import PaymentRequired, Task, TaskInput, too_many_payments
from worker.hiring.tasks import Tasks
from worker.payments.answers import RepayAnswer, UnparkAnswer
from worker.payments.facts import Facts
from worker.payments.found import FoundMoney
from worker.payments.ledger import Ledger
from worker.payments.settler import Settler
from worker.x402.offer import Offer
from worker.x402.wire import payment_key, read_payment, read_payment_key

# A concurrent request may win between reading the record and the claim, once or twice.
_TRIES = 3


@dataclass(frozen=True)
class Hiring:
    """Decides how a request to execute is answered: from the record, a refusal, a 402, or the work."""

    book: ContractBook
    tasks: Tasks
    catalog: Catalog
    ledger: Ledger
    settler: Settler
    conditions: PaymentConditions
    checkout: Checkout
    found: FoundMoney
    push: Callable[[str], None]
    listing: Callable[[], Listing]

    def execute(
        self, contract_id: str, body: TaskInput, headers: Mapping[str, str], webhook_url: str | None = None
    ) -> Task:
        """Answers from the record, refuses, issues a 402, or claims the payment and starts the work."""
        finished = self.tasks.finished(contract_id)
        if finished is not None:
            return self._replay(finished, body, headers)
        task = self._sell_at_once(contract_id, body, headers, webhook_url)
        if task is not None:
            return task
        for _ in range(_TRIES):
            contract, facts = self._signed(contract_id, headers)
            known = None if contract.execution is None else self.tasks.read(contract, contract.execution)
            try:
                if known is not None and not known.unpaid:
                    return self._from_record(known, body, _pays(headers))
                task = self._sell(contract, known, body, headers, webhook_url, facts)
            except Problem as refused:
                if known is not None:
                    tell_of_money(refused, known)
                raise
            if task is not None:
                return task
        raise Unavailable(
            "too many requests for this contract at once",
            code="WORKER_BUSY",
            retry_after=1,
            charge_known=False,
        )

    def has_customer(self, id: str) -> bool:
        """Whether the task's seeker has ever paid."""
        ((_, has_paid),) = self.conditions.budget.wallets([id])
        return has_paid

    def offer_again(self, task: Task) -> Problem:
        """The refusal of a task whose payment failed while its request waited."""
        load = self.conditions.current_load(task.capability)
        self.conditions.check_deliverable(task.contract, task.capability, load)
        return task.refusal(self.conditions.offer(task.contract, task.capability, load, sealed=task.sealed))

    # The record

    def _replay(self, task: Task, body: TaskInput, headers: Mapping[str, str]) -> Task:
        try:
            return self._from_record(task, body, _pays(headers))
        except Problem as refused:
            tell_of_money(refused, task)
            raise

    def _from_record(self, task: Task, body: TaskInput, paying: bool) -> Task:
        if task.parked:
            return replace(self._resume(task, body), paid_already=paying)
        if not body.same_as(task.execution):
            raise other_input()
        return replace(task, replayed=task.execution.state.terminal, paid_already=paying)

    def _resume(self, task: Task, body: TaskInput) -> Task:
        """Starts a parked task's next free attempt, on the stored authorization if it can still settle."""
        execution, contract, capability = task.execution, task.contract, task.capability
        if not body.same_as(execution):
            if execution.parked != "input":
                raise other_input()
            self.conditions.check_input(capability, body)
        load = self.conditions.current_load(capability)
        payment = task.money.payment()
        if payment is not None and not task.money.paid:
            needed_s = self.conditions.time_left(contract, capability, load).needed_s
            if payment.valid_before_s < load.at // 1_000_000 + needed_s:
                self.conditions.check_deliverable(contract, capability, load)
                offer = self.conditions.offer(contract, capability, load)
                if self.ledger.repay(execution.id) is RepayAnswer.PAYMENT_DUE:
                    raise PaymentRequired(offer, "the authorization has expired")
        blob, ref = self.checkout.claims.pack(body.value)
        unparked, lane = self.ledger.unpark(execution.id, body.digest, blob, ref, context_of(contract))
        self.checkout.claims.drop_unused(execution.id, execution.input_ref, ref)
        if unparked is UnparkAnswer.CONFLICT:
            raise other_input()
        if unparked is UnparkAnswer.QUEUED and lane == Lane.QUEUE:
            self.push(execution.id)
        return self.tasks.read(contract, execution.id)

    # Before money

    def _signed(self, contract_id: str, headers: Mapping[str, str]) -> tuple[Contract, Facts | None]:
        """The signed contract and, if it has no execution yet, what decides about the request."""
        remembered = self.book.remembered(contract_id)
        known = remembered is not None and remembered.execution is None
        contract = remembered if known else self.book.find(contract_id)
        # Under another secret the payment may have bought what a second reference names.
        if contract is not None and contract.execution is None and len(self.book.refs(contract_id)) == 1:
            facts = self._facts(contract, headers)
            if facts is not None and facts.contract is not None:
                self.book.learn(facts.contract)
                return facts.contract, facts
            if known:
                contract = self.book.find(contract_id)
        if contract is None or contract.execution is None:
            self.refuse_expired(self.book.refs(contract_id), headers)
        if contract is not None:
            return contract, None
        if self.book.is_draft(contract_id):
            raise Problem(
                "the seeker has not signed this contract",
                code="CONTRACT_NOT_SIGNED",
                status=403,
                advice="Sign its hash and PUT the whole document to /contracts. You were not charged.",
            )
        raise no_contract()

    def refuse_expired(self, refs: tuple[str, ...], headers: Mapping[str, str]) -> None:
        """Reports the outcome of a payment whose contract is past its retention."""
        with suppress(BadRequest):
            key = read_payment_key(headers, self.conditions.network)
            bought = self.ledger.bought(key) if key is not None else None
            if bought is not None and bought.contract_ref in refs:
                raise result_expired(bought)

    def _facts(self, contract: Contract, headers: Mapping[str, str]) -> Facts | None:
        """What decides about a request for a remembered contract; None if nobody serves it now."""
        try:
            capability = self._capability(contract)
        except Problem:  # if the contract has an execution, its record counts
            return None
        key = None
        with suppress(BadRequest):
            key = read_payment_key(headers, self.conditions.network)
        facts = self.conditions.read_facts(contract, capability, key or "")
        stored = facts.contract
        unused = key and stored is not None and stored.execution is None
        if unused and facts.bought is not None and facts.bought.contract_ref == contract.ref:
            raise result_expired(facts.bought)
        return facts

    def _capability(self, contract: Contract) -> Capability:
        offered, named = self.listing().capabilities, contract.terms.capability
        if not offered or (named is not None and named not in offered):
            # It was on offer when the contract was signed; a deploy or a restart may bring it back.
            raise not_served()
        capability = self.catalog.get(which_capability(contract.terms, offered))
        if capability is None:
            raise not_served()
        return capability

    def _sell_at_once(
        self, contract_id: str, body: TaskInput, headers: Mapping[str, str], webhook_url: str | None
    ) -> Task | None:
        """Claims without a look at what the claim decides anyway.

        None where anything forbids it: what is read then tells what, and whether the seeker may have paid.
        """
        contract = self.book.remembered(contract_id) if _pays(headers) else None
        if contract is None or contract.execution is not None or contract.found:
            return None
        with suppress(Problem):
            capability = self._capability(contract)
            sell = partial(self._sell, contract, None, body, headers, webhook_url)
            return self.conditions.at_once(capability, body, sell, contract, hooked=bool(webhook_url))
        return None

    def _sell(
        self,
        contract: Contract,
        known: Task | None,
        body: TaskInput,
        headers: Mapping[str, str],
        webhook_url: str | None,
        facts: Facts | None,
    ) -> Task | None:
        """Refuses, issues a 402, or claims; None if a concurrent request won: the record has the answer.

        `known` is this contract's task if it waits for another payment.
        """
        capability = known.capability if known else self._capability(contract)
        facts = facts or self.conditions.read_facts(contract, capability)
        load = facts.load
        if known is None and contract.found:
            self.conditions.check_input(capability, body)
            hooks = self.conditions.webhook_targets(contract, webhook_url, begun=True)
            return self.checkout.take_found(contract, capability, body, load, hooks, paying=_pays(headers))
        if known is not None and known.sealed:
            # The work is done; only the payment is missing.
            if not body.same_as(known.execution):
                raise other_input()
            self.conditions.check_deliverable(contract, capability, load)
            offer = self.conditions.offer(contract, capability, load, sealed=True)
        else:
            try:
                self.conditions.check_admission(contract, capability, body, facts)
            except MayBePaid:
                offer = self.conditions.offer(contract, capability, load, sealed=True)
                if not self._has_landed(contract, offer, headers):
                    raise
                return None
            offer = self.conditions.offer(contract, capability, load)
        hooks = self.conditions.webhook_targets(
            contract, webhook_url, begun=known is not None and known.sealed
        )
        payment = read_payment(headers, offer.requirements())
        if payment is None:
            if known is not None and known.pays_no_more:
                raise too_many_payments()
            last = known.money.payment() if known else None
            estimate = self.conditions.estimate(contract, capability, load)
            raise PaymentRequired(offer, (last.code if last else "") or "payment required", **estimate)
        expect_payment(payment, offer, load.at)
        if known is None or not known.sealed:
            self.conditions.check_hosts(hooks, webhook_url)
        order = Order(contract, capability, body, offer, payment, hooks)
        return self.checkout.take(order, load, waits=request_waits(headers))

    def _has_landed(self, contract: Contract, offer: Offer, headers: Mapping[str, str]) -> bool:
        """Whether the request's payment was found on the chain; if so, binds it to this contract."""
        payment = read_payment(headers, offer.requirements())
        return payment is not None and self.found.take(contract, payment_key(payment))


def _pays(headers: Mapping[str, str]) -> bool:
    return "PAYMENT-SIGNATURE" in headers or "X-PAYMENT" in headers
