"""One worker per module, with a clock that tests can move, and a webhook receiver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.hire.hire_session import HireSession, hire_tree
from tests.e2e.hire.webhook_receiver import Receiver


@pytest.fixture(name="session", scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HireSession]:
    """A worker with its chain and facilitator."""
    with hire_tree(tmp_path_factory.mktemp("worker"), WORKER_ENV="test") as session:
        yield session


@pytest.fixture(name="receiver")
def _receiver() -> Iterator[Receiver]:
    """A seeker's webhook server."""
    with Receiver() as receiver:
        yield receiver
