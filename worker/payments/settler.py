"""Brings payments to their outcome: verify, settle, and ask again until it is known.

The same settler serves a request that waits (in the web process, outliving the request) and the clock.
Only the clock has the chain.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import redis
import structlog

from worker.executions.store import ExecutionStore
from worker.ids import new_id
from worker.payments.chain import MICROSECONDS, ChainEvidence, ChainUnavailable
from worker.payments.checkpoints import Checkpoint, unarmed
from worker.payments.evidence import Verdict, look
from worker.payments.facilitator import Facilitator
from worker.payments.ledger import SETTLE_LEASE_US, Ledger, PaymentState, SettleLeave
from worker.payments.outcomes import (
    Invalid,
    Refused,
    Settled,
    Unknown,
    Valid,
    classify_settle,
    classify_verify,
)
from worker.payments.receipts import Settlement, Sign, failed_response, settled_response
from worker.payments.wire import restore

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
        resource_url: str,
        chain: ChainEvidence | None = None,
        presume: bool = True,
        checkpoint: Checkpoint = unarmed,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._facilitator = facilitator
        self._sign = sign
        self._push = push
        self._resource_url = resource_url
        self._chain = chain
        # Only where no process can ask a chain; here it may be that only the clock can.
        self._presume = presume and chain is None
        self.checkpoint = checkpoint

    def attend(self, id: str) -> None:
        """Does what the execution's money waits for, whatever that is."""
        money = self._ledger.money(id)
        payment = money.payment() if money else None
        if payment is None:
            return
        if payment.state is PaymentState.CLAIMED:
            self.verify(id, payment.number)
        else:
            self.settle(id)

    def verify(self, id: str, number: int) -> str:
        """'working', 'settling', 'offered', 'payment_due', 'unsure' or 'gone'."""
        payload, requirements = self._ledger.payload(id, number)
        self.checkpoint("before_verify")
        answer = self._facilitator.verify(json.loads(payload), json.loads(requirements))
        self.checkpoint("after_verify")
        verdict = classify_verify(answer)
        if isinstance(verdict, Valid):
            what, lane = self._insist(lambda: self._ledger.verified(id, number))
            self.checkpoint("after_verified")
            self._queued(id, what, lane)
            return what
        if isinstance(verdict, Invalid):
            if verdict.nonce_used:
                return self._used(id, number, payload, verdict.code)
            return self._verify_refused(id, number, verdict.code)
        return self._unsure(id, number, verdict.cause)

    def _used(self, id: str, number: int, payload: str, code: str) -> str:
        """The nonce is used before we ever settled: by a call that the store forgot, or by the payer."""
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
        """Whether a block is older than the contract: what it moved bought something else."""
        execution = self._store.get(id)
        created = int(execution.raw.get("contract_created", b"0")) if execution else 0
        # A block's time is whole seconds.
        return time_us < created // MICROSECONDS * MICROSECONDS

    def _verify_refused(self, id: str, number: int, code: str) -> str:
        log.info("payment.verify_refused", execution_id=id, code=code)
        return self._insist(lambda: self._ledger.verify_refused(id, number, code))

    def _unsure(self, id: str, number: int, cause: str) -> str:
        log.warning("payment.verify_unsure", execution_id=id, cause=cause)
        self._insist(lambda: self._ledger.ask_again(id, number, "verify"))
        return "unsure"

    def settle(self, id: str) -> None:
        """One settle call, if it is wanted and nobody else makes it."""
        token = new_id()
        self.checkpoint("before_settle_begin")
        leave = self._ledger.settle_begin(id, token)
        if leave is None:
            return
        self.checkpoint("after_settle_begin")
        payload = leave.payload.decode()
        with self._renewing(id, leave.number, token) as held:
            if leave.earlier_unknown and self._settled_on_chain(id, leave.number, payload):
                return
            if not held():
                return
            self.checkpoint("before_settle")
            answer = self._facilitator.settle(json.loads(payload), json.loads(leave.requirements))
        self.checkpoint("after_settle")
        outcome = classify_settle(answer, earlier_unknown=leave.earlier_unknown)
        if isinstance(outcome, Settled):
            self.record_settled(id, leave.number, outcome.transaction, "facilitator", payload)
        elif isinstance(outcome, Refused):
            self._refused(id, leave, outcome.code)
        else:
            self._unknown(id, leave, token, outcome)
        self.checkpoint("after_outcome")

    def record_settled(
        self, id: str, number: int, transaction: str, how: str, payload: str | None = None
    ) -> str:
        """Writes down that the money moved. It must be written: a store that is away is waited for.

        `payload` is given by whoever has it in hand: the store may have forgotten the payment meanwhile.
        """
        payload = payload or self._insist(lambda: self._ledger.payload(id, number))[0]
        authorization = restore(payload)
        settlement = Settlement(
            network=authorization.accepted.network,
            resource_url=self._resource_url,
            payer=authorization.authorization.payer,
            transaction=transaction,
            issued_at_s=int(time.time()),
        )
        response = json.dumps(settled_response(settlement, self._sign), separators=(",", ":"))
        self.checkpoint("before_settled")
        what, lane = self._insist(lambda: self._ledger.settled(id, number, transaction, response, how))
        log.info("payment.settled", execution_id=id, how=how, transaction=transaction, what=what)
        self._queued(id, what, lane)
        return what

    def _refused(self, id: str, leave: SettleLeave, code: str, *, by_chain: bool = False) -> None:
        network = json.loads(leave.requirements)["network"]
        response = json.dumps(failed_response(code, network, leave.payer), separators=(",", ":"))
        phase = self._insist(
            lambda: self._ledger.settle_refused(id, leave.number, code, response, by_chain=by_chain)
        )
        log.warning("payment.settle_refused", execution_id=id, code=code, phase=phase)

    def _unknown(self, id: str, leave: SettleLeave, token: str, outcome: Unknown) -> None:
        payload = leave.payload.decode()
        if self._settled_on_chain(id, leave.number, payload):
            return
        if self._hopeless(payload):
            self._refused(id, leave, "authorization_cannot_land", by_chain=True)
            return
        if self._presume and leave.may_have_landed and outcome.nonce_used:
            # Our own re-send meets a used nonce and there is no chain to ask: ours has landed.
            self.record_settled(id, leave.number, outcome.transaction or "", "presumed", payload)
            return
        log.warning("payment.settle_unknown", execution_id=id, cause=outcome.cause)
        self._insist(
            lambda: self._ledger.settle_unknown(
                id,
                leave.number,
                token,
                outcome.cause,
                outcome.transaction or "",
                may_have_landed=not outcome.nonce_used,
            )
        )

    def _settled_on_chain(self, id: str, number: int, payload: str) -> bool:
        found = self._look(payload)
        if found is None or not found.transaction:
            return False
        self.record_settled(id, number, found.transaction, "chain", payload)
        return True

    def _hopeless(self, payload: str) -> bool:
        found = self._look(payload)
        return found is not None and found.impossible

    def _look(self, payload: str) -> Verdict | None:
        if self._chain is None:
            return None
        try:
            return look(self._chain, restore(payload))
        except ChainUnavailable:
            log.warning("payment.chain_away")
            return None

    def _queued(self, id: str, what: str, lane: str) -> None:
        if what == "working" and lane == "queue":
            self._push(id)

    @contextmanager
    def _renewing(self, id: str, number: int, token: str) -> Iterator[Callable[[], bool]]:
        """Nobody else calls while we do; the leave lapses soon after this process dies.

        What is given says whether the leave is still ours: a process that was frozen may have lost it.
        """
        ended = threading.Event()
        began = time.monotonic()

        def held() -> bool:
            fresh = time.monotonic() - began < SETTLE_LEASE_US / 3e6
            return fresh or self._ledger.settle_renew(id, number, token)

        def renew() -> None:
            while not ended.wait(SETTLE_LEASE_US / 3e6):
                try:
                    self._ledger.settle_renew(id, number, token)
                except redis.RedisError:
                    log.warning("payment.renew_failed", execution_id=id)

        thread = threading.Thread(target=renew, name="settle-renew", daemon=True)
        thread.start()
        try:
            yield held
        finally:
            ended.set()

    def _insist(self, write: Callable[[], T]) -> T:
        """Facts about money are written, however long the store is away."""
        pause = 0.1
        while True:
            try:
                return write()
            except redis.RedisError:
                log.warning("payment.store_away")
                time.sleep(pause)
                pause = min(2.0, pause * 2)
