"""What the chain says about one payment: landed, impossible, or nothing yet."""

from __future__ import annotations

from dataclasses import dataclass

from worker.payments.chain import ChainEvidence
from worker.payments.windows import LONGEST_VALIDITY_S
from worker.payments.wire import Payment

# After its end an authorization cannot land; blocks may come late, so a little longer is waited.
_AFTER_END_S = 600
# No payment is taken that ends later than twice the longest window that can be set, which is a day; so no
# transfer of ours is older than that before its end. An hour is for clocks that differ.
_LOOK_BACK_S = 2 * LONGEST_VALIDITY_S + 3_600


@dataclass(frozen=True, slots=True)
class Verdict:
    """`transaction` proves the payment, in a block of `time_us`; `impossible`: it can never land any more."""

    transaction: str = ""
    time_us: int = 0
    impossible: bool = False


def look(chain: ChainEvidence, payment: Payment) -> Verdict:
    """Asks the chain about the payment's own authorization."""
    authorization = payment.authorization
    who = (authorization.payer, authorization.nonce)
    head = chain.head()
    now_s = head.time_us // 1_000_000
    first = chain.block_at((min(now_s, authorization.valid_before) - _LOOK_BACK_S) * 1_000_000)
    found = chain.transfer_of(
        who, payment.accepted.pay_to, authorization.value, payment.accepted.asset, first
    )
    if found is not None:
        return Verdict(found.tx_hash, found.time_us)
    if chain.authorization_cancelled(who, first) is not None:
        return Verdict(impossible=True)
    return Verdict(impossible=now_s > authorization.valid_before + _AFTER_END_S)
