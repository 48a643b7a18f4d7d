"""Completes refunds and fees: signed by the worker's own wallet, settled by the same facilitator.

A leg that was sent is re-sent unchanged until its outcome is known. Only when the chain shows that it can
never land may it be signed under its next ordinal. A leg refused for insufficient funds is retried when the
wallet has the money; one refused for any other reason waits for the operator.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from worker.core.evm import is_bytes32
from worker.core.ids import new_id
from worker.payments.chain import ChainEvidence, ChainUnavailable
from worker.payments.evidence import ChainVerdict, look
from worker.payments.facilitator import Facilitator
from worker.payments.leg import LegKey, LegKind, LegLease, LegState, RefundFacts
from worker.payments.leg_authorization import (
    fee_subject,
    leg_authorization,
    leg_nonce,
    leg_payload,
    leg_requirements,
)
from worker.payments.leg_ledger import BALANCE_US, LEG_LEASE_US, LEG_RETRY_US, LEG_WINDOW_S, LegLedger
from worker.payments.settlement_call import renewing
from worker.store.outage import insist
from worker.x402.facilitator_answers import (
    OUT_OF_MONEY_CODES,
    Settled,
    SettlementRefused,
    SettlementUnknown,
    classify_settle,
)
from worker.x402.networks import Network
from worker.x402.receipts import Refund, RefundReason, Sign, sign_refund
from worker.x402.typed_data import transfer_digest
from worker.x402.wire import PaymentPayload, restore

log = structlog.get_logger()

# Maps our reasons to those of a refund receipt.
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
    """This leg cannot be signed as it is; `code` says why."""

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
        books: LegLedger,
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

    def due(self, at: int) -> list[LegKey]:
        """Legs due now; turns ripe fees into legs first."""
        legs, gathering = self._books.due(at)
        gathered = self._books.gathered([wallet for wallet, _ in gathering])
        for wallet, since in gathering:
            if gathered[wallet] >= self._fees.threshold or at >= since + self._fees.period_us:
                self.checkpoint("before_fix")
                fixed = self._books.fix(wallet, self._fees.threshold, self._fees.period_us)
                if fixed is not None:
                    log.info("leg.fee_collected", wallet=wallet, number=fixed.number)
                    legs.append(fixed)
        return legs

    def attend(self, leg: LegKey) -> None:
        """Makes one settle call for a leg, if it is due and nobody else is calling."""
        if self._waits_for_money(leg):
            return
        token = new_id()
        self.checkpoint("before_leg_begin")
        lease = self._books.begin(leg, token)
        if lease is None:
            return
        self.checkpoint("after_leg_begin")
        if lease.payload:
            if self._known_by_chain(leg, lease):
                return
        else:
            signed = self._signed(leg, lease, token)
            if signed is None:
                return
            lease = signed
        if not self._books.renew(leg, token):
            # This process was delayed past its lease, and another may be calling.
            return
        self.checkpoint("before_leg_settle")
        with renewing(lambda: self._books.renew(leg, token), LEG_LEASE_US / 3e6):
            answer = self._facilitator.settle(json.loads(lease.payload), json.loads(lease.requirements))
        self.checkpoint("after_leg_settle")
        outcome = classify_settle(answer, earlier_unknown=lease.earlier_unknown)
        if isinstance(outcome, Settled):
            self._settled(leg, lease, outcome.transaction, "facilitator")
        elif isinstance(outcome, SettlementRefused):
            self._refused(leg, outcome.code)
        else:
            self._unknown(leg, lease, token, outcome)
        self.checkpoint("after_leg_outcome")

    # Insufficient funds

    def _waits_for_money(self, leg: LegKey) -> bool:
        """Makes a leg refused for insufficient funds due again, same nonce, once the wallet can pay it."""
        found = self._books.get(leg)
        if found is None or found.state is not LegState.REFUSED:
            return False
        if found.code in OUT_OF_MONEY_CODES and self._affords(found.amount):
            return self._books.retry(leg) != "due"
        self._wait_for_money(leg)
        return True

    def _affords(self, amount: int) -> bool:
        if self._chain is None:
            return True  # only a call can tell
        try:
            return self._chain.balance(self._wallet) >= amount
        except ChainUnavailable:
            log.warning("leg.chain_away")
            return False

    def _wait_for_money(self, leg: LegKey) -> None:
        self._books.wait(leg, LEG_RETRY_US if self._chain is None else BALANCE_US)

    # Signing

    def _signed(self, leg: LegKey, lease: LegLease, token: str) -> LegLease | None:
        try:
            payload, requirements = self._make(leg, lease)
        except LegImpossible as impossible:
            self._refused(leg, impossible.code)
            return None
        self.checkpoint("before_leg_signed")
        if not self._books.signed(leg, token, payload, requirements):
            return None
        self.checkpoint("after_leg_signed")
        return replace(lease, payload=payload.encode(), requirements=requirements.encode())

    def _make(self, leg: LegKey, lease: LegLease) -> tuple[str, str]:
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
                amount=lease.amount,
                nonce=leg_nonce(leg.kind, subject, lease.ordinal),
                now_s=lease.valid_before_s - LEG_WINDOW_S,
                window_s=LEG_WINDOW_S,
            )
        except ValueError as unfit:
            raise LegImpossible("leg_cannot_be_signed") from unfit
        requirements = leg_requirements(authorization, self._network, LEG_WINDOW_S)
        signature = self._sign(transfer_digest(self._network.domain, authorization))
        payload = leg_payload(authorization, signature, requirements)
        return _json(payload), _json(requirements)

    # Outcomes

    def _settled(self, leg: LegKey, lease: LegLease, transaction: str, how: str) -> None:
        receipt = insist(lambda: self._receipt(leg, lease, transaction), "leg")
        self.checkpoint("before_leg_settled")
        status = insist(lambda: self._books.settled(leg, transaction, how, receipt), "leg")
        log.info("leg.settled", leg=leg.member, how=how, transaction=transaction, status=status)

    def _receipt(self, leg: LegKey, lease: LegLease, transaction: str) -> str:
        """Signed statement about a refund; empty where one of the two hashes is only presumed to exist."""
        if leg.kind is not LegKind.REFUND:
            return ""
        facts = self._books.refund_facts(leg)
        if not (is_bytes32(facts.payment) and is_bytes32(transaction)):
            return ""
        return _json(sign_refund(_refund(facts, lease, transaction), self._sign))

    def _refused(self, leg: LegKey, code: str, *, certain: bool = False) -> None:
        status = insist(lambda: self._books.refused(leg, code, certain=certain), "leg")
        log.warning("leg.refused", leg=leg.member, code=code, status=status)
        if status == "refused" and code in OUT_OF_MONEY_CODES:
            insist(lambda: self._wait_for_money(leg), "leg")

    def _unknown(self, leg: LegKey, lease: LegLease, token: str, outcome: SettlementUnknown) -> None:
        if self._known_by_chain(leg, lease):
            return
        if self._presume and lease.earlier_unknown and outcome.nonce_used:
            # Our own re-send met a used nonce and there is no chain to ask: our transfer has landed.
            self._settled(leg, lease, outcome.transaction or "", "presumed")
            return
        log.warning("leg.unknown", leg=leg.member, cause=outcome.cause)
        insist(lambda: self._books.unknown(leg, token, outcome.cause, outcome.transaction or ""), "leg")

    def _known_by_chain(self, leg: LegKey, lease: LegLease) -> bool:
        """Whether the chain decided it: landed, or this ordinal can never land."""
        if self._chain is None:
            return False
        payment = restore(lease.payload.decode())
        try:
            verdict = look(self._chain, payment)
            elsewhere = verdict.impossible and self._spent_otherwise(self._chain, payment)
        except ChainUnavailable:
            log.warning("leg.chain_away", leg=leg.member)
            return False
        return self._ended(leg, lease, verdict, elsewhere)

    def _ended(self, leg: LegKey, lease: LegLease, verdict: ChainVerdict, elsewhere: bool) -> bool:
        if verdict.transaction:
            self._settled(leg, lease, verdict.transaction, "chain")
        elif elsewhere:
            self._refused(leg, "nonce_paid_another_amount", certain=True)
        elif verdict.impossible:
            self.checkpoint("before_leg_again")
            status = insist(lambda: self._books.next_ordinal(leg, lease.ordinal), "leg")
            log.warning("leg.authorization_voided", leg=leg.member, ordinal=lease.ordinal, status=status)
        else:
            return False
        return True

    def _spent_otherwise(self, chain: ChainEvidence, payment: PaymentPayload) -> bool:
        """Whether this nonce moved another amount: a store that forgot a leg may have made it anew."""
        authorization = payment.authorization
        head = chain.head()
        first = chain.block_at((authorization.valid_before - 86_400) * 1_000_000)
        return any(
            (found.payer, found.nonce) == (authorization.payer, authorization.nonce)
            for found in chain.transfers_to(authorization.to, first, head.block)
        )


def _refund(facts: RefundFacts, lease: LegLease, transaction: str) -> Refund:
    return Refund(
        network=facts.network,
        asset=facts.asset,
        payer=facts.payer,
        amount=lease.amount,
        payment=facts.payment,
        refund=transaction,
        reason=_REASONS.get(facts.reason, RefundReason.OTHER),
        contract_hash=facts.contract_hash,
        issued_at_s=lease.at // 1_000_000,
    )


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
