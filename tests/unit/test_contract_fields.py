"""Field paths, echoes of received values, and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.errors import BadRequest
from worker.core.fields import field_path, parse_time, shown


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ([], "$"),
        (["terms", "price", "amount"], "terms.price.amount"),
        (["colors", 0], "colors[0]"),
        ([0, "a"], "[0].a"),
        (["a b", "c"], '["a b"].c'),
        (["", "x-y"], '[""]["x-y"]'),
    ],
)
def test_field_paths_use_javascript_syntax(parts, path):
    """Keys are joined with dots; indexes and unusual keys are in brackets."""
    assert field_path(parts) == path


def test_shown_values_are_short_and_valid():
    """Long text is truncated, containers are shown by type, and surrogates are never echoed."""
    assert shown("x" * 1000) == "x" * 80 + "..."
    assert shown(None) == "null"
    assert shown([1, 2]) == "an array of 2"
    assert shown({"secret": 1}) == "an object"
    assert shown(10**5000) == "a very large integer"
    assert shown(0.5) == 0.5
    shown("\ud800").encode("utf-8")
    assert len(field_path(["k" * 500] * 50)) < 350


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01t01:00:00+01:00", 0),
        ("1970-01-01 00:00:00-00:30", 1_800_000_000),
        ("1970-01-01T00:00:00.1234569Z", 123_456),
        ("2026-01-30T10:30:00Z", 1_769_769_000_000_000),
    ],
)
def test_times_have_microsecond_precision(text, micros):
    """Each RFC 3339 spelling gives exact integer microseconds."""
    assert parse_time(text, "created_at") == micros


@given(
    st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)),
    st.integers(-23 * 60, 23 * 60),
)
def test_time_offsets_are_respected(moment, minutes):
    """The same instant with another offset is the same number."""
    utc = moment.replace(tzinfo=UTC)
    local = utc.astimezone(timezone(timedelta(minutes=minutes)))
    assert parse_time(local.isoformat(), "t") == parse_time(utc.isoformat(), "t")


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-30",
        "2026-01-30T10:30:00",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-01-30T24:61:00Z",
        "2026-W05-5T10:30:00Z",
        "20260130T103000Z",
        "2026-01-30T10:30:00Z\n",
        "2026-01-30T10:30:00+99:99",
        "\uff12026-01-30T10:30:00Z",
        "",
        1769769000,
        None,
    ],
)
def test_invalid_times_are_refused(text):
    """Missing zones, impossible days, other notations and numbers are refused with the field."""
    with pytest.raises(BadRequest) as caught:
        parse_time(text, "terms.deadline")
    assert caught.value.details["field"] == "terms.deadline"
