"""One deployment for all modules that leave it as they found it, and others for those that break things."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.site import Site

POLICY = Path(__file__).parent / "policy.yaml"


@pytest.fixture(name="site", scope="session")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A deployment that no test may break."""
    site = Site(tmp_path_factory.mktemp("site"), POLICY=str(POLICY))
    try:
        yield site.start()
    finally:
        site.close()


@pytest.fixture(name="agents")
def _agents(site: Site) -> Api:
    """The web process that agents and runners use in tests."""
    return site.api(0)


@pytest.fixture(name="callers")
def _callers(site: Site) -> Api:
    """The web process that callers use."""
    return site.api(1)


@pytest.fixture(name="own_site")
def _own_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes deployments for one test; all are gone after it."""
    made: list[Site] = []

    def make(**settings: str) -> Site:
        home = tmp_path / str(len(made))
        home.mkdir()
        made.append(Site(home, **{"POLICY": str(POLICY), **settings}))
        return made[-1]

    yield make
    for site in made:
        site.close()
