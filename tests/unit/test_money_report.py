"""Summing the journal: every payment has one column, and every imbalance is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.payments.report import JournalReport, Totals, imbalances, read_line

KEY = "eip155:84532/0xasset/0xpayer/0xnonce"
PAID = [
    f"1000000 claimed x 1 100 {KEY}",
    "2000000 verified x 1 100 -",
    "3000000 settling x 1 100 -",
    "3000001 settle_call x 1 100 -",
    "4000000 settled x 1 100 0xtx",
    "4000000 fee_due x 1 3 0xplatform",
]
COUNTERS = {"claimed": 100, "settled": 100, "fees_due": 3, "open": 0}


def test_journal_line_is_parsed() -> None:
    """The detail is the rest of the line, whatever it contains."""
    line = read_line("12 refused x 2 7 authorization too short")
    assert (line.at, line.fact, line.id, line.number, line.amount) == (12, "refused", "x", 2, 7)
    assert line.detail == "authorization too short"


def test_empty_detail_is_parsed() -> None:
    """A presumed settlement has no transaction."""
    assert read_line("12 settled x 2 7 ").detail == ""


def test_paid_execution_balances() -> None:
    """The platform gets the fee of a settled payment, the worker keeps the rest."""
    books = JournalReport().read(PAID)
    assert books.totals() == Totals(1, 100, settled=100, fees=3, kept=97)
    assert imbalances(books, COUNTERS, {"0xplatform": 3}) == []


@pytest.mark.parametrize(
    ("fact", "column"),
    [("claimed", "open"), ("verified", "open"), ("settling", "open"), ("unknown", "open")]
    + [(end, end) for end in ("settled", "refused", "released")],
)
def test_every_payment_state_has_a_column(fact: str, column: str) -> None:
    """A payment counts in exactly one of settled, refused, released and open."""
    lines = PAID[:1] if fact == "claimed" else [PAID[0], f"5 {fact} x 1 100 -"]
    totals = JournalReport().read(lines).totals()
    columns = {name: getattr(totals, name) for name in ("settled", "refused", "released", "open")}
    assert columns == {name: 100 if name == column else 0 for name in columns}


def test_settled_overrides_earlier_states() -> None:
    """A released payment that settles later counts as settled."""
    books = JournalReport().read([PAID[0], "2 released x 1 100 -", "3 settled x 1 100 0xtx"])
    assert (books.totals().released, books.totals().settled) == (0, 100)


def test_refunds_count_from_when_they_are_owed() -> None:
    """Owed and paid refunds are separate counters and one column in the report."""
    books = JournalReport().read([*PAID[:5], "5 refund_due x 1 100 no_response"])
    assert (books.totals().refunds, books.totals().kept) == (100, 0)
    assert imbalances(books, {"claimed": 100, "settled": 100, "refunds_due": 100}, {}) == []
    paid = JournalReport().read(
        [*PAID[:5], "5 refund_due x 1 100 no_response", "6 refund_settled x 1 100 0xback"]
    )
    assert imbalances(paid, {"claimed": 100, "settled": 100, "refunds_paid": 100}, {}) == []


def test_full_refund_after_a_fee_is_negative() -> None:
    """The fee of a delivered payment that was refunded is shown as the worker's loss."""
    books = JournalReport().read([*PAID, "5 refund_due x 1 100 quality_rejected"])
    assert books.totals().kept == -3
    assert imbalances(books, COUNTERS | {"refunds_due": 100}, {"0xplatform": 3}) == []


def test_fee_legs_move_accrued_fees_to_paid() -> None:
    """A fixed leg no longer accrues, and a settled one is no longer owed."""
    fixed = JournalReport().read([*PAID, "5 fee_fixed 0xplatform 1 3 -"])
    assert imbalances(fixed, COUNTERS, {}) == []
    settled = JournalReport().read(
        [*PAID, "5 fee_fixed 0xplatform 1 3 -", "6 fee_settled 0xplatform 1 3 0xtx"]
    )
    assert imbalances(settled, COUNTERS | {"fees_due": 0, "fees_paid": 3}, {}) == []


@pytest.mark.parametrize(
    ("counter", "value"),
    [("claimed", 99), ("settled", 101), ("open", 1), ("fees_due", 2), ("refunds_due", 5), ("fees_paid", 3)],
)
def test_mismatched_counter_is_named(counter: str, value: int) -> None:
    """Each counter is compared with the journal."""
    wrong = imbalances(JournalReport().read(PAID), COUNTERS | {counter: value}, {"0xplatform": 3})
    assert len(wrong) == 1 and counter in wrong[0] and str(value) in wrong[0]


def test_unaccrued_fees_are_named() -> None:
    """An owed fee must be accrued or in a leg, and nothing may accrue that is not owed."""
    assert "0xplatform" in imbalances(JournalReport().read(PAID), COUNTERS, {})[0]
    assert "0xother" in imbalances(JournalReport().read(PAID), COUNTERS, {"0xplatform": 3, "0xother": 1})[0]


def test_fee_on_an_unsettled_payment_is_an_imbalance() -> None:
    """A payment that did not settle cannot owe a fee."""
    books = JournalReport().read([PAID[0], PAID[5]])
    wrong = imbalances(books, {"claimed": 100, "open": 100, "fees_due": 3}, {"0xplatform": 3})
    assert wrong == ["settled is not kept + fees + refunds"]


@pytest.mark.parametrize("lines", [["6 refund_settled x 1 1 0xtx"], ["6 refund_due x 1 101 -"]])
def test_excess_refund_is_named(lines: list[str]) -> None:
    """A refund that was never owed, or exceeds the payment, is reported separately."""
    wrong = imbalances(JournalReport().read([*PAID[:5], *lines]), {}, {})
    assert any("gave back more" in each for each in wrong)


def test_payment_without_a_record_is_shown() -> None:
    """A settlement without a recorded payment is listed and not part of the totals."""
    books = JournalReport().read(["7 settled_unknown_payment gone 1 0 0xtx"])
    assert [line.id for line in books.strays] == ["gone"] and books.totals() == Totals()


def test_groups_sum_to_the_total() -> None:
    """Groups are sorted by payer; nothing is counted twice or left out."""
    other = PAID[0].replace(" x ", " y ").replace("0xpayer", "0xother")
    books = JournalReport().read([*PAID, other])
    groups = books.grouped(lambda row: row.payer)
    assert list(groups) == ["0xother", "0xpayer"]
    assert sum(each.claimed for each in groups.values()) == books.totals().claimed == 200


@given(st.lists(st.tuples(st.sampled_from(["verified", "settling", "unknown", "settled", "refused"]))))
def test_claimed_total_balances_for_any_journal(facts: list[tuple[str]]) -> None:
    """Whatever the journal contains, each payment is in one column."""
    lines = [PAID[0], *(f"{n} {fact} x 1 100 -" for n, (fact,) in enumerate(facts))]
    totals = JournalReport().read(lines).totals()
    assert totals.claimed == totals.settled + totals.refused + totals.released + totals.open
