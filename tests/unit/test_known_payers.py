"""Which wallets may be asked about before their payment is claimed."""

from __future__ import annotations

import pytest

from worker.payments import known_payers
from worker.payments.known_payers import KnownPayers

WALLET, OTHER = "0x" + "Ab" * 20, "0x" + "cd" * 20


def granted(payers: KnownPayers, wallet: str, key: str = "k") -> bool:
    with payers.question(wallet, key) as may:
        return may


def test_each_question_is_earned_by_a_payment() -> None:
    """However often a wallet's payments fail, it causes no more calls than it has paid for."""
    payers = KnownPayers()
    assert not granted(payers, WALLET)
    payers.paid(WALLET)
    payers.paid(WALLET.lower())
    assert not granted(payers, OTHER)
    assert [granted(payers, WALLET) for _ in range(3)] == [True, True, False]
    payers.paid(WALLET)
    assert granted(payers, WALLET.upper().replace("X", "x"))


def test_copies_of_a_payment_cause_one() -> None:
    payers = KnownPayers()
    for _ in range(3):
        payers.paid(WALLET)
    with payers.question(WALLET, "k") as first, payers.question(WALLET, "k") as copy:
        assert (first, copy) == (True, False)
        assert granted(payers, WALLET, "another")
    assert granted(payers, WALLET, "k")


def test_a_copy_does_not_end_the_question_of_the_first() -> None:
    payers = KnownPayers()
    payers.paid(WALLET)
    payers.paid(WALLET)
    with payers.question(WALLET, "k"):
        assert not granted(payers, WALLET, "k")
        assert not granted(payers, WALLET, "k")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wallets that paid last stay, each with a bounded number of questions."""
    monkeypatch.setattr(known_payers, "_MOST_WALLETS", 2)
    payers = KnownPayers()
    for wallet in ("a", "b", "a", "c"):
        payers.paid(wallet)
    assert [granted(payers, wallet) for wallet in ("a", "b", "c")] == [True, False, True]
    for _ in range(100):
        payers.paid("a")
    assert sum(granted(payers, "a") for _ in range(100)) == known_payers._MOST_QUESTIONS
