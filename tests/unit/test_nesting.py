"""Depth of JSON text, told without parsing."""

from __future__ import annotations

import pytest

from worker.nesting import deeper_than


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
def test_nesting_is_measured_without_parsing(text: str, deep: bool) -> None:
    """Brackets count outside strings only, whatever the escapes; unfinished text harms nobody."""
    assert deeper_than(text, 32) is deep
