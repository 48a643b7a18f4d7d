"""Purchases on disk."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from worker.core.errors import BadRequest
from worker.seeker.problems import PurchaseBusy
from worker.seeker.purchases import PaymentFate, Purchase, PurchaseEnding, PurchaseStore
from worker.seeker.wallet import SignedPayment

SIGNED = SignedPayment(
    "PAYMENT-SIGNATURE", "abc", 500_000, "0x" + "1" * 64, 2_000, "eip155:84532", "0x2", "u"
)
BOUGHT = Purchase("ref", "https://worker.example", "POST", '{"ä":1}', {"contract_id": "c"}).with_payment(
    SIGNED
)


def test_saved_purchase_is_found(tmp_path: Path) -> None:
    """Every field is restored, from a directory and a file that only the owner can read."""
    purchases = PurchaseStore(tmp_path / "deep" / "purchases")
    known = replace(BOUGHT.with_fate(PaymentFate.REFUSED, "x").with_payment(SIGNED), task_id="t")
    purchases.save(known)
    assert purchases.find("ref") == known
    assert purchases.find("other") is None
    assert purchases.directory.stat().st_mode & 0o777 == 0o700
    assert (purchases.directory / "ref.json").stat().st_mode & 0o777 == 0o600


def test_file_is_private_under_any_umask(tmp_path: Path) -> None:
    """The file mode is set on creation."""
    before = os.umask(0)
    try:
        PurchaseStore(tmp_path / "purchases").save(BOUGHT)
    finally:
        os.umask(before)
    assert (tmp_path / "purchases" / "ref.json").stat().st_mode & 0o777 == 0o600


def test_partial_write_never_replaces_a_file(tmp_path: Path) -> None:
    """Temporary files left by a crash are not read."""
    purchases = PurchaseStore(tmp_path)
    purchases.save(BOUGHT)
    (tmp_path / "ref.new").write_text("{")
    assert purchases.unfinished() == [BOUGHT]
    purchases.save(replace(BOUGHT, task_id="t"))
    assert [each.task_id for each in purchases.unfinished()] == ["t"]


def test_only_open_purchases_are_unfinished(tmp_path: Path) -> None:
    """Completed and abandoned purchases are kept, but not resumed."""
    purchases = PurchaseStore(tmp_path)
    for ref, ending in (("a", PurchaseEnding.DONE), ("b", PurchaseEnding.FAILED), ("c", PurchaseEnding.OPEN)):
        purchases.save(replace(BOUGHT, ref=ref, ending=ending))
    assert [each.ref for each in purchases.unfinished()] == ["c"]
    assert PurchaseStore(tmp_path / "none").unfinished() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"payments": 5}'])
def test_unreadable_file_is_reported(tmp_path: Path, text: str) -> None:
    """An unreadable file may contain a sent payment, so the search stops and names it."""
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(BadRequest) as raised:
        PurchaseStore(tmp_path).unfinished()
    assert "bad.json" in raised.value.message


def test_purchase_is_locked_by_one_process(tmp_path: Path) -> None:
    """A second lock is refused, other purchases are unaffected, and leaving the block releases the lock."""
    purchases = PurchaseStore(tmp_path)
    with purchases.hold("a"):
        with pytest.raises(PurchaseBusy), PurchaseStore(tmp_path).hold("a"):
            pass
        with purchases.hold("b"):
            pass
    with purchases.hold("a"):
        pass


def test_unwritable_directory_is_reported(tmp_path: Path) -> None:
    """Without a place to store payments nothing is bought."""
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest), PurchaseStore(tmp_path / "file" / "purchases").hold("a"):
        pass


def test_exposure_counts_unexpired_payments() -> None:
    """Open and settled payments always count, refused ones until their window ends."""
    refused = BOUGHT.with_fate(PaymentFate.REFUSED, "x")
    assert BOUGHT.exposed(9_999) == 500_000
    assert refused.exposed(1_999) == 500_000
    assert refused.exposed(2_000) == 0
    assert refused.with_payment(SIGNED).exposed(1_999) == 1_000_000
    assert BOUGHT.with_fate(PaymentFate.SETTLED).exposed(9_999) == 500_000


def test_settled_payment_stays_settled() -> None:
    """A later refusal does not change a settled payment."""
    settled = BOUGHT.with_fate(PaymentFate.SETTLED)
    assert settled.with_fate(PaymentFate.REFUSED, "x") == settled
    assert settled.unsettled is None
