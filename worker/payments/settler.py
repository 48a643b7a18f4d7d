"""Drives payments to their outcome: verifies, settles, and repeats calls until the outcome is known.

The same settler serves waiting requests (in the web process, outliving the request) and the clock.
Only the clock has the chain.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar

import structlog

from worker.core.errors import Problem
from worker.core.ids import new_id
from worker.engine.transitions import SETTLE_GRACE_US, ExecutionStore
from worker.files.store import Files
from worker.payments.answers import SettledAnswer, VerifiedAnswer
from worker.payments.chain import MICROSECONDS, ChainEvidence, ChainUnavailable
from worker.payments.checkpoints import Checkpoint, unarmed
from worker.payments.evidence import ChainVerdict, look
from worker.payments.facilitator import Facilitator
from worker.payments.known_payers import KnownPayers
from worker.payments.ledger import Ledger, SettledReply
from worker.payments.ledger_reader import Reading
from worker.payments.packed_payment import SentPayment
from worker.payments.payment import PaymentState
from worker.payments.settlement_call import renewing
from worker.payments.settlement_lease import SEAL_TOKEN, SETTLE_LEASE_US, ClaimedPayment, SettlementLease
from worker.store.outage import insist
from worker.x402.facilitator_answers import (
    FacilitatorAnswer,
    Invalid,
    Settled,
    SettlementRefused,
    SettlementUnknown,
    Valid,
    classify_settle,
    classify_verify,
)
from worker.x402.receipts import Settlement, Sign, failed_response, settled_text
from worker.x402.wire import PaymentPayload, journaled, payment_key, restore

log = structlog.get_logger()
T = TypeVar("T")


class RecordVerified(Protocol):
    """Records that a payment is verified, and queues its work."""

    def __call__(self, id: str, number: int, *, waits: bool) -> tuple[VerifiedAnswer, str]: ...


class Settler:
    """Acts on one execution's money at a time; every step is a script that checks first."""

    def __init__(
        self,
        ledger: Ledger,
        store: ExecutionStore,
        facilitator: Facilitator,
        *,
        sign: Sign,
        push: Callable[[str], None],
        push_verified: RecordVerified | None = None,
        resource_url: str,
        chain: ChainEvidence | None = None,
        presume: bool = True,
        checkpoint: Checkpoint = unarmed,
        files: Files | None = None,
    ) -> None:
        self._files = files
        self._ledger = ledger
        self._store = store
        self._facilitator = facilitator
        self._sign = sign
        self._push = push
        self._push_verified = push_verified
        self._resource_url = resource_url
        self._chain = chain
        # Presume only where no process can ask a chain; here perhaps only the clock can.
        self._presume = presume and chain is None
        self.checkpoint = checkpoint
        self.known_payers = KnownPayers()

    def attend(self, id: str) -> None:
        """Does whatever the execution's money is due for."""
        money = self._ledger.money(id)
        payment = money.payment() if money else None
        if payment is None:
            return
        if payment.state is PaymentState.CLAIMED:
            if self._ledger.safe.kept():
                self.verify(id, payment.number)
        else:
            self.settle(id)

    def verify(
        self,
        id: str,
        number: int,
        claimed: tuple[str, str] | None = None,
        asked: Callable[[], FacilitatorAnswer] | None = None,
        *,
        queued: bool = False,
        before_record: Callable[[], None] = lambda: None,
        waited_for: Callable[[], bool] = lambda: False,
    ) -> str:
        """Returns 'working', 'settling', 'offered', 'payment_due', 'unsure' or 'gone'.

        `claimed`: payload and requirements as the caller has just stored them. `asked`: awaits the answer, if
        the facilitator was asked before. `queued`: its work waits in the queue once it is verified.
        `before_record` is called when the facilitator has answered, and `waited_for` then tells whether the
        request that claimed it waits here.
        """
        payload, requirements = claimed or self._ledger.payload(id, number)
        answer = self.ask(payload, requirements) if asked is None else asked()
        verdict = classify_verify(answer)
        before_record()
        if isinstance(verdict, Valid):
            push_verified = self._push_verified if queued else None
            record = push_verified or self._ledger.verified
            waits = waited_for()
            status, lane = self._insist(lambda: record(id, number, waits=waits))
            self.checkpoint("after_verified")
            if push_verified is None:
                self._queued(id, status, lane)
            return status
        if isinstance(verdict, Invalid):
            if verdict.nonce_used:
                return self._used(id, number, payload, verdict.code)
            return self._verify_refused(id, number, verdict.code)
        return self._unsure(id, number, verdict.cause)

    def ask(self, payload: str, requirements: str) -> FacilitatorAnswer:
        """Asks the facilitator whether it would settle the payment."""
        self.checkpoint("before_verify")
        answer = self._facilitator.verify(journaled(payload), journaled(requirements))
        self.checkpoint("after_verify")
        return answer

    def _used(self, id: str, number: int, payload: str, code: str) -> str:
        """The nonce was used before we ever settled: by a call that the store forgot, or by the payer."""
        if self._chain is None:
            refuse = self._verify_refused if self._presume else self._unsure
            return refuse(id, number, code)
        found = self._look(payload)
        if found is None:
            return self._unsure(id, number, code)
        if not found.transaction or self.predates(id, found.time_us):
            return self._verify_refused(id, number, code)
        return self.record_settled(id, number, found.transaction, "chain")

    def predates(self, id: str, time_us: int) -> bool:
        """Whether a block is older than the contract: its transfer bought something else."""
        execution = self._store.get(id)
        created = execution.contract_created if execution else 0
        # Block times are whole seconds.
        return time_us < created // MICROSECONDS * MICROSECONDS

    def _verify_refused(self, id: str, number: int, code: str) -> str:
        log.info("payment.verify_refused", execution_id=id, code=code)
        answer, input_file = self._insist(lambda: self._ledger.verify_refused(id, number, code))
        self._delete(input_file)
        return answer

    def forget_unpaid(self, id: str) -> None:
        """Deletes the input of cancelled work that never began and was not paid for."""
        self._delete(self._ledger.forget_unpaid(id))

    def _delete(self, input_file: str) -> None:
        if input_file and self._files is not None:
            with suppress(Problem):  # the decision stands even if the file cannot be deleted
                self._files.delete(json.loads(input_file)["key"])

    def _unsure(self, id: str, number: int, cause: str) -> str:
        log.warning("payment.verify_unknown", execution_id=id, cause=cause)
        self._insist(lambda: self._ledger.ask_again(id, number, "verify"))
        return "unsure"

    def settle(self, id: str) -> Reading | None:
        """Makes one settle call, if it is due and nobody else is calling; returns what it completed."""
        token = new_id()
        self.checkpoint("before_settle_begin")
        lease = self._ledger.settle_begin(id, token, looks=self._chain is not None)
        if lease is None:
            return None
        if not lease.replicated:
            # A replica that took over without this write would not know of the call.
            self._ledger.settle_back(id, lease.number, token)
            return None
        return self._call(id, lease)

    def settle_sealed(
        self,
        id: str,
        payment: ClaimedPayment,
        told: bytes,
        sealed_after: float,
        completed: Callable[[Reading], None],
    ) -> Reading | None:
        """Makes the call whose lease came with the seal, which came after that moment (monotonic).

        `completed` is called as soon as the work is recorded as completed.
        """
        self.checkpoint("before_settle_begin")
        return self._call(id, self._ledger.lease_with_seal(payment, told, sealed_after), completed)

    def settle_unheard(self, id: str, number: int) -> Reading | None:
        """Settles where the lease came with the seal to this process, which has not heard of it yet."""
        self.give_back(id, number)
        return self.settle(id)

    def give_back(self, id: str, number: int) -> None:
        """Leaves a settlement whose lease came with the seal to whoever asks for it next."""
        back = partial(self._ledger.settle_back, id, number, SEAL_TOKEN, pause_us=0)
        insist(back, "payment", patience=SETTLE_GRACE_US / 1e6)

    def _call(
        self, id: str, lease: SettlementLease, completed: Callable[[Reading], None] | None = None
    ) -> Reading | None:
        self.checkpoint("after_settle_begin")
        payload = lease.payload.decode()
        with self._renewing(id, lease) as held:
            if lease.earlier_unknown and self._ended_by_chain(id, lease):
                return None
            if lease.refusal:
                self._doubted(id, lease, lease.refusal)
                return None
            if not held():
                return None
            self.checkpoint("before_settle")
            asked = time.monotonic()
            answer = self._facilitator.settle(journaled(payload), journaled(lease.requirements.decode()))
            took = time.monotonic() - asked
        self.checkpoint("after_settle")
        outcome = classify_settle(answer, earlier_unknown=lease.earlier_unknown)
        reading: Reading | None = None
        if isinstance(outcome, Settled):
            reading = self._record_settled(
                id,
                lease.number,
                outcome.transaction,
                "facilitator",
                payload,
                requirements=lease.requirements.decode(),
                contract_ref=lease.contract_ref,
                by_claimant=lease.token == SEAL_TOKEN,
                settle_ms=round(took * 1_000),
                completed=completed,
            ).reading
        elif isinstance(outcome, SettlementRefused):
            self._refused_by_facilitator(id, lease, outcome.code)
        else:
            self._unknown(id, lease, outcome)
        self.checkpoint("after_outcome")
        return reading

    def record_settled(
        self, id: str, number: int, transaction: str, how: str, payload: str | None = None
    ) -> str:
        """Records that the money moved. Must succeed: waits while the store is unavailable.

        The caller passes its own copy of `payload`, because the store may have lost the payment meanwhile.
        """
        payload = payload or self._insist(lambda: self._ledger.payload(id, number))[0]
        return self._record_settled(id, number, transaction, how, payload).answer

    def _record_settled(
        self,
        id: str,
        number: int,
        transaction: str,
        how: str,
        payload: str,
        *,
        requirements: str = "",
        contract_ref: str = "",
        by_claimant: bool = False,
        settle_ms: int | None = None,
        completed: Callable[[Reading], None] | None = None,
    ) -> SettledReply:
        payment = restore(payload)
        response = self._response(payment, transaction)
        sent = SentPayment(payload, requirements, payment_key(payment)) if requirements else None
        self.checkpoint("before_settled")
        reply = self._insist(
            lambda: self._ledger.settled(
                id,
                number,
                transaction,
                response,
                how,
                sent=sent,
                contract_ref=contract_ref,
                by_claimant=by_claimant,
            )
        )
        if reply.answer is SettledAnswer.COMPLETED:
            self.known_payers.paid(payment.authorization.payer)
            if completed is not None and reply.reading is not None:
                completed(reply.reading)
        log.info(
            "payment.settled",
            execution_id=id,
            how=how,
            transaction=transaction,
            status=reply.answer,
            settle_ms=settle_ms,
        )
        self._queued(id, reply.answer, reply.lane)
        return reply

    def response(self, payload: str, transaction: str) -> str:
        """The PAYMENT-RESPONSE of a payment that landed in this transaction."""
        return self._response(restore(payload), transaction)

    def _response(self, payment: PaymentPayload, transaction: str) -> str:
        settlement = Settlement(
            network=payment.accepted.network,
            resource_url=str((payment.resource or {}).get("url") or self._resource_url),
            payer=payment.authorization.payer,
            transaction=transaction,
            issued_at_s=int(time.time()),
        )
        return settled_text(settlement, self._sign)

    def _refused_by_facilitator(self, id: str, lease: SettlementLease, code: str) -> None:
        """Where a node is configured, asks for no second payment before one look at the chain."""
        if self._presume:
            self._refused(id, lease, code)
            return
        self._doubted(id, lease, code)
        if self._chain is not None:
            self.settle(id)

    def _doubted(self, id: str, lease: SettlementLease, code: str) -> None:
        status = self._insist(lambda: self._ledger.settle_doubted(id, lease.number, lease.token, code))
        log.info("payment.refusal_doubted", execution_id=id, code=code, status=status)

    def _refused(self, id: str, lease: SettlementLease, code: str, *, by_chain: bool = False) -> None:
        network = json.loads(lease.requirements)["network"]
        response = json.dumps(failed_response(code, network, lease.payer), separators=(",", ":"))
        phase = self._insist(
            lambda: self._ledger.settle_refused(id, lease.number, code, response, by_chain=by_chain)
        )
        log.warning("payment.settle_refused", execution_id=id, code=code, phase=phase)

    def _unknown(self, id: str, lease: SettlementLease, outcome: SettlementUnknown) -> None:
        payload = lease.payload.decode()
        # Before a repeated call the chain was asked already; ask once per round.
        if not lease.earlier_unknown and self._ended_by_chain(id, lease, outcome.transaction or ""):
            return
        if self._presume and lease.may_have_landed and outcome.nonce_used:
            # Our own re-send met a used nonce and there is no chain to ask: our transfer has landed.
            self.record_settled(id, lease.number, outcome.transaction or "", "presumed", payload)
            return
        log.warning("payment.settle_unknown", execution_id=id, cause=outcome.cause)
        self._insist(
            lambda: self._ledger.settle_unknown(
                id,
                lease.number,
                lease.token,
                outcome.cause,
                outcome.transaction or "",
                may_have_landed=not outcome.nonce_used,
            )
        )

    def _ended_by_chain(self, id: str, lease: SettlementLease, named: str = "") -> bool:
        """Whether one look at the chain decided it: it landed, it never can, or a refusal is true."""
        payload = lease.payload.decode()
        found = self._look(payload, named or lease.named)
        if found is None:
            return False
        if found.transaction:
            self.record_settled(id, lease.number, found.transaction, "chain", payload)
        elif found.impossible:
            self._refused(id, lease, lease.refusal or "authorization_cannot_land", by_chain=True)
        elif lease.refusal and not found.undecided and found.seen_us >= lease.refused_us:
            # A block younger than the refusal shows that the money has not moved.
            self._refused(id, lease, lease.refusal, by_chain=True)
        else:
            return False
        return True

    def _look(self, payload: str, named: str = "") -> ChainVerdict | None:
        if self._chain is None:
            return None
        try:
            return look(self._chain, restore(payload), named)
        except ChainUnavailable:
            log.warning("payment.chain_away")
            return None

    def _queued(self, id: str, status: str, lane: str) -> None:
        if status == "working" and lane == "queue":
            self._push(id)

    @contextmanager
    def _renewing(self, id: str, lease: SettlementLease) -> Iterator[Callable[[], bool]]:
        """Keeps other callers out during the call; the lease expires soon after this process dies.

        Yields a check whether the lease is still ours: a process that was frozen may have lost it.
        """

        def renew() -> bool:
            return self._ledger.settle_renew(id, lease.number, lease.token)

        def held() -> bool:
            if time.monotonic() < lease.renew_at:
                return True
            return insist(renew, "payment", patience=SETTLE_LEASE_US / 1e6)

        # A lease whose time for that has come is renewed by `held`, before the call.
        first = lease.renew_at if time.monotonic() < lease.renew_at else None
        with renewing(renew, SETTLE_LEASE_US / 3e6, first):
            yield held

    def _insist(self, write: Callable[[], T]) -> T:
        """Retries money writes for as long as the store is unavailable; after a bug the clock takes over."""
        return insist(write, "payment")
