"""Brings refunds and fees to their end: signed by the worker's own wallet, settled by the same facilitator.

A leg that was sent is sent again unchanged until somebody knows what became of it. Only the chain's word
that it can never land lets it be signed under its next ordinal; what is refused for good waits for the
operator.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from worker.ids import new_id
from worker.payments.chain import ChainEvidence, ChainUnavailable
from worker.payments.evidence import Verdict, look
from worker.payments.facilitator import Facilitator
from worker.payments.holding import insist, renewing
from worker.payments.leg_books import LEG_LEASE_US, LEG_WINDOW_S, LegBooks, LegLeave, LegName, RefundFacts
from worker.payments.legs import (
    LegKind,
    fee_subject,
    leg_authorization,
    leg_nonce,
    leg_payload,
    leg_requirements,
)
from worker.payments.networks import Network
from worker.payments.outcomes import Refused, Settled, Unknown, classify_settle
from worker.payments.receipts import Refund, RefundReason, Sign, sign_refund
from worker.payments.typed_data import is_bytes32, transfer_digest
from worker.payments.wire import Payment, restore

log = structlog.get_logger()

# The words of our records, in the words of a refund receipt.
_REASONS = {
    "no_response": RefundReason.NOT_DELIVERED,
    "deadline_missed": RefundReason.NOT_DELIVERED,
    "output_schema_invalid": RefundReason.DEFECTIVE,
    "quality_rejected": RefundReason.DEFECTIVE,
    "duplicate_payment": RefundReason.DUPLICATE,
    "overcharge": RefundReason.OVERCHARGE,
    "customer_request": RefundReason.CUSTOMER_REQUEST,
}


class LegImpossible(Exception):
    """This leg cannot be signed as it stands; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class FeeRules:
    """When gathered fees become a leg: from this amount on, or when the first is this old."""

    threshold: int
    period_us: int


class LegRunner:
    """Acts on one leg at a time; every step is a script that checks first."""

    def __init__(
        self,
        books: LegBooks,
        facilitator: Facilitator,
        *,
        sign: Sign,
        wallet: str,
        network: Network,
        fees: FeeRules,
        chain: ChainEvidence | None = None,
        presume: bool = True,
        checkpoint: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._books = books
        self._facilitator = facilitator
        self._sign = sign
        self._wallet = wallet
        self._network = network
        self._fees = fees
        self._chain = chain
        self._presume = presume and chain is None
        self.checkpoint = checkpoint

    def due(self, at: int) -> list[LegName]:
        """Legs to attend to now; fees that are ripe become legs on the way."""
        legs, gathering = self._books.due(at)
        gathered = self._books.gathered([wallet for wallet, _ in gathering])
        for wallet, since in gathering:
            if gathered[wallet] >= self._fees.threshold or at >= since + self._fees.period_us:
                self.checkpoint("before_fix")
                fixed = self._books.fix(wallet, self._fees.threshold, self._fees.period_us)
                if fixed is not None:
                    log.info("leg.fee_fixed", wallet=wallet, number=fixed.number)
                    legs.append(fixed)
        return legs

    def attend(self, leg: LegName) -> None:
        """One settle call for a leg, if it is wanted and nobody else makes it."""
        token = new_id()
        self.checkpoint("before_leg_begin")
        leave = self._books.begin(leg, token)
        if leave is None:
            return
        self.checkpoint("after_leg_begin")
        if leave.payload:
            if self._known_by_chain(leg, leave):
                return
        else:
            signed = self._signed(leg, leave, token)
            if signed is None:
                return
            leave = signed
        if not self._books.renew(leg, token):
            # This process was held up past its leave, and another may be calling.
            return
        self.checkpoint("before_leg_settle")
        with renewing(lambda: self._books.renew(leg, token), LEG_LEASE_US / 3e6):
            answer = self._facilitator.settle(json.loads(leave.payload), json.loads(leave.requirements))
        self.checkpoint("after_leg_settle")
        outcome = classify_settle(answer, earlier_unknown=leave.earlier_unknown)
        if isinstance(outcome, Settled):
            self._settled(leg, leave, outcome.transaction, "facilitator")
        elif isinstance(outcome, Refused):
            self._refused(leg, outcome.code)
        else:
            self._unknown(leg, leave, token, outcome)
        self.checkpoint("after_leg_outcome")

    # Signing

    def _signed(self, leg: LegName, leave: LegLeave, token: str) -> LegLeave | None:
        try:
            payload, requirements = self._make(leg, leave)
        except LegImpossible as impossible:
            self._refused(leg, impossible.code)
            return None
        self.checkpoint("before_leg_signed")
        if not self._books.signed(leg, token, payload, requirements):
            return None
        self.checkpoint("after_leg_signed")
        return replace(leave, payload=payload.encode(), requirements=requirements.encode())

    def _make(self, leg: LegName, leave: LegLeave) -> tuple[str, str]:
        if leg.kind is LegKind.REFUND:
            facts = self._books.refund_facts(leg)
            ours = (self._network.caip2, self._network.asset.lower())
            if (facts.network, facts.asset) != ours:
                raise LegImpossible("paid_on_another_network")
            to, subject = facts.payer, facts.payment_key
        else:
            to, subject = leg.id, fee_subject(self._network, leg.id, str(leg.number))
        try:
            authorization = leg_authorization(
                wallet=self._wallet,
                to=to,
                amount=leave.amount,
                nonce=leg_nonce(leg.kind, subject, leave.ordinal),
                now_s=leave.valid_before_s - LEG_WINDOW_S,
                window_s=LEG_WINDOW_S,
            )
        except ValueError as unfit:
            raise LegImpossible("leg_cannot_be_signed") from unfit
        requirements = leg_requirements(authorization, self._network, LEG_WINDOW_S)
        signature = self._sign(transfer_digest(self._network.domain, authorization))
        payload = leg_payload(authorization, signature, requirements)
        return _json(payload), _json(requirements)

    # Outcomes

    def _settled(self, leg: LegName, leave: LegLeave, transaction: str, how: str) -> None:
        receipt = insist(lambda: self._receipt(leg, leave, transaction))
        self.checkpoint("before_leg_settled")
        what = insist(lambda: self._books.settled(leg, transaction, how, receipt))
        log.info("leg.settled", leg=leg.member, how=how, transaction=transaction, what=what)

    def _receipt(self, leg: LegName, leave: LegLeave, transaction: str) -> str:
        """A statement about a refund; none where one of the two hashes is only presumed to exist."""
        if leg.kind is not LegKind.REFUND:
            return ""
        facts = self._books.refund_facts(leg)
        if not (is_bytes32(facts.payment) and is_bytes32(transaction)):
            return ""
        return _json(sign_refund(_refund(facts, leave, transaction), self._sign))

    def _refused(self, leg: LegName, code: str, *, certain: bool = False) -> None:
        what = insist(lambda: self._books.refused(leg, code, certain=certain))
        log.warning("leg.refused", leg=leg.member, code=code, what=what)

    def _unknown(self, leg: LegName, leave: LegLeave, token: str, outcome: Unknown) -> None:
        if self._known_by_chain(leg, leave):
            return
        if self._presume and leave.earlier_unknown and outcome.nonce_used:
            # Our own re-send meets a used nonce and there is no chain to ask: ours has landed.
            self._settled(leg, leave, outcome.transaction or "", "presumed")
            return
        log.warning("leg.unknown", leg=leg.member, cause=outcome.cause)
        insist(lambda: self._books.unknown(leg, token, outcome.cause, outcome.transaction or ""))

    def _known_by_chain(self, leg: LegName, leave: LegLeave) -> bool:
        """Whether the chain ended it: landed, or this ordinal can never land."""
        if self._chain is None:
            return False
        payment = restore(leave.payload.decode())
        try:
            verdict = look(self._chain, payment)
            elsewhere = verdict.impossible and self._spent_otherwise(self._chain, payment)
        except ChainUnavailable:
            log.warning("leg.chain_away", leg=leg.member)
            return False
        return self._ended(leg, leave, verdict, elsewhere)

    def _ended(self, leg: LegName, leave: LegLeave, verdict: Verdict, elsewhere: bool) -> bool:
        if verdict.transaction:
            self._settled(leg, leave, verdict.transaction, "chain")
        elif elsewhere:
            self._refused(leg, "nonce_paid_another_amount", certain=True)
        elif verdict.impossible:
            self.checkpoint("before_leg_again")
            what = insist(lambda: self._books.next_ordinal(leg, leave.ordinal))
            log.warning("leg.cannot_land", leg=leg.member, ordinal=leave.ordinal, what=what)
        else:
            return False
        return True

    def _spent_otherwise(self, chain: ChainEvidence, payment: Payment) -> bool:
        """Whether this nonce moved another amount: a store that forgot a leg may have made it anew."""
        authorization = payment.authorization
        head = chain.head()
        first = chain.block_at((authorization.valid_before - 86_400) * 1_000_000)
        return any(
            (found.payer, found.nonce) == (authorization.payer, authorization.nonce)
            for found in chain.transfers_to(authorization.to, first, head.block)
        )


def _refund(facts: RefundFacts, leave: LegLeave, transaction: str) -> Refund:
    return Refund(
        network=facts.network,
        asset=facts.asset,
        payer=facts.payer,
        amount=leave.amount,
        payment=facts.payment,
        refund=transaction,
        reason=_REASONS.get(facts.reason, RefundReason.OTHER),
        contract_hash=facts.contract_hash,
        issued_at_s=leave.at // 1_000_000,
    )


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
