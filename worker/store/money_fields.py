"""Field names in the hashes of money: an execution's payments and legs, and fees collected per wallet."""

from __future__ import annotations

_FEE = "fee "


def payment_field(number: int, name: str) -> str:
    """Field for one fact about a payment of an execution."""
    return f"{number} {name}"


def leg_field(number: int, kind: str, name: str) -> str:
    """Field for one fact about the current leg; a wallet's fee legs are numbered like payments."""
    return f"{number} {kind} {name}"


def refunded_field(number: int, ordinal: int, name: str) -> str:
    """Field for one fact about an earlier refund of a payment that another refund followed."""
    return f"{number} refund {ordinal} {name}"


def fee_field(wallet: str) -> str:
    """Field for the fees collected for a wallet; their entry among the legs has the same name."""
    return f"{_FEE}{wallet}"


def fee_wallet(field: str) -> str | None:
    """The wallet of a collected-fees field; None for any other field."""
    return field.removeprefix(_FEE) if field.startswith(_FEE) else None
