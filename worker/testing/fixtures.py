"""Fixtures for pytest: `local_worker`, started once for all tests, and `hire`, which hires from it.

# conftest.py
pytest_plugins = ["worker.testing.fixtures"]

# test_agents.py
def test_a_seeker_pays(hire):
    assert hire("word-count", {"text": "to be"}).charge == "0.02"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from worker.testing.local_worker import Hire, LocalWorker


class HireFunction(Protocol):
    """Hires a capability for its price, in test dollars."""

    def __call__(self, capability: str, input: Any, *, most: str = "100") -> Hire: ...


@pytest.fixture(name="local_worker", scope="session")
def local_worker_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWorker]:
    """A complete worker with this project's agents; it takes some seconds to start."""
    with LocalWorker(tmp_path_factory.mktemp("worker")) as worker:
        yield worker


@pytest.fixture(name="hire")
def hire_fixture(local_worker: LocalWorker) -> HireFunction:
    """Hires an agent of the local worker and pays for it."""
    return local_worker.hire
