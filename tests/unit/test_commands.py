"""A command in the store's protocol is what the client library would send."""

from __future__ import annotations

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.connection import PythonRespSerializer

from worker.core.states import Lane
from worker.store.commands import Word, packed

KINDS = st.one_of(st.text(st.characters(exclude_categories=("Cs",))), st.binary(), st.integers(), st.floats())
WORDS = ("EVALSHA", "a" * 40, 2, "k:é", b"\x00\xff\r\n", -7, 2**60, 0.5, "", Lane.EXPRESS)


def packed_by_the_library(words: tuple[Word, ...]) -> bytes:
    encode = redis.Redis().connection_pool.get_encoder().encode  # type: ignore[no-untyped-call]
    return b"".join(PythonRespSerializer(6_000, encode).pack(*words))  # type: ignore[no-untyped-call]


def test_a_command_is_packed_as_by_the_library() -> None:
    """Text, bytes, numbers and enums have the same form."""
    assert packed(WORDS) == packed_by_the_library(WORDS)


@given(st.lists(KINDS, max_size=8), st.sampled_from([2**63 - 1, 2**63, -(2**63), 10**4000, "é"]))
@settings(deadline=None)
def test_any_command_is_packed_as_by_the_library(words: list[Word], last: Word) -> None:
    """Whatever the words are, and whichever of them are left to C."""
    for command in (("SET", *words), ("SET", *words, last)):
        assert packed(command) == packed_by_the_library(command)


@pytest.mark.parametrize("word", ["\ud800", 10**5000], ids=["surrogate", "digits"])
@pytest.mark.parametrize("others", [("SET",), ("SET", "é"), (b"SET", 2**64)])
def test_what_cannot_be_written_is_an_error(word: Word, others: tuple[Word, ...]) -> None:
    """A lone surrogate or a number of thousands of digits, which would end the process in C."""
    with pytest.raises(ValueError):
        packed((*others, word))


@pytest.mark.parametrize("word", [True, None, ["a"]])
def test_other_types_are_refused(word: object) -> None:
    """What has no form of its own is a mistake of the caller."""
    with pytest.raises(redis.DataError):
        packed(("SET", word))  # type: ignore[arg-type]
