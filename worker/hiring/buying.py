"""Implements `POST /buy/{capability}`: a purchase by payment alone, without a contract.

A purchase is an execution whose terms are the offer that its payment accepted. It takes the same steps as a
contract: claim, verify, work, seal, settle. Its identity is the payment, bound to one capability and input.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from worker.capabilities.declare import Capability
from worker.contracts.book import Contract
from worker.contracts.terms import BEFORE_WORK
from worker.core.errors import Conflict, NotFound, Problem, Unauthorized, Unavailable
from worker.core.ids import is_id
from worker.engine.listing import Filter
from worker.engine.load import Load
from worker.engine.record import Execution
from worker.hiring.checkout import request_waits
from worker.hiring.order import Order
from worker.hiring.payment_match import expect_payment, signed_by_payer
from worker.hiring.purchase_terms import PurchaseTerms, shows_secret, signed_us, without_secret
from worker.hiring.refusals import no_task, result_expired, tell_of_money
from worker.hiring.service import Hiring
from worker.hiring.sign_ins import SignIns
from worker.hiring.task import PaymentRequired, Task, TaskInput
from worker.payments.claim import FAR_US
from worker.payments.facts import Facts
from worker.payments.payment import PaymentState
from worker.x402.offer import Offer
from worker.x402.sign_in import SIGN_IN_HEADER
from worker.x402.wire import PaymentPayload, payment_key, read_any_payment, read_payment, restore

MOST_LISTED = 50
# A concurrent copy may win the race between reading the record and the claim, once or twice.
_TRIES = 3
_PREPAID = " You pay before the work begins; failed work is refunded."

ListingDetails = Callable[[Capability, Offer], Offer]


class SignInRequired(Unauthorized):
    """The payment is public on the chain, so it no longer grants access."""

    code = "SIGN_IN_REQUIRED"
    message = "a payment that was sent to settlement proves nothing"
    advice = "Read the task with its token, or sign in with the wallet that paid: see details.extensions."

    def __init__(self, task: Task, challenge: Mapping[str, Any]) -> None:
        super().__init__(task_id=task.execution.id, extensions=challenge)
        self.task = task
        self.charged = task.charged
        self.pending = task.under_way


@dataclass(frozen=True)
class Buying:
    """Decides how a request to the plain door is answered: from the record, a refusal, a 402, or the work."""

    hiring: Hiring
    terms: PurchaseTerms
    sign_ins: SignIns
    address: Callable[[str], str]
    advertise: ListingDetails = lambda capability, offer: offer

    def quote(
        self, name: str, body: TaskInput | None, webhook_url: str | None = None, network: str = ""
    ) -> Problem:
        """The 402 for a request without a payment; without a body there is nothing to check."""
        conditions = self.hiring.conditions
        capability = self._sold(name)
        # A price by input is at most the capability's, which is also what an empty probe is quoted.
        if body is None:
            load = conditions.current_load(capability)
            contract = self.terms.offered(capability, capability.price, load.at)
            conditions.check_working(load)
        else:
            facts = conditions.purchase_facts(capability)
            load = facts.load
            contract = self.terms.offered(capability, capability.price, load.at)
            conditions.check_admission(contract, capability, body, facts, network)
            conditions.webhook_targets(contract, webhook_url)
            price = conditions.author_check(capability, body, "", network)
            contract = self.terms.offered(capability, price, load.at)
        estimate = conditions.estimate(contract, capability, load)
        return PaymentRequired(self._offer(contract, capability, load), "payment required", **estimate)

    def buy(
        self,
        name: str,
        body: TaskInput,
        headers: Mapping[str, str],
        webhook_url: str | None = None,
        network: str = "",
    ) -> Task:
        """Answers from the record, refuses, issues a 402, or claims the payment and starts the work.

        `network`: where the request comes from.
        """
        payment = read_any_payment(headers, self.hiring.conditions.network)
        if payment is None:
            raise self.quote(name, body, webhook_url, network)
        book = self.hiring.book
        ref = book.purchase_ref(payment_key(payment))
        try:
            capability = self._sold(name)
        except Problem:  # it may have been sold when this payment bought it
            known = self._known(ref)
            if known is not None:
                return self._from_record(known, name, body, payment, headers)
            self.hiring.refuse_expired((ref,), headers)
            raise
        remembered = book.remembers(ref)
        sell = partial(self._sell, capability, ref, body, payment, headers, webhook_url, network)
        if not remembered:
            conditions = self.hiring.conditions
            task = conditions.at_once(capability, body, sell, hooked=bool(webhook_url))
            if task is not None:
                return task
        for tried in range(_TRIES):
            # Most payments are new, which the facts tell in a round trip that is needed anyway.
            known = self._known(ref) if tried or remembered else None
            if known is not None:
                return self._from_record(known, name, body, payment, headers)
            task = sell()
            if task is not None:
                return task
        raise Unavailable(
            "too many copies of this request at once", code="WORKER_BUSY", retry_after=1, charge_known=False
        )

    def offer_again(self, task: Task) -> Problem:
        """The 402 for a task whose payment failed. Another payment makes another purchase."""
        conditions, capability = self.hiring.conditions, task.capability
        load = conditions.current_load(capability)
        conditions.check_deliverable(task.contract, capability, load)
        contract = self.terms.offered(capability, task.contract.terms.price_text, load.at)
        return task.refusal(self._offer(contract, capability, load))

    def find(self, task_id: str, token: str, sign_in: str) -> Task:
        """The task for callers with its token or signed in as its payer; unknown to all others."""
        found = self.hiring.ledger.read(task_id) if is_id(task_id) else None
        contract = self.hiring.book.by_ref(found.execution.contract) if found else None
        if contract is None or not contract.is_purchase:
            raise no_task()
        if token and hmac.compare_digest(token.encode(), contract.terms.contract_id.encode()):
            return self.hiring.tasks.read(contract, task_id)
        if sign_in and self.sign_ins.wallet(sign_in) == contract.terms.seeker_wallet.lower():
            return self.hiring.tasks.read(contract, task_id)
        raise no_task()

    def challenge(self) -> dict[str, Any]:
        """What a wallet signs to sign in."""
        return {"extensions": dict(self.sign_ins.extension())}

    def bought_by(self, sign_in: str) -> list[Execution]:
        """The signed-in wallet's newest purchases."""
        wallet = self.sign_ins.wallet(sign_in)
        filter = Filter(door="buy", labels=(("payer", wallet),))
        return self.hiring.tasks.executions.page(filter, limit=MOST_LISTED).executions

    # The record

    def _known(self, ref: str) -> Task | None:
        contract = self.hiring.book.by_ref(ref)
        if contract is None or contract.execution is None:
            return None
        return self.hiring.tasks.read(contract, contract.execution)

    def _from_record(
        self, task: Task, name: str, body: TaskInput, payment: PaymentPayload, headers: Mapping[str, str]
    ) -> Task:
        if task.execution.agent != name or not body.same_as(task.execution):
            refused = _other_request()
            tell_of_money(refused, task)
            raise refused
        if task.unpaid:
            raise self.offer_again(task)
        if not self._proves(task, payment, headers):
            raise SignInRequired(task, self.sign_ins.extension())
        return replace(task, replayed=task.execution.state.terminal)

    def _proves(self, task: Task, payment: PaymentPayload, headers: Mapping[str, str]) -> bool:
        """Whether only the payer can have sent the request."""
        sign_in = headers.get(SIGN_IN_HEADER)
        if sign_in is not None:
            return self.sign_ins.wallet(sign_in) == task.contract.terms.seeker_wallet.lower()
        if not _may_be_public(task):
            stored = restore(self.hiring.ledger.payload(task.execution.id, task.money.current)[0])
            return hmac.compare_digest(stored.signature, payment.signature)
        return shows_secret(task.contract, payment)

    # Before money

    def _sold(self, name: str) -> Capability:
        capability = self.hiring.catalog.get(name)
        if capability is None or name not in self.hiring.listing().capabilities:
            raise NotFound("this worker sells no such capability", advice="See /manifest for what it sells.")
        return capability

    def _offer(self, contract: Contract, capability: Capability, load: Load) -> Offer:
        """The offer as a 402 shows it."""
        return self._shown(capability, self._bare_offer(contract, capability, load), load)

    def _bare_offer(self, contract: Contract, capability: Capability, load: Load) -> Offer:
        """The offer that payments are compared with."""
        offer = self.hiring.conditions.offer(contract, capability, load)
        prepaid = contract.terms.settlement == BEFORE_WORK
        return replace(
            offer,
            resource_url=self.address(capability.name),
            description=offer.description + (_PREPAID if prepaid else ""),
            network_word=None,
        )

    def _shown(self, capability: Capability, offer: Offer, load: Load) -> Offer:
        return self.advertise(capability, replace(offer, extensions=self.sign_ins.extension(load.at)))

    def _sell(
        self,
        capability: Capability,
        ref: str,
        body: TaskInput,
        payment: PaymentPayload,
        headers: Mapping[str, str],
        webhook_url: str | None,
        network: str,
        facts: Facts | None = None,
    ) -> Task | None:
        """Refuses, issues a 402, or claims; None if a copy of the request won: the record has the answer.

        `facts`: what may be assumed, if it need not be read.
        """
        conditions = self.hiring.conditions
        window_s = conditions.purchase_window_s(capability)
        wallet, ends_s = payment.authorization.payer, payment.authorization.valid_before
        read_facts = partial(
            conditions.purchase_facts,
            capability,
            ref=ref,
            key=payment_key(payment),
            signed_us=min(FAR_US, signed_us(ends_s, window_s)),
        )
        facts = facts or read_facts(payer=wallet)
        if facts.executed:
            return None
        if facts.bought is not None and facts.bought.contract_ref == ref:
            raise result_expired(facts.bought)
        proven = signed_by_payer(payment, conditions.network)
        if not proven:
            # Until a signature proves it, the payer is an unverified claim without a budget of its own.
            wallet = ""
            facts = read_facts(payer=wallet)
            if facts.executed:
                return None
        load = facts.load
        open_terms = self.terms.offered(capability, capability.price, load.at)
        contract = self.terms.accepted(ref, capability, capability.price, load.at, payment, window_s)
        named = contract if proven else open_terms
        if conditions.may_have_paid(contract):
            conditions.check_not_held(contract, capability)
        conditions.check_admission(named, capability, body, facts, network)
        hooks = conditions.webhook_targets(contract, webhook_url)
        price = conditions.author_check(capability, body, wallet, network)
        if price != capability.price:
            open_terms = self.terms.offered(capability, price, load.at)
            contract = self.terms.accepted(ref, capability, price, load.at, payment, window_s)
        offer = self._bare_offer(open_terms, capability, load)
        in_full = read_payment(headers, offer.requirements()) or payment
        try:
            expect_payment(in_full, offer, load.at, proven=proven)
            conditions.check_hosts(hooks, webhook_url)
            order = Order(contract, capability, body, offer, _as_stored(in_full, offer), hooks)
            return self.hiring.checkout.take(order, load, waits=request_waits(headers))
        except PaymentRequired as refused:
            refused.offer = self._shown(capability, refused.offer, load)
            raise


def _as_stored(payment: PaymentPayload, offer: Offer) -> PaymentPayload:
    """The payment without its secret; V1 payments name no resource, but the receipt does."""
    if payment.version == 1:
        payment = replace(payment, raw={**payment.raw, "resource": {"url": offer.resource_url}})
    return without_secret(payment)


def _may_be_public(task: Task) -> bool:
    """Whether a payment of the task was sent to settlement, and so may be public on the chain."""
    sent = (PaymentState.SETTLING, PaymentState.UNKNOWN, PaymentState.SETTLED)
    return any(payment.calls or payment.state in sent for payment in task.money.payments)


def _other_request() -> Conflict:
    return Conflict(
        "this payment was already used for another capability or input",
        code="IDEMPOTENCY_CONFLICT",
        advice="Send the first request again to get its answer; another one needs another payment.",
        charge_known=False,
    )
