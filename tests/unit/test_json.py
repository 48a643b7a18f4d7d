"""JSON is encoded as by Python's own encoder, character for character."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from worker.core.json import ascii_of, kept_encoder, text_of


class Name(StrEnum):
    A = "a\n"


class Number(IntEnum):
    ONE = 1


class Text(str):
    def __str__(self) -> str:
        return "other"


TEXTS = ["", "a", '"\\/\b\f\n\r\t\x00\x1f\x7f', "é€😀", "\ud800", "\u2028", Name.A, Text("x")]
NUMBERS = [0, -1, 10**40, 1.0, -0.0, 1e300, 0.1, True, False, None, Number.ONE]
ODD = [float("nan"), float("inf"), -float("inf"), b"x", {1}, object(), 1j]


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 4 else 5)
    if kind < 5:
        return chance.choice(TEXTS if kind < 2 else NUMBERS if chance.random() < 0.98 else ODD)
    parts = [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 5:
        return parts
    if kind == 6:
        return tuple(parts)
    names = [*TEXTS, *NUMBERS, *([b"x", (1,)] if chance.random() < 0.05 else [])]
    kinds = chance.choice([dict, OrderedDict])
    return kinds((chance.choice(names), part) for part in parts)


@pytest.mark.parametrize("allow_nan", [True, False])
@pytest.mark.parametrize("ascii", [True, False])
def test_kept_encoder_writes_what_pythons_does(ascii: bool, allow_nan: bool) -> None:
    """And refuses what Python's refuses, also right after a refusal."""
    chance, refused = random.Random(7), 0
    kept = kept_encoder(ascii=ascii, allow_nan=allow_nan)
    plain = json.JSONEncoder(ensure_ascii=ascii, separators=(",", ":"), allow_nan=allow_nan).encode
    for each in [*TEXTS, *NUMBERS, *ODD, [], {}, (), *[value(chance) for _ in range(5_000)]]:
        try:
            expected = plain(each)
        except (TypeError, ValueError) as error:
            refused += 1
            with pytest.raises(type(error)) as found:
                kept(each)
            assert str(found.value) == str(error)
        else:
            assert kept(each) == expected
    assert refused > 20


def test_a_value_that_contains_itself_is_refused() -> None:
    """The encoder that is kept goes on to work."""
    knot: list[Any] = []
    knot.append({"a": knot})
    for encoded in (text_of, ascii_of):
        with pytest.raises(RecursionError):
            encoded(knot)
        assert encoded({"a": [1]}) == '{"a":[1]}'
