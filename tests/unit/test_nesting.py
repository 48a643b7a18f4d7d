"""Measuring the depth of JSON text without parsing it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.nesting import Bound, beyond, deeper_than


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        ("[" * 32 + "]" * 32, False),
        ("[" * 33, True),
        ('{"a":' * 33, True),
        ("[]" * 500, False),
        ('"' + "[" * 500 + '"', False),
        ('"\\""' + "[" * 33, True),
        ('"\\\\"' + "[" * 33, True),
        ('"' + '\\"[' * 4000, False),
        ("]" * 40 + "[" * 33, False),
    ],
)
def test_nesting_depth_is_measured_without_parsing(text: str, deep: bool) -> None:
    """Brackets count outside strings only, whatever the escapes; unterminated text does no harm."""
    assert deeper_than(text, 32) is deep


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("[" + "0," * 99 + "0]", None),
        ("[" + "0," * 100 + "0]", Bound.VALUES),
        ('["' + "," * 5_000 + '"]', None),
        ('["' + '\\",' * 5_000 + '"]', None),
        ("[" + "[]," * 50 + "0]", Bound.VALUES),
        ('["",' + '"",' * 500, Bound.VALUES),
        ("[" * 33 + "0," * 1_000, Bound.DEPTH),
        ("0," * 9_000 + "[" * 40, Bound.VALUES),
    ],
)
def test_values_are_counted_without_parsing(text: str, bound: Bound | None) -> None:
    """Commas and brackets count outside strings only; the limit that is reached first is reported."""
    assert beyond(text, levels=32, values=100) == bound


@given(
    st.recursive(
        st.none() | st.integers() | st.text(alphabet='",[]{}\\:é\n'),
        lambda inner: (
            st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='",[{\\'), inner, max_size=5)
        ),
        max_leaves=40,
    )
)
def test_value_count_matches_the_parser(value: Any) -> None:
    """Every value except the outermost counts one, and every empty list or object one more."""

    def count(each: Any) -> int:
        inner = list(each.values()) if isinstance(each, dict) else each
        if not isinstance(inner, list):
            return 0
        return sum(1 + count(item) for item in inner) or 1

    text = json.dumps(value)
    most = count(value)
    assert beyond(text, levels=100, values=most) is None
    assert not most or beyond(text, levels=0, values=most - 1) is not None
