"""The capabilities on offer, for processes that never import author code.

Each tree of work processes imports its agents and publishes their descriptions in the store, where the web
process reads them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import structlog

from worker.capabilities.declaration import agent_faults
from worker.capabilities.declare import Capability, Registry
from worker.capabilities.overrides import Override
from worker.capabilities.serving import Served, Serving

log = structlog.get_logger()

_FRESH_SECONDS = 1.0
_HIDDEN = {"run", "check", "price_of", "settings"}


def offered(registry: Registry, overrides: Mapping[str, Override]) -> dict[str, Capability]:
    """Returns the declared capabilities as configured, and remote ones that only the configuration names."""
    found = dict(registry.capabilities)
    for name, override in overrides.items():
        base = found.get(name)
        if base is None and not override.remote:
            continue
        if base is None:
            described = {"description": f"{name}, by an agent that connects", **override.options}
            base = Capability(name=name, remote=True, **described)
        found[name] = base.with_override(override)
    return found


def describe(capability: Capability) -> dict[str, Any]:
    shown = {
        each.name: getattr(capability, each.name) for each in fields(Capability) if each.name not in _HIDDEN
    }
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in shown.items()}


def from_description(described: Mapping[str, Any]) -> Capability:
    known = {each.name for each in fields(Capability)} - _HIDDEN
    options = {name: value for name, value in described.items() if name in known}
    for name in ("tags", "task_types"):
        options[name] = tuple(options.get(name, ()))
    return Capability(**options)


def readable(described: Any) -> Capability | None:
    """Parses a description; None if unusable: another version may have published it."""
    if not isinstance(described, dict):
        return None
    known = {each.name for each in fields(Capability)} - _HIDDEN - {"name", "checks_input", "prices_input"}
    options = {name: value for name, value in described.items() if name in known}
    if any(agent_faults(described.get("name"), options)):
        return None
    return from_description(described)


class Catalog:
    """The published descriptions, read at most once a second."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._read_at = float("-inf")
        self._raw = Served(())
        self._runnable: dict[str, Capability] = {}
        self._offered: dict[str, Capability] = {}
        # Whether any work process has published its capabilities, as of the last read.
        self.published = False

    def publish(self, capabilities: Iterable[Capability], *, tree: str = "tree") -> None:
        """Publishes what a tree of work processes can run."""
        self._serving.publish(tree, _packed(capabilities))

    def keep_published(self, capabilities: Iterable[Capability], tree: str) -> None:
        """Reports the tree as alive; publishes again if the store lost its data."""
        if not self._serving.publish(tree, ""):
            self.publish(capabilities, tree=tree)

    def all(self) -> dict[str, Capability]:
        """The capabilities on offer now."""
        self._read()
        return self._offered

    def runnable(self, *, fresh: bool = False) -> dict[str, Capability]:
        """All capabilities that any living tree can run, on offer or not."""
        if fresh:
            self._read_at = float("-inf")
        self._read()
        return self._runnable

    def get(self, name: str) -> Capability | None:
        return self.all().get(name)

    def _read(self) -> None:
        now = time.monotonic()
        if now - self._read_at <= _FRESH_SECONDS:
            return
        found = self._serving.read()
        self.published = bool(found.descriptions)
        if found != self._raw:
            self._runnable = _merged(found.descriptions)
            self._offered = _offered_beside(self._runnable, found.older)
            self._raw = found
        self._read_at = now


def _packed(capabilities: Iterable[Capability]) -> str:
    return json.dumps([describe(each) for each in capabilities], separators=(",", ":"))


def _merged(descriptions: Iterable[bytes]) -> dict[str, Capability]:
    """All capabilities; if several trees describe one, the newest description counts."""
    found: dict[str, Capability] = {}
    for description in descriptions:
        found = _readable(json.loads(description)) | found
    return found


def _offered_beside(runnable: dict[str, Capability], older: bytes | None) -> dict[str, Capability]:
    """Offers nothing new while processes of an older release run, because they fail unknown work."""
    if older is None:
        return runnable
    known = _readable(json.loads(older))
    return {name: each for name, each in runnable.items() if name in known or name.startswith("_")}


def _readable(described: Iterable[Any]) -> dict[str, Capability]:
    """Parses descriptions; an unusable one does not affect the others."""
    found = {}
    for each in described:
        capability = readable(each)
        if capability is None:
            named = each.get("name") if isinstance(each, dict) else None
            log.warning("catalog.entry_rejected", capability=str(named)[:100])
            continue
        found[capability.name] = capability
    return found
