"""Takes a payment for work: has it verified, claims it, and begins the task that it buys."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from worker.capabilities.declare import Capability
from worker.contracts.book import Contract, ContractBook
from worker.core.errors import Conflict, Unavailable
from worker.core.states import Lane
from worker.delivery.webhooks import WebhookTarget
from worker.engine.load import Load
from worker.hiring.claims import Claims
from worker.hiring.conditions import MayBePaid, PaymentConditions
from worker.hiring.order import Order
from worker.hiring.own_calls import OwnCalls
from worker.hiring.refusals import no_contract, other_input, payment_used
from worker.hiring.task import Task, TaskInput, too_many_payments
from worker.hiring.tasks import Tasks
from worker.payments.answers import ClaimAnswer
from worker.payments.budget import UnpaidWork
from worker.payments.early_verification import EarlyVerification
from worker.payments.found import FoundMoney
from worker.payments.settlement_lease import ClaimedPayment
from worker.payments.settler import Settler
from worker.store.outage import note
from worker.store.scripts import Reply
from worker.x402.wire import restore

# How long the claim of a known payer's payment waits for the facilitator. A request that is sent again
# meanwhile, or asks for its task, finds none yet.
_EARLY_SECONDS = 0.25


@dataclass(frozen=True)
class Checkout:
    """A stranger's payment is claimed first: then one call to the facilitator is all that its copies cost.

    That of a wallet which has paid here is verified first, and the answer is recorded with the claim, which
    saves a round trip to the store. No money has moved by then, so a process may die at any point before.
    """

    book: ContractBook
    tasks: Tasks
    settler: Settler
    conditions: PaymentConditions
    claims: Claims
    found: FoundMoney
    spawn: Callable[[Callable[[], object]], None]

    def take(self, order: Order, load: Load, *, waits: bool) -> Task | None:
        """Claims the payment; None if a concurrent request won.

        `waits`: the request waits for the end of the work.
        """
        early = self._ask_early(order) if waits else None
        try:
            # Meanwhile the facilitator does its part.
            prepared = self.claims.prepare(
                order,
                most_ahead=self.conditions.most_ahead(order.contract, order.capability, load),
                assumed_us=load.at if load.assumed else None,
            )
        except BaseException:
            if early is not None:
                early.leave()
            raise
        agreed = early is not None and early.agreed(_EARLY_SECONDS)
        if agreed:
            self.settler.checkpoint("after_verify")
        self.settler.checkpoint("before_claim")
        claimed_after = time.monotonic()
        made = self.claims.make(prepared, verified=agreed, waits=self.tasks.listens)
        self.settler.checkpoint("after_claim")
        if made.reply.answer is not ClaimAnswer.CLAIMED:
            return self._not_claimed(made.reply, order)
        self.book.learn(replace(order.contract, execution=made.id))
        calls = None
        # The clock handles a claim that no replica has yet.
        if made.reply.values[1]:
            sent, number = order.sent, int(made.reply.text())
            payment = ClaimedPayment(number, sent.payload, sent.requirements, order.payer, order.contract.ref)
            calls = OwnCalls(self.spawn, payment)
            if made.begun:
                calls.begun_with_claim(claimed_after)
            else:
                self._verify(made.id, order, payment, calls, early)
        return self.tasks.begun(order.contract, order.capability, made.id, calls)

    def _ask_early(self, order: Order) -> EarlyVerification | None:
        """Asks the facilitator about the payment before it is claimed, if its wallet has earned that."""
        may = order.begins_work and order.is_short and order.proves_payer and self.claims.ledger.safe.alone
        if not may or not self.settler.known_payers.may_ask(order.payer, order.sent.key):
            return None
        try:
            call = self.settler.verifier.begin(order.sent.payload, order.sent.requirements)
        except Exception as error:  # a bug: the claim has no need of it
            note(error, "payment.early")
            call = None
        if call is None:
            # It must not wait for a facilitator that cannot be reached.
            self.settler.known_payers.not_asked(order.payer, order.sent.key)
            return None
        return EarlyVerification(call, self.spawn)

    def _verify(
        self,
        id: str,
        order: Order,
        payment: ClaimedPayment,
        calls: OwnCalls,
        early: EarlyVerification | None,
    ) -> None:
        """Starts the verification, or goes on with an early one; it outlives the request."""
        queued = order.begins_work and order.lane is Lane.QUEUE
        # It may wait for long, and keeps nothing of the order but this.
        calls.verify(
            lambda: self.settler.verifier.verify(
                id,
                payment.number,
                (payment.payload, payment.requirements),
                early.answer if early is not None else None,
                queued=queued,
                before_record=calls.about_to_record,
                waited_for=lambda: self.tasks.waits(id, payment.number),
            )
        )

    def take_found(
        self,
        contract: Contract,
        capability: Capability,
        body: TaskInput,
        load: Load,
        hooks: list[WebhookTarget],
        *,
        paying: bool,
    ) -> Task | None:
        """Claims a payment found on the chain; only the input was missing."""
        found = self.found.waiting_for(contract.ref)
        if found is None:
            return None
        offer = self.conditions.offer(contract, capability, load, sealed=True)
        order = Order(contract, capability, body, offer, restore(found.payload), hooks)
        made = self.claims.make(self.claims.prepare(order))
        id, reply = made.id, made.reply
        self.settler.checkpoint("after_claim_found")
        if reply.answer is not ClaimAnswer.CLAIMED:
            return self._not_claimed(reply, order)
        self.settler.record_settled(id, int(reply.text()), found.transaction, "chain", found.payload)
        return replace(self.tasks.read(contract, id), first=True, paid_already=paying)

    def _not_claimed(self, reply: Reply[ClaimAnswer], order: Order) -> Task | None:
        """Raises why the claim failed; None if the record now has the answer."""
        match reply.answer:
            case ClaimAnswer.SAME:
                # Same payment as before; if it failed, it is not tried again.
                task = self.tasks.read(order.contract, reply.text())
                if task.unpaid:
                    raise task.refusal(order.offer)
                return None
            case ClaimAnswer.EXISTS | ClaimAnswer.PAYING | ClaimAnswer.CLAIMED:
                return None
            case ClaimAnswer.FOUND | ClaimAnswer.LATE:
                return None
            case ClaimAnswer.CONFLICT:
                raise other_input()
            case ClaimAnswer.HELD:
                raise MayBePaid(int(reply.text()))
            case ClaimAnswer.USED:
                raise payment_used()
            case ClaimAnswer.IDENTIFIER:
                raise Conflict(
                    "this payment-identifier was used with another payment", code="PAYMENT_IDENTIFIER_USED"
                )
            case ClaimAnswer.PAYMENTS:
                raise too_many_payments()
            case ClaimAnswer.BUDGET:
                raise UnpaidWork.told(*reply.values)
            case ClaimAnswer.BUSY:
                # Concurrent claims took the room.
                raise Unavailable(
                    "more work waits than can be done in time", code="WORKER_BUSY", retry_after=15
                )
            case ClaimAnswer.UNSIGNED:
                raise no_contract()


def request_waits(headers: Mapping[str, str]) -> bool:
    """Whether the request waits for the end of the work, as far as is known before it is read whole."""
    return "Prefer" not in headers
