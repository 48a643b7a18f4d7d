"""One worker on a local chain for a file of tests: some move its clock, which official clients do not see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.house import House


@pytest.fixture(scope="module", name="open_house")
def _open_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"))
    try:
        yield house.open()
    finally:
        house.close()


@pytest.fixture(name="house")
def _house(open_house: House) -> Iterator[House]:
    """The worker; after each test nothing is armed and the books add up."""
    yield open_house
    open_house.disarm()
    open_house.check_books()
