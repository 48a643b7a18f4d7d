"""One worker on a local chain per test module. Tests may move its clock; official clients use their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.money.node_clients import NodeClients
from tests.fakes.openai_server import chat_settings, serving, talks
from tests.fakes.worker_processes import WorkerProcesses
from tests.npm import installed


@pytest.fixture(scope="module", name="running_worker")
def _running_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcesses]:
    with serving(talks) as model:
        processes = WorkerProcesses(tmp_path_factory.mktemp("worker"), **chat_settings(model))
        try:
            yield processes.open()
        finally:
            processes.close()


@pytest.fixture(name="processes")
def _processes(running_worker: WorkerProcesses) -> Iterator[WorkerProcesses]:
    """The worker; after each test no crash point is armed and the ledger balances."""
    yield running_worker
    running_worker.disarm()
    running_worker.check_books()


@pytest.fixture(scope="session", name="node_clients")
def _node_clients() -> NodeClients:
    return NodeClients(installed(Path(__file__).parent / "node", "node-money"))
