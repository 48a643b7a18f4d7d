"""The Lua scripts: loaded from their files, run by hash, loaded again when the store forgot them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import NoScriptError

_HERE = Path(__file__).parent / "lua"

_CLOCK = """
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
"""
# Only WORKER_ENV=test may move time: an offset in microseconds that every script adds.
_TEST_CLOCK = """
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2] + tonumber(redis.call('GET', '%s') or 0)
end
"""

Arg = str | bytes | int | float
# A script's name, its keys and its arguments.
Call = tuple[str, Sequence[str], Sequence[Arg]]


@cache
def _read(path: Path) -> str:
    return path.read_text()


class Scripts:
    """Runs scripts of one folder by name: `scripts("take", keys, args)`."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        test_clock: str | None = None,
        folder: Path = _HERE,
        common: Path = _HERE / "_common.lua",
        also: Sequence[Path] = (),
    ) -> None:
        self._client = client
        self._folder = folder
        self._shared = (common, *also)
        self._preamble = _TEST_CLOCK % test_clock if test_clock else _CLOCK
        self._loaded: dict[str, tuple[str, str]] = {}

    def __call__(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        source, sha = self._loaded.get(name) or self._load(name)
        try:
            return self._client.evalsha(sha, len(keys), *keys, *args)
        except NoScriptError:
            return self._client.eval(source, len(keys), *keys, *args)

    def batch(self, calls: Sequence[Call]) -> list[Any]:
        """Several scripts in one round trip, in order; each must bear being run twice."""
        with self._client.pipeline(transaction=False) as pipe:
            for name, keys, args in calls:
                pipe.evalsha((self._loaded.get(name) or self._load(name))[1], len(keys), *keys, *args)
            replies = pipe.execute(raise_on_error=False)
        unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            return [*replies[: unknown[0]], *(self(*call) for call in calls[unknown[0] :])]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _load(self, name: str) -> tuple[str, str]:
        source = self._preamble + "".join(map(_read, self._shared)) + _read(self._folder / f"{name}.lua")
        self._loaded[name] = source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        return self._loaded[name]
