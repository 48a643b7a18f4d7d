"""Chain verdict on one payment: landed, impossible, or nothing yet."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from worker.payments.chain import MICROSECONDS, ChainEvidence, ChainUnavailable
from worker.payments.standing import Standing, Wanted
from worker.x402.windows import longest_validity
from worker.x402.wire import PaymentPayload, restore

log = structlog.get_logger()

# An authorization cannot land after its end; blocks may come late, so we wait a little longer.
_AFTER_END_S = 600
# The longest configurable window is a day, and no transfer of ours lies further before its end than such a
# payment may. The extra hour allows for clock skew.
_LOOK_BACK_S = longest_validity(86_400) + 3_600


@dataclass(frozen=True, slots=True)
class ChainVerdict:
    """`transaction` proves the payment, in a block of `time_us`; `impossible`: it can never land.

    `undecided`: the nonce is used or the transaction is pending, but the outcome does not show yet.
    `seen_us` is the time of the newest block examined.
    """

    transaction: str = ""
    time_us: int = 0
    impossible: bool = False
    undecided: bool = False
    seen_us: int = 0


def look(chain: ChainEvidence, payment: PaymentPayload, named: str = "") -> ChainVerdict:
    """Looks up the payment's own authorization; `named` is a hash that may be its transaction."""
    found = chain.standings([wanted(payment, named)])
    return _verdict(found.standings[0], payment.authorization.valid_before, found.head.time_us)


def look_up(chain: ChainEvidence | None, payload: str, named: str = "") -> ChainVerdict | None:
    """The same for a journaled payment; None if there is no chain, or if it does not answer."""
    if chain is None:
        return None
    try:
        return look(chain, restore(payload), named)
    except ChainUnavailable:
        log.warning("payment.chain_away")
        return None


def wanted(payment: PaymentPayload, named: str = "") -> Wanted:
    """The chain query for a payment."""
    authorization = payment.authorization
    return Wanted(
        payer=authorization.payer,
        nonce=authorization.nonce,
        pay_to=payment.accepted.pay_to,
        amount=authorization.value,
        asset=payment.accepted.asset,
        since_us=(authorization.valid_before - _LOOK_BACK_S) * MICROSECONDS,
        named=named,
    )


def _verdict(standing: Standing, valid_before_s: int, seen_us: int) -> ChainVerdict:
    if standing.landed is not None:
        return ChainVerdict(standing.landed.tx_hash, standing.landed.time_us, seen_us=seen_us)
    ended = seen_us // MICROSECONDS > valid_before_s + _AFTER_END_S
    impossible = standing.cancelled is not None or ended
    undecided = not impossible and (standing.used or standing.known)
    return ChainVerdict(impossible=impossible, undecided=undecided, seen_us=seen_us)
