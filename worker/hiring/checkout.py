"""Takes a payment for work: has it verified, claims it, and begins the task that it buys."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from worker.capabilities.declare import Capability
from worker.contracts.book import Contract, ContractBook
from worker.contracts.terms import BEFORE_WORK
from worker.core.errors import Conflict, Unavailable
from worker.core.states import Lane
from worker.delivery.webhooks import WebhookTarget
from worker.engine.load import Load
from worker.engine.service import lane_of
from worker.hiring.claims import Claims, PreparedClaim, proves_payer, sent_payment
from worker.hiring.conditions import SHORT_BYTES, MayBePaid, PaymentConditions
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
from worker.store.scripts import Reply
from worker.x402.offer import Offer
from worker.x402.wire import PaymentPayload, restore

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

    def take(
        self,
        contract: Contract,
        capability: Capability,
        body: TaskInput,
        offer: Offer,
        payment: PaymentPayload,
        hooks: list[WebhookTarget],
        load: Load,
        *,
        waits: bool,
    ) -> Task | None:
        """Claims a payment that fits its offer; None if a concurrent request won.

        `waits`: the request waits for the end of the work.
        """
        sent = sent_payment(payment, offer)
        first = contract.execution is None and contract.terms.settlement != BEFORE_WORK
        promised = contract.terms.max_latency_ms is not None
        short = lane_of(capability) is Lane.EXPRESS and len(body.raw) <= SHORT_BYTES and not promised
        early = None
        may = waits and first and short and proves_payer(payment) and self.claims.ledger.safe.alone
        if may and self.settler.known_payers.may_ask(payment.authorization.payer, sent.key):
            early = EarlyVerification(partial(self.settler.ask, sent), self.spawn)
        prepared = self.claims.prepare(
            contract,
            capability,
            body,
            offer,
            payment,
            sent,
            hooks,
            most_ahead=self.conditions.most_ahead(contract, capability, load),
            assumed_us=load.at if load.assumed else None,
        )
        return self._claim(prepared, contract, capability, offer, payment, early)

    def _claim(
        self,
        prepared: PreparedClaim,
        contract: Contract,
        capability: Capability,
        offer: Offer,
        payment: PaymentPayload,
        early: EarlyVerification | None,
    ) -> Task | None:
        """Makes the claim, and starts what follows."""
        agreed = early is not None and early.agreed(_EARLY_SECONDS)
        self.settler.checkpoint("before_claim")
        began = time.monotonic()
        made = self.claims.make(prepared, verified=agreed, waits=self.tasks.listens)
        self.settler.checkpoint("after_claim")
        if made.reply.answer is not ClaimAnswer.CLAIMED:
            return self._not_claimed(made.reply, contract, offer)
        self.book.learn(replace(contract, execution=made.id))
        # The clock handles a claim that no replica has yet.
        calls = None
        if made.reply.values[1]:
            number, sent = int(made.reply.text()), prepared.sent
            claimed = ClaimedPayment(
                number, sent.payload, sent.requirements, payment.authorization.payer, contract.ref
            )
            calls = OwnCalls(self.spawn, claimed)
            if made.begun:
                calls.recorded_at = calls.began_after = began
            else:
                begins = contract.execution is None and contract.terms.settlement != BEFORE_WORK
                queued = begins and lane_of(capability) is Lane.QUEUE
                self._verify(made.id, calls, claimed, early, queued=queued)
        return self.tasks.begun(contract, capability, made.id, calls)

    def _verify(
        self,
        id: str,
        calls: OwnCalls,
        claimed: ClaimedPayment,
        early: EarlyVerification | None,
        *,
        queued: bool,
    ) -> None:
        """Starts the verification, or goes on with an early one; it outlives the request."""
        calls.verify(
            lambda: self.settler.verify(
                id,
                claimed.number,
                (claimed.payload, claimed.requirements),
                early.answer if early is not None else None,
                queued=queued,
                before_record=calls.about_to_record,
                waited_for=lambda: self.tasks.waits(id, claimed.number),
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
        payment = restore(found.payload)
        sent = sent_payment(payment, offer)
        prepared = self.claims.prepare(contract, capability, body, offer, payment, sent, hooks)
        made = self.claims.make(prepared)
        id, reply = made.id, made.reply
        self.settler.checkpoint("after_claim_found")
        if reply.answer is not ClaimAnswer.CLAIMED:
            return self._not_claimed(reply, contract, offer)
        self.settler.record_settled(id, int(reply.text()), found.transaction, "chain", found.payload)
        return replace(self.tasks.read(contract, id), first=True, paid_already=paying)

    def _not_claimed(self, reply: Reply[ClaimAnswer], contract: Contract, offer: Offer) -> Task | None:
        """Raises why the claim failed; None if the record now has the answer."""
        match reply.answer:
            case ClaimAnswer.SAME:
                # Same payment as before; if it failed, it is not tried again.
                task = self.tasks.read(contract, reply.text())
                if task.unpaid:
                    raise task.refusal(offer)
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
