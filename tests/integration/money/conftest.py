"""One paid worker for all tests here: a store, work processes and a fake facilitator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.fakes.facilitator_server import FacilitatorServer
from tests.fakes.openai_server import chat_settings, serving, talks
from tests.fakes.paid_door import PaidDoor
from tests.fakes.paid_worker import PaidWorker, check_sums
from worker.local.valkey import EmbeddedStore


@pytest.fixture(scope="session", name="running_paid_worker")
def _running_paid_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaidWorker]:
    home = tmp_path_factory.mktemp("paid-worker")
    store = EmbeddedStore(home)
    with FacilitatorServer() as facilitator, serving(talks) as model:
        paid_worker = PaidWorker(home, store, facilitator, **chat_settings(model))
        try:
            paid_worker.start_work()
            yield paid_worker
        finally:
            paid_worker.stop_work()
            store.stop()


@pytest.fixture(name="paid_door")
def _paid_door(valkey: EmbeddedStore, client: redis.Redis, tmp_path: Path) -> Iterator[PaidDoor]:
    """A worker with a concurrency of one; its ledger must balance at the end."""
    paid_door = PaidDoor(tmp_path, client, valkey.url)
    yield paid_door
    check_sums(paid_door.parts)


@pytest.fixture(name="paid_worker")
def _paid_worker(running_paid_worker: PaidWorker) -> Iterator[PaidWorker]:
    """The paid worker; its ledger must balance after each test."""
    yield running_paid_worker
    running_paid_worker.check_books()
