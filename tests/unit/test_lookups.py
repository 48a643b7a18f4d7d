"""DNS lookups of third-party host names in the web process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from worker.delivery.lookups import FewLookups
from worker.delivery.outbound import TimedOut, Unreachable


class FakeResolver:
    """Blocks on `slow` until its gate opens, fails on `none`, and resolves anything else at once."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[str] = []

    def resolve(self, host: str, port: int, timeout: float) -> Sequence[str]:
        self.asked.append(host)
        if host == "slow":
            self.gate.wait(10)
        if host == "none":
            raise Unreachable("name", "the host name stands for no address")
        return ["192.0.2.1"]


def test_slow_names_take_no_more_than_their_places() -> None:
    """A hundred slow names occupy two lookups; the others time out at once, without a thread."""
    resolver = FakeResolver()
    lookups = FewLookups(resolver, most=2, seconds=0.05)
    began = time.monotonic()
    for _ in range(100):
        with pytest.raises(TimedOut):
            lookups.resolve("slow", 443, 20)
    assert resolver.asked == ["slow", "slow"]
    assert time.monotonic() - began < 5
    resolver.gate.set()


def test_a_place_is_free_again_when_its_lookup_ends() -> None:
    """A timed-out lookup keeps its slot until it ends, not longer."""
    resolver = FakeResolver()
    lookups = FewLookups(resolver, most=1, seconds=0.05)
    with pytest.raises(TimedOut):
        lookups.resolve("slow", 443, 20)
    resolver.gate.set()
    end = time.monotonic() + 10
    while True:
        try:
            assert lookups.resolve("quick", 443, 20) == ["192.0.2.1"]
            return
        except TimedOut:
            assert time.monotonic() < end


def test_a_name_without_an_address_is_known_as_such() -> None:
    """A typo in a webhook's host is reported before anything is paid."""
    lookups = FewLookups(FakeResolver())
    with pytest.raises(Unreachable):
        lookups.resolve("none", 443, 20)
