"""One worker per module, with a clock that tests can move, and a receiver of webhooks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.hire.exchange import Shop, hire_tree
from tests.e2e.hire.receiver import Receiver


@pytest.fixture(name="shop", scope="module")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A worker with its chain and facilitator."""
    with hire_tree(tmp_path_factory.mktemp("shop"), WORKER_ENV="test") as shop:
        yield shop


@pytest.fixture(name="receiver")
def _receiver() -> Iterator[Receiver]:
    """A seeker's server that takes webhooks."""
    with Receiver() as receiver:
        yield receiver
