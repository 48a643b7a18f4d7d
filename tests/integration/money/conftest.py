"""One shop for all tests of this folder: a store, work processes, a facilitator that lies on demand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.fakes.facilitator_server import FacilitatorServer
from tests.fakes.shop import Shop, check_sums
from tests.fakes.till import Till
from worker.local.valkey import EmbeddedStore


@pytest.fixture(scope="session", name="open_shop")
def _open_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    home = tmp_path_factory.mktemp("shop")
    store = EmbeddedStore(home)
    with FacilitatorServer() as facilitator:
        shop = Shop(home, store, facilitator)
        try:
            shop.start_work()
            yield shop
        finally:
            shop.stop_work()
            store.stop()


@pytest.fixture(scope="session", name="till_store")
def _till_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    """A store that tests may empty."""
    with EmbeddedStore(tmp_path_factory.mktemp("till")) as store:
        yield store


@pytest.fixture(name="till")
def _till(till_store: EmbeddedStore, tmp_path: Path) -> Iterator[Till]:
    """A worker that does one thing at a time; its books must add up at the end."""
    client = redis.Redis.from_url(till_store.url)
    till = Till(tmp_path, client, till_store.url)
    yield till
    check_sums(till.parts)
    client.close()


@pytest.fixture(name="shop")
def _shop(open_shop: Shop) -> Iterator[Shop]:
    """The shop; after each test its books must still add up."""
    yield open_shop
    open_shop.check_books()
