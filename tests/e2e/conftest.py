"""Trees for end-to-end tests, and the recovery times they measure, told at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.tree import Lab, Local

_MEASURED: list[tuple[str, float]] = []

Measure = Callable[[str, float], None]


@pytest.fixture(name="measure")
def _measure() -> Measure:
    """Notes a time in seconds."""
    return lambda what, seconds: _MEASURED.append((what, seconds))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _MEASURED:
        terminalreporter.section("measured (s)")
        for what, seconds in _MEASURED:
            terminalreporter.write_line(f"{seconds:7.2f}  {what}")


@pytest.fixture(name="lab", scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A store for the tests of one module."""
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@pytest.fixture(name="lone")
def _lone(lab: Lab) -> Iterator[Lab]:
    """The module's store, with no tree when the test begins and none when it has ended."""
    lab.end_trees()
    yield lab
    lab.end_trees()


@pytest.fixture(name="local", scope="module")
def _local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """A `worker local` for tests that leave it as they found it."""
    local = Local(tmp_path_factory.mktemp("local"), "--web", "2", "--work", "2")
    try:
        local.start()
        yield local
    finally:
        local.close()


@pytest.fixture(name="own")
def _own(tmp_path: Path) -> Iterator[Callable[..., Local]]:
    """Makes trees for one test; all are gone after it."""
    made: list[Local] = []

    def make(*options: str, **settings: str) -> Local:
        home = tmp_path / str(len(made))
        home.mkdir()
        made.append(Local(home, *options, **settings))
        return made[-1]

    yield make
    for local in made:
        local.close()
