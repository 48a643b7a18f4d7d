"""A command in the store's protocol is what the client library would send."""

from __future__ import annotations

import pytest
import redis
from redis.connection import PythonRespSerializer

from worker.core.states import Lane
from worker.store.commands import packed

WORDS = ("EVALSHA", "a" * 40, 2, "k:é", b"\x00\xff\r\n", -7, 2**60, 0.5, "", Lane.EXPRESS)


def test_a_command_is_packed_as_by_the_library() -> None:
    """Text, bytes, numbers and enums have the same form."""
    encode = redis.Redis().connection_pool.get_encoder().encode  # type: ignore[no-untyped-call]
    theirs = b"".join(PythonRespSerializer(6_000, encode).pack(*WORDS))  # type: ignore[no-untyped-call]
    assert packed(WORDS) == theirs


@pytest.mark.parametrize("word", [True, None, ["a"]])
def test_other_types_are_refused(word: object) -> None:
    """What has no form of its own is a mistake of the caller."""
    with pytest.raises(redis.DataError):
        packed(("SET", word))  # type: ignore[arg-type]
