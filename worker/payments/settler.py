"""Drives payments to their outcome: settles them, and repeats calls until the outcome is known.

The same settler serves waiting requests (in the web process, outliving the request) and the clock.
Only the clock has the chain.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import structlog

from worker.core.ids import new_id
from worker.engine.transitions import SETTLE_GRACE_US, ExecutionStore
from worker.files.store import Files
from worker.payments.chain import ChainEvidence
from worker.payments.checkpoints import Checkpoint, unarmed
from worker.payments.evidence import look_up
from worker.payments.facilitator import Facilitator
from worker.payments.known_payers import KnownPayers
from worker.payments.ledger import Ledger
from worker.payments.ledger_reader import Reading
from worker.payments.payment import PaymentState
from worker.payments.settled_payments import SettledPayments
from worker.payments.settlement_call import renewing
from worker.payments.settlement_lease import SEAL_TOKEN, SETTLE_LEASE_US, ClaimedPayment, SettlementLease
from worker.payments.verifier import RecordVerified, Verifier
from worker.store.outage import insist
from worker.x402.facilitator_answers import Settled, SettlementRefused, SettlementUnknown, classify_settle
from worker.x402.receipts import Sign, failed_response
from worker.x402.wire import journaled

log = structlog.get_logger()
T = TypeVar("T")


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
        self._ledger = ledger
        self._facilitator = facilitator
        self._chain = chain
        # Presume only where no process can ask a chain; here perhaps only the clock can.
        self._presume = presume and chain is None
        self.checkpoint = checkpoint
        self.known_payers = KnownPayers()
        self.settled = SettledPayments(
            ledger,
            sign=sign,
            push=push,
            resource_url=resource_url,
            known_payers=self.known_payers,
            checkpoint=self._reach,
        )
        self.verifier = Verifier(
            ledger,
            store,
            facilitator,
            self.settled,
            push_verified=push_verified,
            chain=chain,
            presume=self._presume,
            files=files,
            checkpoint=self._reach,
        )

    def _reach(self, point: str) -> None:
        """Looked up each time: a test may arm another one."""
        self.checkpoint(point)

    def attend(self, id: str) -> None:
        """Does whatever the execution's money is due for."""
        money = self._ledger.money(id)
        payment = money.payment() if money else None
        if payment is None:
            return
        if payment.state is PaymentState.CLAIMED:
            if self._ledger.safe.kept():
                self.verifier.verify(id, payment.number)
        else:
            self.settle(id)

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
        renew = partial(self._ledger.settle_renew, id, lease.number, lease.token)
        # A lease whose time for that has come is renewed by `_held`, before the call.
        first = lease.renew_at if time.monotonic() < lease.renew_at else None
        with renewing(renew, SETTLE_LEASE_US / 3e6, first):
            if lease.earlier_unknown and self._ended_by_chain(id, lease):
                return None
            if lease.refusal:
                self._doubted(id, lease, lease.refusal)
                return None
            if not _held(lease, renew):
                return None
            self.checkpoint("before_settle")
            asked, requirements = time.monotonic(), lease.requirements.decode()
            call = self._facilitator.begin_settle(journaled(payload), journaled(requirements))
            # Meanwhile the facilitator does its part.
            packed = self.settled.pack(payload, requirements)
            answer = call.answer()
            took = time.monotonic() - asked
        self.checkpoint("after_settle")
        outcome = classify_settle(answer, earlier_unknown=lease.earlier_unknown)
        reading: Reading | None = None
        if isinstance(outcome, Settled):
            reading = self.settled.record(
                id,
                lease.number,
                outcome.transaction,
                "facilitator",
                payload,
                packed=packed,
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
        return self.settled.record(id, number, transaction, how, payload).answer

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
        found = look_up(self._chain, payload, named or lease.named)
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

    def _insist(self, write: Callable[[], T]) -> T:
        """Retries money writes for as long as the store is unavailable; after a bug the clock takes over."""
        return insist(write, "payment")


def _held(lease: SettlementLease, renew: Callable[[], bool]) -> bool:
    """Whether the lease is still ours: a process that was frozen may have lost it."""
    return time.monotonic() < lease.renew_at or insist(renew, "payment", patience=SETTLE_LEASE_US / 1e6)
