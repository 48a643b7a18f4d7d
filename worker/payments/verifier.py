"""Verifies claimed payments: asks the facilitator, and records what it says.

Copies of a stranger's payment cost one call, because only the payment that was claimed is asked about.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from worker.core.errors import Problem
from worker.engine.transitions import ExecutionStore
from worker.files.store import Files
from worker.payments.answers import VerifiedAnswer
from worker.payments.chain import MICROSECONDS, ChainEvidence
from worker.payments.checkpoints import Checkpoint
from worker.payments.evidence import look_up
from worker.payments.facilitator import Facilitator
from worker.payments.facilitator_call import OpenCall
from worker.payments.ledger import Ledger
from worker.payments.settled_payments import SettledPayments
from worker.store.outage import insist
from worker.x402.facilitator_answers import FacilitatorAnswer, Invalid, Valid, classify_verify
from worker.x402.wire import journaled

log = structlog.get_logger()


class RecordVerified(Protocol):
    """Records that a payment is verified, and queues its work."""

    def __call__(self, id: str, number: int, *, waits: bool) -> tuple[VerifiedAnswer, str]: ...


@dataclass
class Verifier:
    """`presume`: no process can ask a chain, so a refusal is believed."""

    ledger: Ledger
    store: ExecutionStore
    facilitator: Facilitator
    settled: SettledPayments
    push_verified: RecordVerified | None
    chain: ChainEvidence | None
    presume: bool
    files: Files | None
    checkpoint: Checkpoint

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
        payload, requirements = claimed or self.ledger.payload(id, number)
        answer = self._ask(payload, requirements) if asked is None else asked()
        self.checkpoint("after_verify")
        verdict = classify_verify(answer)
        before_record()
        if isinstance(verdict, Valid):
            push_verified = self.push_verified if queued else None
            record = push_verified or self.ledger.verified
            waits = waited_for()
            status, lane = insist(lambda: record(id, number, waits=waits), "payment")
            self.checkpoint("after_verified")
            if push_verified is None:
                self.settled.push_queued(id, status, lane)
            return status
        if isinstance(verdict, Invalid):
            if verdict.nonce_used:
                return self._used(id, number, payload, verdict.code)
            return self._refused(id, number, verdict.code)
        return self._unsure(id, number, verdict.cause)

    def begin(self, payload: str, requirements: str) -> OpenCall | None:
        """Asks the facilitator whether it would settle the payment; None if it must be connected to first."""
        self.checkpoint("before_verify")
        return self.facilitator.begin_verify(journaled(payload), journaled(requirements))

    def _ask(self, payload: str, requirements: str) -> FacilitatorAnswer:
        self.checkpoint("before_verify")
        return self.facilitator.verify(journaled(payload), journaled(requirements))

    def predates(self, id: str, time_us: int) -> bool:
        """Whether a block is older than the contract: its transfer bought something else."""
        execution = self.store.get(id)
        created = execution.contract_created if execution else 0
        # Block times are whole seconds.
        return time_us < created // MICROSECONDS * MICROSECONDS

    def forget_unpaid(self, id: str) -> None:
        """Deletes the input of cancelled work that never began and was not paid for."""
        self._delete(self.ledger.forget_unpaid(id))

    def _used(self, id: str, number: int, payload: str, code: str) -> str:
        """The nonce was used before we ever settled: by a call that the store forgot, or by the payer."""
        if self.chain is None:
            refuse = self._refused if self.presume else self._unsure
            return refuse(id, number, code)
        found = look_up(self.chain, payload)
        if found is None:
            return self._unsure(id, number, code)
        if not found.transaction or self.predates(id, found.time_us):
            return self._refused(id, number, code)
        return self.settled.record(id, number, found.transaction, "chain", payload).answer

    def _refused(self, id: str, number: int, code: str) -> str:
        log.info("payment.verify_refused", execution_id=id, code=code)
        answer, input_file = insist(lambda: self.ledger.verify_refused(id, number, code), "payment")
        self._delete(input_file)
        return answer

    def _unsure(self, id: str, number: int, cause: str) -> str:
        log.warning("payment.verify_unknown", execution_id=id, cause=cause)
        insist(lambda: self.ledger.ask_again(id, number, "verify"), "payment")
        return "unsure"

    def _delete(self, input_file: str) -> None:
        if input_file and self.files is not None:
            with suppress(Problem):  # the decision stands even if the file cannot be deleted
                self.files.delete(json.loads(input_file)["key"])
