"""The returned value determines the deliverable."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import pytest

from worker.core.json import NotJson, encode
from worker.engine.output import OutputType, shape
from worker.files.store import FileRef

ONE = FileRef("k" * 40, "a.txt", "text/plain", 1, "0" * 64)
TWO = FileRef("l" * 40, "b.txt", "text/plain", 1, "0" * 64)


@pytest.mark.parametrize(
    ("returned", "files", "type", "has_value"),
    [
        ("text", (), OutputType.TEXT, True),
        ("", (), OutputType.TEXT, True),
        ({}, (), OutputType.JSON, True),
        ([], (), OutputType.JSON, True),
        ((1, 2), (), OutputType.JSON, True),
        (0, (), OutputType.JSON, True),
        (False, (), OutputType.JSON, True),
        (1.5, (), OutputType.JSON, True),
        (None, (), OutputType.JSON, True),
        (None, (ONE,), OutputType.FILE, False),
        (None, (ONE, TWO), OutputType.MULTIPLE, False),
        ({"a": 1}, (ONE,), OutputType.MULTIPLE, True),
        ("text", (ONE, TWO), OutputType.MULTIPLE, True),
        ({}, (ONE,), OutputType.MULTIPLE, True),
    ],
)
def test_output_type_follows_value_and_files(
    returned: Any, files: tuple[FileRef, ...], type: OutputType, has_value: bool
) -> None:
    """Text, JSON, one file, several, or files with a value: each has its type."""
    output = shape(returned, files)
    assert (output.type, output.has_value, output.files) == (type, has_value, files)
    assert output.value == returned


@pytest.mark.parametrize("returned", [object(), b"bytes", {1, 2}, range(3), (each for each in ())])
def test_non_json_value_is_refused(returned: Any) -> None:
    """Bytes, sets and objects cannot be delivered as a value."""
    with pytest.raises(NotJson):
        shape(returned, ())


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {"a": {1}}, {(1,): 2}, "\ud800", ["\udfff"], {"\ud800": 1}, b"x"],
)
def test_unstorable_value_is_refused(value: Any) -> None:
    """NaN, infinities, lone surrogates and foreign objects are never stored."""
    with pytest.raises(NotJson):
        encode(value)


def test_deep_nesting_is_refused() -> None:
    """A value that contains itself, or is nested beyond the stack, is the agent's error, not ours."""
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = []
    for _ in range(200_000):
        deep = [deep]
    for value in (loop, deep):
        with pytest.raises(NotJson):
            encode(value)


@pytest.mark.parametrize("value", [[], {}, {"a": []}, "é\u2028", 2**60, -0.5, None, True])
def test_json_is_compact_and_exact(value: Any) -> None:
    """No spaces, no escapes where UTF-8 suffices, and the value round-trips."""
    packed = encode(value)
    assert json.loads(packed) == value
    assert b" " not in packed


def test_an_ordered_mapping_keeps_its_order() -> None:
    """A subclass of dict is JSON like any other."""
    assert encode(OrderedDict(b=1, a=2)) == b'{"b":1,"a":2}'
