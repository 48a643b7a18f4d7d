"""What the worker offers, for processes that never import an author's code.

Work processes know the agents; they publish a description of each in the store, and the web process
reads it there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import redis

from worker.agents.config import Override
from worker.agents.declare import Capability, Registry
from worker.store import as_bytes

_FRESH_SECONDS = 1.0
_HIDDEN = {"run", "settings"}


def offered(registry: Registry, overrides: Mapping[str, Override]) -> dict[str, Capability]:
    """The declared capabilities as configured, and the remote ones that only the configuration knows."""
    found = dict(registry.capabilities)
    for name, override in overrides.items():
        base = found.get(name)
        if base is None and not override.remote:
            continue
        if base is None:
            base = Capability(name=name, description=f"{name}, by an agent that connects", remote=True)
        found[name] = base.with_override(override)
    return found


def describe(capability: Capability) -> dict[str, Any]:
    shown = {
        each.name: getattr(capability, each.name) for each in fields(Capability) if each.name not in _HIDDEN
    }
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in shown.items()}


def from_description(described: Mapping[str, Any]) -> Capability:
    known = {each.name for each in fields(Capability)} - _HIDDEN
    given = {name: value for name, value in described.items() if name in known}
    for name in ("tags", "task_types"):
        given[name] = tuple(given.get(name, ()))
    return Capability(**given)


class Catalog:
    """The published descriptions; read at most once a second."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client = client
        self._key = key
        self._read_at = float("-inf")
        self._raw = b""
        self._capabilities: dict[str, Capability] = {}
        # Whether any work process has said what it offers, as of the last reading.
        self.published = False

    def publish(self, capabilities: Iterable[Capability], *, only_if_absent: bool = False) -> None:
        blob = json.dumps([describe(each) for each in capabilities], separators=(",", ":"))
        self._client.set(self._key, blob, nx=only_if_absent)

    def all(self) -> dict[str, Capability]:
        now = time.monotonic()
        if now - self._read_at > _FRESH_SECONDS:
            found = self._client.get(self._key)
            self.published = found is not None
            raw = as_bytes(found) if found is not None else b"[]"
            if raw != self._raw:
                self._capabilities = {each["name"]: from_description(each) for each in json.loads(raw)}
                self._raw = raw
            self._read_at = now
        return self._capabilities

    def get(self, name: str) -> Capability | None:
        return self.all().get(name)
