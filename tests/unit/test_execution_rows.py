"""The API's list reads a few fields of each record, and says the same as the whole record."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.states import State
from worker.engine.record import ROW, SUMMARY, ExecutionRow, from_values, row_from_values

_TEXT = st.text(max_size=8).map(str.encode)
_TIME = st.none() | st.just(b"") | st.integers(0, 10**16).map(lambda at: str(at).encode())
_FIELDS = {
    "id": _TEXT.filter(bool),
    "agent": st.none() | _TEXT,
    "door": _TEXT,
    "lane": st.just(b"express"),
    "phase": st.just(b"done"),
    "state": st.sampled_from([*State]).map(str.encode),
    "created": _TIME,
    "updated": _TIME,
    "labels": st.sampled_from([None, b"", b"null", b"{}", b'{"x":"1"}']),
    "contract": st.none() | st.just(b"") | _TEXT,
}


@given(st.fixed_dictionaries(_FIELDS))
def test_row_is_part_of_the_summary(raw: dict[str, bytes | None]) -> None:
    summary = from_values(SUMMARY, [raw.get(name) for name in SUMMARY])
    row = row_from_values([raw.get(name) for name in ROW])
    assert summary is not None
    assert row is not None
    for each in fields(ExecutionRow):
        assert getattr(row, each.name) == getattr(summary, each.name)


def test_no_record() -> None:
    assert row_from_values([None] * len(ROW)) is None


def test_unreadable_record() -> None:
    """A damaged record is a bug to be seen, in a row too."""
    with pytest.raises(ValueError, match="lost"):
        row_from_values([b"i", b"a", b"kernel", b"lost", b"1", b"1", None, None])
