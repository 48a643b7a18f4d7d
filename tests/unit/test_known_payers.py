"""Which payments may be asked about before they are claimed."""

from __future__ import annotations

import itertools

import pytest

from worker.payments import known_payers
from worker.payments.known_payers import KnownPayers

WALLET, OTHER = "0x" + "Ab" * 20, "0x" + "cd" * 20
_KEYS = map(str, itertools.count())


def asked(payers: KnownPayers, wallet: str) -> bool:
    """Whether a new payment of the wallet is asked about."""
    return payers.may_ask(wallet, next(_KEYS))


def test_each_question_is_earned_by_a_payment() -> None:
    """However often a wallet's payments fail, it causes no more calls than it has paid for."""
    payers = KnownPayers()
    assert not asked(payers, WALLET)
    payers.paid(WALLET)
    payers.paid(WALLET.lower())
    assert not asked(payers, OTHER)
    assert [asked(payers, WALLET) for _ in range(3)] == [True, True, False]
    payers.paid(WALLET)
    assert asked(payers, WALLET.upper().replace("X", "x"))


def test_a_payment_is_asked_about_once() -> None:
    payers = KnownPayers()
    for _ in range(3):
        payers.paid(WALLET)
    assert [payers.may_ask(WALLET, key) for key in ("k", "k", "l", "k", "m")] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wallets that paid last stay, each with a bounded number of questions, and the newest payments."""
    monkeypatch.setattr(known_payers, "_MOST_WALLETS", 2)
    monkeypatch.setattr(known_payers, "_MOST_ASKED", 2)
    payers = KnownPayers()
    for wallet in ("a", "b", "a", "c"):
        payers.paid(wallet)
    assert [asked(payers, wallet) for wallet in ("a", "b", "c")] == [True, False, True]
    for _ in range(100):
        payers.paid("a")
    assert sum(asked(payers, "a") for _ in range(100)) == known_payers._MOST_QUESTIONS
    assert len(payers._asked) == 2


def test_a_question_that_was_not_sent_is_not_spent() -> None:
    """Its payment may be asked about later, and no other wallet's question is given back."""
    payers = KnownPayers()
    payers.paid("0xAB")
    assert payers.may_ask("0xab", "p1")
    payers.not_asked("0xab", "p2")
    assert not payers.may_ask("0xab", "p3")
    payers.not_asked("0xAB", "p1")
    assert payers.may_ask("0xab", "p1") and not payers.may_ask("0xab", "p3")
