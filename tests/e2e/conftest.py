"""Process trees for end-to-end tests, and their measured recovery times, printed at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.tree import Local, WorkTrees

_MEASURED: list[tuple[str, float]] = []

Measure = Callable[[str, float], None]


@pytest.fixture(name="measure")
def _measure() -> Measure:
    """Records a time in seconds."""
    return lambda label, seconds: _MEASURED.append((label, seconds))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _MEASURED:
        terminalreporter.section("measured (s)")
        for label, seconds in _MEASURED:
            terminalreporter.write_line(f"{seconds:7.2f}  {label}")


@pytest.fixture(name="work_trees", scope="module")
def _work_trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkTrees]:
    """A store for the tests of one module."""
    work_trees = WorkTrees(tmp_path_factory.mktemp("lab"))
    yield work_trees
    work_trees.close()


@pytest.fixture(name="empty_work_trees")
def _empty_work_trees(work_trees: WorkTrees) -> Iterator[WorkTrees]:
    """The module's store, without trees before and after the test."""
    work_trees.end_trees()
    yield work_trees
    work_trees.end_trees()


@pytest.fixture(name="local", scope="module")
def _local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """A `worker local` for tests that leave it unchanged."""
    local = Local(tmp_path_factory.mktemp("local"), "--web", "2", "--work", "2")
    try:
        local.start()
        yield local
    finally:
        local.close()


@pytest.fixture(name="own")
def _own(tmp_path: Path) -> Iterator[Callable[..., Local]]:
    """Creates trees for one test; all are stopped after it."""
    started: list[Local] = []

    def make(*options: str, **settings: str) -> Local:
        home = tmp_path / str(len(started))
        home.mkdir()
        started.append(Local(home, *options, **settings))
        return started[-1]

    yield make
    for local in started:
        local.close()
