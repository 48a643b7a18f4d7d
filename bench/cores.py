"""Paid inline tasks a second when sellers, store, load and facilitator share all cores, each at its best."""

from __future__ import annotations

from collections.abc import Callable

from bench import sellers
from bench.agents import PRICE
from bench.paid import calls_ms, loaded, paid_requests, send
from bench.purchases import WALLETS, wallets
from bench.rounds import Contender, Measurement, Reading, interleave
from bench.sellers import Seller, served
from bench.stand import Stand

NAME = "cores"
_CONNECTIONS = 64
# Found by trying; fewer or more are slower on two cores. Several processes of ours share fewer round trips to
# the store, which costs more than they add.
_PROCESSES = "1"
_FLASK_PROCESSES = 3
_FASTAPI_PROCESSES = 2


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, count = (1, 24) if quick else (5, 1_000)
    all_sellers = [sellers.WORKER, sellers.PLAIN, sellers.flask(_FLASK_PROCESSES)]
    if not quick:
        all_sellers += sellers.fastapi(_FASTAPI_PROCESSES)
    contenders = [
        Contender(seller.name, lambda seller=seller: _round(stand, seller, count))  # type: ignore[misc]
        for seller in all_sellers
    ]
    about = f"a paid task of {PRICE} USDC that does nothing, on all cores, {_CONNECTIONS} connections"
    found = Measurement(NAME, about, interleave(contenders, rounds, told))
    found.at_least("tasks a second against official Flask", "worker", "flask", "per_second", 0.5)
    if "fastapi" in found.readings:
        found.at_least("tasks a second against official FastAPI", "worker", "fastapi", "per_second", 2.0)
    found.below("ms that one connection waits over the two facilitator calls", "worker", "added_ms", 2.5)
    found.notes += [
        f"worker, plain: {_PROCESSES} web and {_PROCESSES} express process",
        f"flask: {_FLASK_PROCESSES} processes; fastapi: {_FASTAPI_PROCESSES}",
        "load_us: client and facilitator, which have the same cores",
        "p50_ms: one connection; added_ms: the same without the two facilitator calls, as made by hand",
    ]
    return found


def _round(stand: Stand, seller: Seller, count: int) -> Reading:
    with served(stand, seller, WEB_CONCURRENCY=_PROCESSES, EXPRESS_PROCESSES=_PROCESSES) as at:
        sizes = [WALLETS, count, max(10, count // 4)]
        first, requests, single = paid_requests(at, "nothing-paid", wallets(), sizes)
        send(at, stand, first, 4)
        cost = loaded(at, stand, requests, _CONNECTIONS)
        one = send(at, stand, single, 1)["p50_ms"]
        settled, facilitator_ms = at.settled(), calls_ms(at)
    asked = sum(sizes)
    return {
        "asked": asked,
        "done": settled if settled == asked else -settled,
        **cost,
        "p50_ms": one,
        "added_ms": max(0.0, one - facilitator_ms),
    }
