"""Amounts: decimal text outside, integers inside, no rounding."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.amounts import LARGEST, to_atomic, to_text
from worker.core.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "atomic"),
    [
        ("0", 0),
        ("5", 5_000_000),
        ("0.5", 500_000),
        ("0.50", 500_000),
        ("0.000001", 1),
        ("1.100000", 1_100_000),
        ("9223372036854.775807", LARGEST),
    ],
)
def test_decimal_text_becomes_atomic_units(text, atomic):
    """Decimal text is parsed exactly, up to 2^63 - 1 units."""
    assert to_atomic(text) == atomic


@given(st.integers(0, LARGEST))
def test_amounts_round_trip(atomic):
    """A formatted amount parses to the same amount and equals it as a decimal."""
    text = to_text(atomic)
    assert to_atomic(text) == atomic
    assert Decimal(text) * 10**6 == atomic
    assert not text.endswith(".")


@pytest.mark.parametrize(
    "text",
    [
        "0.0000001",
        "0.5000000",
        "-1",
        "+1",
        "-0",
        "1e3",
        "1E-2",
        "NaN",
        "Infinity",
        "",
        " 1",
        "1 ",
        "1\n",
        ".5",
        "5.",
        "1,5",
        "1_000",
        "007",
        "0x10",
        "\u0661",
        "9223372036854.775808",
        "99999999999999",
        "1" * 100_000,
        5,
        0.5,
        True,
        None,
        ["1"],
    ],
)
def test_other_text_is_refused(text):
    """Signs, exponents, blanks, other digits, a seventh decimal, overflow and other types are refused."""
    with pytest.raises(BadRequest) as caught:
        to_atomic(text, field="terms.price.amount")
    assert caught.value.code == "AMOUNT_INVALID"
    assert caught.value.details["field"] == "terms.price.amount"
    assert len(str(caught.value.details["received"])) < 100


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused(text):
    """Arbitrary text never raises another exception, and accepted text equals its Decimal."""
    try:
        atomic = to_atomic(text)
    except BadRequest:
        return
    assert Decimal(text) * 10**6 == atomic


@pytest.mark.parametrize("atomic", [-1, LARGEST + 1, 1.0, True, "1"])
def test_non_amounts_cannot_be_formatted(atomic):
    """A float, a negative amount or an overflow is a bug and raises ValueError."""
    with pytest.raises(ValueError, match="integer"):
        to_text(atomic)
