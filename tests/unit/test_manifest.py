"""What is on offer while the store is away."""

from __future__ import annotations

import pytest
import redis

from worker.capabilities.catalog import Catalog
from worker.core.settings import Settings
from worker.hiring.manifest import Manifest
from worker.x402.networks import BASE_SEPOLIA


class Away:
    """A published catalogue that cannot be read."""

    def __getattr__(self, name: str) -> object:
        raise redis.ConnectionError("away")


def test_public_documents_are_served_while_the_store_is_away() -> None:
    """They list nothing then; whoever sells must know, and is told."""
    manifest = Manifest(Settings(), Catalog(Away()), BASE_SEPOLIA, None)
    assert manifest.for_sale_if_known() == {}
    with pytest.raises(redis.ConnectionError):
        manifest.for_sale()
