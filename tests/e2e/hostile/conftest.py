"""A worker behind a proxy, so that tests can send from any address."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.e2e.hire.hire_session import HireSession, hire_tree
from tests.fakes.paid_door import PaidDoor
from tests.fakes.paid_worker import check_sums
from worker.local.valkey import EmbeddedStore

HERE = Path(__file__).parent


@pytest.fixture(name="session", scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HireSession]:
    """A worker with its chain and facilitator."""
    settings = {"WORKER_AGENTS": "hostile_agents", "PYTHONPATH": str(HERE), "TRUSTED_PROXIES": "1"}
    keys = {
        "SIGNING_KEY": "0x" + secrets.token_hex(32),
        "AGENT_KEYS": "agent:elsewhere:" + secrets.token_hex(8),
    }
    with hire_tree(tmp_path_factory.mktemp("worker"), WORKER_ENV="test", **settings, **keys) as session:
        yield session


@pytest.fixture(name="door")
def _door(valkey: EmbeddedStore, client: redis.Redis, tmp_path: Path) -> Iterator[PaidDoor]:
    """A worker that runs one execution at a time; its ledger must balance at the end."""
    door = PaidDoor(tmp_path, client, valkey.url)
    yield door
    check_sums(door.parts)
