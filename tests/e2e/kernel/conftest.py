"""A shared deployment for tests that leave it unchanged, and separate ones for tests that break things."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.deployment import Deployment

POLICY = Path(__file__).parent / "policy.yaml"


@pytest.fixture(name="deployment", scope="session")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment that tests must leave unchanged."""
    deployment = Deployment(tmp_path_factory.mktemp("site"), POLICY=str(POLICY))
    try:
        yield deployment.start()
    finally:
        deployment.close()


@pytest.fixture(name="agents")
def _agents(deployment: Deployment) -> Api:
    """The web process that agents and runners use in tests."""
    return deployment.api(0)


@pytest.fixture(name="callers")
def _callers(deployment: Deployment) -> Api:
    """The web process that callers use."""
    return deployment.api(1)


@pytest.fixture(name="own_deployment")
def _own_deployment(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Creates deployments for one test; all are stopped after it."""
    deployments: list[Deployment] = []

    def make(**settings: str) -> Deployment:
        home = tmp_path / str(len(deployments))
        home.mkdir()
        deployments.append(Deployment(home, **{"POLICY": str(POLICY), **settings}))
        return deployments[-1]

    yield make
    for deployment in deployments:
        deployment.close()
