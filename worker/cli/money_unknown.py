"""Settlements of unknown outcome: what is open, and how the operator resolves it with proof."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from worker.cli.money_found import found_lines
from worker.core.amounts import to_text
from worker.core.errors import Conflict, NotFound, Unavailable
from worker.core.evm import is_bytes32
from worker.engine.events import iso
from worker.parts import Parts
from worker.payments.chain import ChainUnavailable
from worker.payments.evidence import look
from worker.payments.leg import Leg
from worker.payments.leg_ledger import CONFIRM_US
from worker.payments.payment import Payment, PaymentState
from worker.payments.report import JournalReport, PaymentRow
from worker.payments.retry_delays import SECOND_US
from worker.store.money_fields import payment_field
from worker.x402.receipts import failed_response
from worker.x402.wire import restore

_OPEN = (PaymentState.SETTLING, PaymentState.UNKNOWN)


def unknown_lines(parts: Parts, books: JournalReport) -> Iterator[str]:
    """One line per item that waits for a response or for the operator."""
    for row in books.rows.values():
        which = f"payment  {row.id} {row.number}  {to_text(row.amount)}"
        if row.state in _OPEN:
            yield f"{which}  {row.state}  since {iso(row.claimed_at)}"
        elif row.state == PaymentState.SETTLED and row.unproven:
            yield f"{which}  settled, but unproven: the chain never had it"
        elif row.state == PaymentState.SETTLED and _presumed(parts, row):
            yield f"{which}  settled, but only presumed"
    for name in parts.leg_books.open():
        leg = parts.leg_books.get(name)
        if leg is not None:
            why = " ".join(filter(None, (leg.code or leg.cause, _failures(leg))))
            yield f"leg  {name.member}  {to_text(leg.amount)}  {leg.state}  {why}".rstrip()
    yield from found_lines(parts)


def _presumed(parts: Parts, row: PaymentRow) -> bool:
    """From the journal; looked up for entries written before the journal recorded it."""
    if row.presumed or not row.was_unknown:
        return row.presumed
    how: Any = parts.client.hget(parts.keys.money(row.id), payment_field(row.number, "how"))
    return bool(how == b"presumed")


def _failures(leg: Leg) -> str:
    return f"(failed {leg.failures} times)" if leg.keeps_failing and leg.failures else ""


def resolve_settled(parts: Parts, id: str, number: int, transaction: str) -> str:
    """Record a payment as settled by a transaction that the chain confirms."""
    payment = _payment(parts, id, number)
    if payment.state is PaymentState.SETTLED:
        raise Conflict(
            f"the payment is settled already, in {payment.transaction or 'a transaction not known'}"
        )
    if not is_bytes32(transaction):
        raise Conflict("a transaction hash is 0x and 64 hex digits")
    if parts.chain is None:
        raise Unavailable("without RPC_URL no transaction can be confirmed", advice="Set RPC_URL.")
    sent = restore(parts.ledger.payload(id, number)[0])
    who = (sent.authorization.payer, sent.authorization.nonce)
    terms = (sent.accepted.pay_to, sent.authorization.value, sent.accepted.asset)
    if parts.chain.confirm(transaction, who, *terms) is None:
        raise Conflict("the chain does not show this payment in that transaction")
    what = parts.settler.record_settled(id, number, transaction.lower(), "operator")
    return f"settled: {what}"


def resolve_refused(parts: Parts, id: str, number: int) -> str:
    """End a payment that can never land: by the chain's word, or long after its end by the store's time."""
    payment = _payment(parts, id, number)
    if payment.state not in _OPEN:
        raise Conflict(f"the payment is {payment.state}; only an open settlement can be refused")
    landed, impossible = _by_chain(parts, id, number)
    if landed:
        raise Conflict(f"the chain shows that it landed: resolve it with --settled {landed}")
    left_us = payment.valid_before_s * SECOND_US + CONFIRM_US - parts.store.now()
    if not impossible and left_us >= 0:
        raise Conflict(
            "it may still land",
            advice=f"Ask again in {left_us // SECOND_US + 1} s, or once the chain shows it cancelled.",
        )
    code = "authorization_cannot_land"
    network = json.loads(parts.ledger.payload(id, number)[1])["network"]
    response = json.dumps(failed_response(code, network, payment.payer), separators=(",", ":"))
    what = parts.ledger.settle_refused(id, number, code, response, by_chain=True)
    return f"refused: {what}"


def _payment(parts: Parts, id: str, number: int) -> Payment:
    money = parts.ledger.money(id)
    payment = money.payment(number) if money else None
    if payment is None:
        raise NotFound(f"execution {id[:64]} has no payment {number}")
    return payment


def _by_chain(parts: Parts, id: str, number: int) -> tuple[str, bool]:
    """Where it landed, and whether it never can; neither if the chain is unreachable."""
    if parts.chain is None:
        return "", False
    try:
        verdict = look(parts.chain, restore(parts.ledger.payload(id, number)[0]))
    except ChainUnavailable:
        return "", False
    return verdict.transaction, verdict.impossible
