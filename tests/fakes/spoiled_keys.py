"""Tries each script with each of its keys of a wrong type, and then lets it run as it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from tests.engine import contents
from worker.store.key_types import Type
from worker.store.manifests import read_manifest
from worker.store.scripts import ScriptCall, Scripts, Value

# A plain set counts as a sorted one; nothing in the worker makes one (tests/unit/test_type_checks.py).
_SPOIL: dict[Type, Callable[[redis.Redis, str], object]] = {
    Type.STRING: lambda client, key: client.set(key, "spoilt"),
    Type.HASH: lambda client, key: client.hset(key, "spoilt", "1"),
    Type.LIST: lambda client, key: client.rpush(key, "spoilt"),
    Type.ZSET: lambda client, key: client.zadd(key, {"spoilt": 1}),
}


@dataclass(frozen=True)
class _Kept:
    """All keys as they were, with the time that each had left (ms)."""

    keys: dict[bytes, tuple[bytes, int]]

    @classmethod
    def of(cls, client: redis.Redis) -> _Kept:
        names = list(client.scan_iter(count=1000))
        with client.pipeline(transaction=True) as pipe:
            for name in names:
                pipe.dump(name).pttl(name)
            found = pipe.execute()
        return cls({name: (found[2 * at], max(0, found[2 * at + 1])) for at, name in enumerate(names)})

    def restore(self, client: redis.Redis) -> None:
        with client.pipeline(transaction=True) as pipe:
            pipe.flushdb()
            for name, (value, left) in self.keys.items():
                pipe.restore(name, left, value)
            pipe.execute()


class SpoiledKeys:
    """Stands before `Scripts.send`. `tried`: scripts that wrote; each is tried once for each answer."""

    def __init__(self, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
        self.tried: set[str] = set()
        self._client = client
        self._scripts: dict[str, tuple[str, list[Type]]] = {}
        self._ways: set[tuple[str, str]] = set()
        self._call, self._send = Scripts.call, Scripts.send
        patch.setattr(Scripts, "call", lambda scripts, script, /, **v: self.call(scripts, script, **v))
        patch.setattr(Scripts, "send", lambda scripts, call: self.send(scripts, call))

    def call(self, scripts: Scripts, script: str, /, **values: Value) -> ScriptCall:
        call = self._call(scripts, script, **values)
        manifest = read_manifest(script, scripts._path(script).read_text())
        types = [use.type for use in manifest.single]
        for use, count in zip(manifest.lists, call.args, strict=False):
            types += [use.type] * int(count)
        self._scripts[call.sha] = script, types
        return call

    def send(self, scripts: Scripts, call: ScriptCall) -> Any:
        """Makes the call. If it wrote and answered as it has not before, tries it with spoilt keys, too."""
        kept, before = _Kept.of(self._client), contents(self._client)
        answer = self._send(scripts, call)
        name, types = self._scripts[call.sha]
        first = answer[0] if isinstance(answer, list) and answer else answer
        way = (name, first.decode() if isinstance(first, bytes) else "")
        if way in self._ways or contents(self._client) == before:
            return answer
        self._ways.add(way)
        self.tried.add(name)
        done = _Kept.of(self._client)
        kept.restore(self._client)
        for key, right in zip(call.keys, types, strict=True):
            for type in _SPOIL.keys() - (_SPOIL.keys() if right is Type.ANY else {right}):
                self._try(scripts, call, key, type)
                kept.restore(self._client)
        done.restore(self._client)
        return answer

    def _try(self, scripts: Scripts, call: ScriptCall, key: str, type: Type) -> None:
        self._client.delete(key)
        _SPOIL[type](self._client, key)
        before = contents(self._client)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            self._send(scripts, call)
        assert contents(self._client) == before, (self._scripts[call.sha][0], key, type)
