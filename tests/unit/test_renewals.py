"""Leases during facilitator calls: a few threads renew those of all calls, and no others."""

from __future__ import annotations

import threading

import redis

from tests.waiting import eventually
from worker.payments.settlement_call import Renewals


def test_every_open_call_is_renewed_by_a_few_threads() -> None:
    """Calls that begin at different times are renewed until they end, by the same threads."""
    renewals, threads = Renewals(), set[int]()
    first: list[int] = []
    second: list[int] = []

    def renew(calls: list[int]) -> None:
        calls.append(1)
        threads.add(threading.get_ident())

    with renewals.keep(lambda: renew(first), 0.05):
        eventually(lambda: len(first) >= 2, 30)
        with renewals.keep(lambda: renew(second), 0.05):
            eventually(lambda: len(second) >= 2, 30)
        ended = len(second)
        eventually(lambda: len(first) >= 6, 30)
    # One renewal may have been under way when its call ended.
    assert len(second) <= ended + 1
    assert len(threads) <= 8


def test_a_failing_renewal_ends_no_other() -> None:
    """An outage or a bug in one renewal leaves the thread running, also after a time without calls."""
    renewals = Renewals()
    calls: list[int] = []

    def away() -> None:
        raise redis.ConnectionError

    def broken() -> None:
        raise ValueError("a bug")

    for fault in (away, broken):
        with renewals.keep(fault, 0.01), renewals.keep(lambda: calls.append(1), 0.05):
            before = len(calls)
            eventually(lambda before=before: len(calls) >= before + 3, 30)  # type: ignore[misc]
        eventually(lambda: renewals._asleep, 30)


def test_a_renewal_that_waits_for_the_store_delays_no_other() -> None:
    """While one waits for its connection, the leases of all other calls are renewed."""
    renewals, answered = Renewals(), threading.Event()
    calls: list[int] = []
    with renewals.keep(lambda: answered.wait(60), 0.01):
        with renewals.keep(lambda: calls.append(1), 0.05):
            eventually(lambda: len(calls) >= 5, 30)
        answered.set()
