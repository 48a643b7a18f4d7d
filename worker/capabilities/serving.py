"""Tracks which tree of processes can run what, and since when: old and new releases run side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import redis

from worker.store.client import as_bytes
from worker.store.data_model import Keys
from worker.store.scripts import Scripts

LUA = Path(__file__).parent / "lua"
# A tree or process without a heartbeat for this long counts as gone.
SILENCE_US = 20_000_000


@dataclass(frozen=True, slots=True)
class Served:
    """`descriptions`: JSON lists, newest first. `older`: offers of an older release, if it takes work."""

    descriptions: tuple[bytes, ...]
    older: bytes | None = None


class Serving(Protocol):
    """The port of the catalog."""

    def publish(self, tree: str, description: str) -> bool:
        """Reports the tree as alive; False if its description is missing and none is given."""

    def read(self) -> Served: ...


class StoredServing:
    """Descriptions in the store, by tree."""

    def __init__(self, client: redis.Redis, keys: Keys, *, test_clock: bool = False) -> None:
        self._client = client
        self._keys = keys
        self._scripts = Scripts(client, keys, LUA, test_clock=test_clock)

    def publish(self, tree: str, description: str) -> bool:
        return bool(self._scripts.value("serve", tree=tree, description=description))

    def read(self) -> Served:
        older, *found = self._scripts.value(
            "served",
            express_takers=self._keys.takers("express"),
            queue_takers=self._keys.takers("queue"),
            silence=SILENCE_US,
        )
        dated = sorted((as_bytes(each).split(b" ", 1) for each in found), key=_since, reverse=True)
        offers = self._client.get(self._keys.catalog) if older else None
        return Served(
            tuple(description for _, description in dated),
            (as_bytes(offers) if offers is not None else b"[]") if older else None,
        )


def _since(dated: list[bytes]) -> int:
    return int(dated[0])
