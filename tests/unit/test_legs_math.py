"""Computing fees and refunds: nothing lost in rounding, nothing paid twice."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pytest
from eth_account import Account
from eth_utils import to_checksum_address
from hypothesis import given
from hypothesis import strategies as st

from worker.core.evm import is_bytes32
from worker.payments.fees import FeeSplit, split_fee
from worker.payments.leg import LegKind, LegState
from worker.payments.leg_authorization import (
    fee_subject,
    leg_authorization,
    leg_nonce,
    leg_payload,
    leg_requirements,
)
from worker.x402.headers import encode
from worker.x402.networks import BASE, BASE_SEPOLIA
from worker.x402.typed_data import transfer_digest
from worker.x402.wire import decode_payment

KEY = "0x" + "22" * 32
WORKER = Account.from_key(KEY).address
SEEKER = Account.from_key("0x" + "11" * 32).address
SUBJECT = "eip155:84532/0xasset/0xpayer/0xnonce"


@pytest.mark.parametrize(
    ("amount", "percentage", "fee"),
    [
        (10_000_000, 1, 100_000),
        (10_000_000, Decimal("1.0"), 100_000),
        (50, 1, 1),
        (49, 1, 0),
        (150, 1, 2),
        (149, 1, 1),
        (1, 100, 1),
        (0, 100, 0),
        (10_000, 0, 0),
        (999_999, Decimal("2.5"), 25_000),
        (3, Decimal("16.67"), 1),
        (3, Decimal("16.66"), 0),
    ],
)
def test_a_fee_is_rounded_half_up(amount: int, percentage: Decimal | int, fee: int) -> None:
    """Half an atomic unit goes to the platform, less than half to the worker."""
    assert split_fee(amount, percentage) == FeeSplit(fee, amount - fee)


@given(st.integers(0, 2**256 - 1), st.decimals(0, 100, places=4))
def test_fee_split_loses_nothing(amount: int, percentage: Decimal) -> None:
    """For any price and percentage the parts add up and agree with decimal arithmetic."""
    split = split_fee(amount, percentage)
    wide = Context(prec=200)
    exact = wide.divide(wide.multiply(Decimal(amount), percentage), Decimal(100))
    assert split.fee == int(exact.quantize(Decimal(1), rounding=ROUND_HALF_UP, context=wide))
    assert split.fee + split.worker == amount and 0 <= split.fee <= amount


@pytest.mark.parametrize(
    "percentage", [-1, 101, Decimal("100.01"), 1.5, "1", True, Decimal("NaN"), Decimal("Infinity"), None]
)
def test_invalid_percentage_is_refused(percentage: Any) -> None:
    """Floats, texts, and values outside 0 to 100 are not percentages."""
    with pytest.raises(ValueError, match="percentage"):
        split_fee(100, percentage)


def test_a_negative_price_is_refused() -> None:
    """A fee on a negative price is refused."""
    with pytest.raises(ValueError, match="not negative"):
        split_fee(-1, 1)


def test_leg_nonce_is_derived() -> None:
    """The same leg always has the same nonce; this one is pinned so that a change is noticed."""
    nonce = leg_nonce(LegKind.REFUND, SUBJECT, 0)
    assert is_bytes32(nonce)
    assert nonce == leg_nonce(LegKind.REFUND, SUBJECT.upper(), 0)
    assert nonce == "0x133df21402ab4d70362834fa83486c8cdb6df4ad98f1f3610ddab8d24c3fc036"


@given(
    st.tuples(st.sampled_from(LegKind), st.text("abc/01", max_size=4), st.integers(0, 30)),
    st.tuples(st.sampled_from(LegKind), st.text("abc/01", max_size=4), st.integers(0, 30)),
)
def test_different_legs_have_different_nonces(
    one: tuple[LegKind, str, int], other: tuple[LegKind, str, int]
) -> None:
    """No kind, subject or ordinal can collide with another leg's nonce."""
    assert (leg_nonce(*one) == leg_nonce(*other)) == (one == other)


def test_ordinals_start_at_zero() -> None:
    """A negative ordinal is refused."""
    with pytest.raises(ValueError, match="negative"):
        leg_nonce(LegKind.FEE, SUBJECT, -1)


def test_fees_are_grouped_by_asset_wallet_and_period() -> None:
    """Another network, wallet or period is another leg; letter case does not matter."""
    subjects = {
        fee_subject(network, wallet, period)
        for network in (BASE, BASE_SEPOLIA)
        for wallet in (WORKER, SEEKER)
        for period in ("2026-11", "2026-12")
    }
    assert len(subjects) == 8
    assert fee_subject(BASE, WORKER, "2026-11") == fee_subject(BASE, WORKER.lower(), "2026-11")


def leg(**changes: Any) -> Any:
    """Return a refund leg's authorization."""
    fields: dict[str, Any] = {
        "wallet": WORKER,
        "to": SEEKER,
        "amount": 10_000,
        "nonce": leg_nonce(LegKind.REFUND, SUBJECT, 0),
        "now_s": 1_800_000_000,
        "window_s": 600,
    }
    return leg_authorization(**{**fields, **changes})


def test_later_signing_keeps_the_nonce() -> None:
    """A leg signed again with a later end is still the same transfer on chain."""
    first, again = leg(), leg(now_s=1_800_009_999)
    assert first.valid_before == 1_800_000_600 and again.valid_before == 1_800_010_599
    assert first.nonce == again.nonce and first.payer == again.payer == WORKER.lower()
    assert first.valid_after == 0


@pytest.mark.parametrize(
    "changes",
    [{"amount": 0}, {"amount": -1}, {"amount": 2**256}, {"to": WORKER}, {"to": WORKER.lower()}]
    + [{"to": "0x12"}, {"window_s": 0}],
)
def test_zero_or_self_payment_leg_is_refused(changes: dict[str, Any]) -> None:
    """A leg with a zero amount, our own or an invalid recipient, or no lifetime is refused."""
    with pytest.raises(ValueError, match="a leg"):
        leg(**changes)


def test_leg_uses_the_payment_format() -> None:
    """A leg's payload parses as a payment on its own terms, signed by the worker's wallet."""
    authorization = leg()
    digest = transfer_digest(BASE_SEPOLIA.domain, authorization)
    signature = bytes(Account.unsafe_sign_hash(digest, KEY).signature)
    requirements = leg_requirements(authorization, BASE_SEPOLIA, 600)
    payment = decode_payment(encode(leg_payload(authorization, signature, requirements)))
    assert payment.authorization == authorization
    assert Account._recover_hash(digest, signature=payment.signature_bytes) == WORKER
    assert requirements["payTo"] == to_checksum_address(SEEKER) and requirements["amount"] == "10000"
    assert requirements["extra"] == {"name": "USDC", "version": "2"}


def test_leg_state_names_are_stable() -> None:
    """The stored names of leg states and kinds do not change."""
    assert [str(state) for state in LegState] == ["due", "settling", "unknown", "refused", "settled"]
    assert [str(kind) for kind in LegKind] == ["fee", "refund"]
