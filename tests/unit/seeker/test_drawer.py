"""Purchases on disk."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from worker.errors import BadRequest
from worker.seeker.drawer import Drawer, Ending, Fate, Purchase
from worker.seeker.problems import PurchaseBusy
from worker.seeker.wallet import SignedPayment

SIGNED = SignedPayment(
    "PAYMENT-SIGNATURE", "abc", 500_000, "0x" + "1" * 64, 2_000, "eip155:84532", "0x2", "u"
)
BOUGHT = Purchase("ref", "https://worker.example", "POST", '{"ä":1}', {"contract_id": "c"}).with_payment(
    SIGNED
)


def test_what_was_saved_is_found_again(tmp_path: Path) -> None:
    """Every field survives, in a directory and a file that nobody else can read."""
    drawer = Drawer(tmp_path / "deep" / "drawer")
    known = replace(BOUGHT.with_fate(Fate.REFUSED, "x").with_payment(SIGNED), task_id="t")
    drawer.save(known)
    assert drawer.find("ref") == known
    assert drawer.find("other") is None
    assert drawer.directory.stat().st_mode & 0o777 == 0o700
    assert (drawer.directory / "ref.json").stat().st_mode & 0o777 == 0o600


def test_a_loose_umask_does_not_open_the_file(tmp_path: Path) -> None:
    """The mode is given when the file is made."""
    before = os.umask(0)
    try:
        Drawer(tmp_path / "drawer").save(BOUGHT)
    finally:
        os.umask(before)
    assert (tmp_path / "drawer" / "ref.json").stat().st_mode & 0o777 == 0o600


def test_a_half_written_file_never_takes_the_place_of_a_whole_one(tmp_path: Path) -> None:
    """What a crash leaves beside the purchase is not read."""
    drawer = Drawer(tmp_path)
    drawer.save(BOUGHT)
    (tmp_path / "ref.new").write_text("{")
    assert drawer.unfinished() == [BOUGHT]
    drawer.save(replace(BOUGHT, task_id="t"))
    assert [each.task_id for each in drawer.unfinished()] == ["t"]


def test_only_open_purchases_are_unfinished(tmp_path: Path) -> None:
    """Delivered and given-up purchases are kept, but not gone on with."""
    drawer = Drawer(tmp_path)
    for ref, ending in (("a", Ending.DONE), ("b", Ending.FAILED), ("c", Ending.OPEN)):
        drawer.save(replace(BOUGHT, ref=ref, ending=ending))
    assert [each.ref for each in drawer.unfinished()] == ["c"]
    assert Drawer(tmp_path / "none").unfinished() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"payments": 5}'])
def test_a_file_that_cannot_be_read_is_not_passed_over(tmp_path: Path, text: str) -> None:
    """It may hold a payment that is out, so the search stops and names it."""
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(BadRequest) as raised:
        Drawer(tmp_path).unfinished()
    assert "bad.json" in raised.value.message


def test_one_process_holds_a_purchase(tmp_path: Path) -> None:
    """A second hold is refused, another purchase is not concerned, and a hold ends with its block."""
    drawer = Drawer(tmp_path)
    with drawer.hold("a"):
        with pytest.raises(PurchaseBusy), Drawer(tmp_path).hold("a"):
            pass
        with drawer.hold("b"):
            pass
    with drawer.hold("a"):
        pass


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Without a place to keep payments nothing is bought."""
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest), Drawer(tmp_path / "file" / "drawer").hold("a"):
        pass


def test_exposure_counts_all_that_may_still_be_taken() -> None:
    """Open and settled payments always count, refused ones until their window ends."""
    refused = BOUGHT.with_fate(Fate.REFUSED, "x")
    assert BOUGHT.exposed(9_999) == 500_000
    assert refused.exposed(1_999) == 500_000
    assert refused.exposed(2_000) == 0
    assert refused.with_payment(SIGNED).exposed(1_999) == 1_000_000
    assert BOUGHT.with_fate(Fate.SETTLED).exposed(9_999) == 500_000


def test_what_has_settled_stays_settled() -> None:
    """No later word makes a settled payment refused."""
    settled = BOUGHT.with_fate(Fate.SETTLED)
    assert settled.with_fate(Fate.REFUSED, "x") == settled
    assert settled.unsettled is None
