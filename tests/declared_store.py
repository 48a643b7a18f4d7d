"""Compares what a store holds with what the data model declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

import redis

from worker.store.data_model import PREFIX, Keys
from worker.store.key_types import Declared, Type

_DECLARED = [value for value in vars(Keys).values() if isinstance(value, Declared)]


def undeclared(client: redis.Redis) -> list[str]:
    """Keys and fields of hashes that the data model does not name; RQ's keys are its own."""
    return sorted(_undeclared(client))


def _undeclared(client: redis.Redis) -> Iterator[str]:
    names = list(client.scan_iter(f"{PREFIX}:*", count=1000))
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.type(name)
        types = pipe.execute()
    for name, found in zip(map(_text, names), types, strict=True):
        declared = [each for each in _DECLARED if _matches(f"{PREFIX}:{each.pattern}", name)]
        if not declared:
            yield name
        patterns = [pattern for each in declared for pattern, _ in each.fields]
        # Tests may give a key another type, to see that no script writes to it.
        if found == b"hash" and any(each.type is Type.HASH for each in declared):
            fields = map(_text, client.hkeys(name))
            yield from (f"{name} {field}" for field in fields if not _fits_one(patterns, field))


def _fits_one(patterns: Sequence[str], field: str) -> bool:
    return any(_matches(pattern, field) for pattern in patterns)


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    """What stands for a word in braces may be chosen by others."""
    return re.compile(".+".join(map(re.escape, re.split(r"\{[^}]*\}", pattern))), re.DOTALL)


def _matches(pattern: str, name: str) -> bool:
    return _regex(pattern).fullmatch(name) is not None


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
