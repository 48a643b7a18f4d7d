"""Types for declaring keys: name pattern, store type, owner, lifetime and contents.

`data_model.py` declares every key of the worker with these. A key is either shared (one key) or one of many
(one per execution, contract, ...). On an instance the declaration resolves to names: `keys.leases` is a
name, `keys.record(id)` builds one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, overload


class Type(StrEnum):
    """The store's types, each with a command that fails on a key of any other type."""

    STRING = "string"
    HASH = "hash"
    LIST = "list"
    ZSET = "sorted set"
    ANY = "any"

    @property
    def length(self) -> str:
        return {"string": "STRLEN", "hash": "HLEN", "list": "LLEN", "sorted set": "ZCARD"}[self]


@dataclass(frozen=True)
class Declared:
    """Common part of both kinds of key; `fields` are a hash's fields."""

    pattern: str
    type: Type
    owner: str
    life: str
    holds: str
    fields: tuple[tuple[str, str], ...] = ()


class Shared(Declared):
    """A key that exists once."""

    @overload
    def __get__(self, keys: None, owner: type) -> Shared: ...
    @overload
    def __get__(self, keys: Any, owner: type) -> str: ...
    def __get__(self, keys: Any, owner: type) -> Shared | str:
        return self if keys is None else f"{keys.prefix}:{self.pattern}"


@dataclass(frozen=True)
class Each(Declared):
    """One of many keys. `part` builds what replaces the braces in the pattern.

    If the values are a closed list, `entries` has them, and a script gets the keys as a table.
    """

    part: Callable[..., str] = str
    entries: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameters that a caller passes to build the key: the words in braces."""
        return tuple(re.findall(r"\w+", re.findall(r"\{(.*?)\}", self.pattern)[0]))

    @overload
    def __get__(self, keys: None, owner: type) -> Each: ...
    @overload
    def __get__(self, keys: Any, owner: type) -> Callable[..., str]: ...
    def __get__(self, keys: Any, owner: type) -> Each | Callable[..., str]:
        if keys is None:
            return self
        before, _, rest = self.pattern.partition("{")
        after = rest.partition("}")[2]
        return lambda *values: f"{keys.prefix}:{before}{self.part(*values)}{after}"
