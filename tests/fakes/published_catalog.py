"""A catalog that one tree of processes has published."""

from __future__ import annotations

from worker.capabilities.serving import Served


class PublishedCatalog:
    """Always the same description."""

    def __init__(self, held: bytes) -> None:
        self.held = held

    def publish(self, tree: str, description: str) -> bool:
        return True

    def read(self) -> Served:
        return Served((self.held,))
