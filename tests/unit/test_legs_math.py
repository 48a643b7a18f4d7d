"""Fees and refunds as sums: nothing lost in rounding, nothing paid twice."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pytest
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st

from worker.payments.headers import encode
from worker.payments.legs import (
    FeeSplit,
    LegKind,
    LegState,
    fee_subject,
    leg_authorization,
    leg_nonce,
    leg_payload,
    leg_requirements,
    refundable,
    split_fee,
)
from worker.payments.networks import BASE, BASE_SEPOLIA
from worker.payments.typed_data import is_bytes32, transfer_digest
from worker.payments.wire import decode_payment

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
def test_a_split_loses_nothing(amount: int, percentage: Decimal) -> None:
    """For any price and percentage the parts add up and agree with decimal arithmetic."""
    split = split_fee(amount, percentage)
    wide = Context(prec=200)
    exact = wide.divide(wide.multiply(Decimal(amount), percentage), Decimal(100))
    assert split.fee == int(exact.quantize(Decimal(1), rounding=ROUND_HALF_UP, context=wide))
    assert split.fee + split.worker == amount and 0 <= split.fee <= amount


@pytest.mark.parametrize(
    "percentage", [-1, 101, Decimal("100.01"), 1.5, "1", True, Decimal("NaN"), Decimal("Infinity"), None]
)
def test_an_impossible_percentage_is_refused(percentage: Any) -> None:
    """Floats, texts, and what lies outside 0 to 100 are no percentage."""
    with pytest.raises(ValueError, match="percentage"):
        split_fee(100, percentage)


def test_a_negative_price_is_refused() -> None:
    """Nobody owes a fee on less than nothing."""
    with pytest.raises(ValueError, match="not negative"):
        split_fee(-1, 1)


@given(st.lists(st.integers(-5, 200), max_size=8))
def test_refunds_never_exceed_what_was_settled(wanted: list[int]) -> None:
    """Whatever refunds are asked for, one after the other, together they stay within the payment."""
    settled, refunded = 100, 0
    for amount in wanted:
        paid = refundable(amount, settled, refunded)
        assert 0 <= paid <= max(0, amount)
        refunded += paid
    assert refunded <= settled
    assert refundable(10, 100, 95) == 5 and refundable(10, 100, 120) == 0


def test_a_legs_nonce_is_derived() -> None:
    """The same leg has the same nonce for ever; this one is fixed so that a change is noticed."""
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
    """No kind, subject or ordinal can be shifted into another leg's nonce."""
    assert (leg_nonce(*one) == leg_nonce(*other)) == (one == other)


def test_an_ordinal_counts_from_zero() -> None:
    """A negative ordinal is a mistake."""
    with pytest.raises(ValueError, match="negative"):
        leg_nonce(LegKind.FEE, SUBJECT, -1)


def test_fees_are_gathered_per_coin_wallet_and_period() -> None:
    """Another network, wallet or period is another leg; letter case is not."""
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
    made: dict[str, Any] = {
        "wallet": WORKER,
        "to": SEEKER,
        "amount": 10_000,
        "nonce": leg_nonce(LegKind.REFUND, SUBJECT, 0),
        "now_s": 1_800_000_000,
        "window_s": 600,
    }
    return leg_authorization(**{**made, **changes})


def test_signing_again_later_keeps_the_nonce() -> None:
    """A leg signed anew with a later end is still the same transfer to the chain."""
    first, again = leg(), leg(now_s=1_800_009_999)
    assert first.valid_before == 1_800_000_600 and again.valid_before == 1_800_010_599
    assert first.nonce == again.nonce and first.payer == again.payer == WORKER.lower()
    assert first.valid_after == 0


@pytest.mark.parametrize(
    "changes",
    [{"amount": 0}, {"amount": -1}, {"amount": 2**256}, {"to": WORKER}, {"to": WORKER.lower()}]
    + [{"to": "0x12"}, {"window_s": 0}],
)
def test_an_empty_or_circular_leg_is_not_made(changes: dict[str, Any]) -> None:
    """A leg of nothing, to ourselves, to no wallet, or without time is a mistake."""
    with pytest.raises(ValueError, match="a leg"):
        leg(**changes)


def test_a_leg_travels_as_any_payment() -> None:
    """A leg's payload reads as a payment on its own terms, signed by the worker's wallet."""
    authorization = leg()
    digest = transfer_digest(BASE_SEPOLIA.domain, authorization)
    signature = bytes(Account.unsafe_sign_hash(digest, KEY).signature)
    requirements = leg_requirements(authorization, BASE_SEPOLIA, 600)
    payment = decode_payment(encode(leg_payload(authorization, signature, requirements)))
    assert payment.authorization == authorization
    assert Account._recover_hash(digest, signature=payment.signature_bytes) == WORKER
    assert requirements["payTo"] == SEEKER.lower() and requirements["amount"] == "10000"
    assert requirements["extra"] == {"name": "USDC", "version": "2"}


def test_the_states_of_a_leg() -> None:
    """The words under which legs are stored stay as they are."""
    assert [str(state) for state in LegState] == ["due", "settling", "unknown", "refused", "settled"]
    assert [str(kind) for kind in LegKind] == ["fee", "refund"]
