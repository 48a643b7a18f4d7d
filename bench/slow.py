"""A slow facilitator: how near paid tasks a second come to the bound of its delays, and how polls fare."""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from collections.abc import Callable

from bench import sellers
from bench.paid import send
from bench.purchases import Target, contracts, plain, wallets
from bench.rounds import Contender, Measurement, Reading, interleave, latencies
from bench.sellers import served
from bench.stand import Stand

NAME = "slow"
_CONNECTIONS = 256
_VERIFY_S, _SETTLE_S = 0.1, 2.0
# A wallet's one paid task vouches for one open payment of it, and newcomers share few places.
_WALLETS = 2 * _CONNECTIONS
# Tasks that show how long one takes, before more of them come at once.
_FIRST, _FIRST_CONNECTIONS = 16, 64


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, connections, each = (1, 16, 1) if quick else (3, _CONNECTIONS, 14)
    contenders = [Contender("plain", lambda: _round(stand, connections, each))]
    with sellers.pinned(not quick):
        readings = interleave(contenders, rounds, told)
    found = Measurement(
        NAME,
        f"{connections} connections; verify takes {_VERIFY_S:g} s and settle {_SETTLE_S:g} s",
        readings,
    )
    found.above("of the bound: connections over 2.1 s", "plain", "of_bound", 0.9)
    found.below("p99 of polls meanwhile, ms", "plain", "poll_p99_ms", 100.0)
    found.notes.append("one finished task is polled, twenty times a second")
    return found


def _round(stand: Stand, connections: int, each: int) -> Reading:
    keys = wallets(min(_WALLETS, 2 * connections))
    count = connections * each
    with served(stand, sellers.PLAIN, verify_s=_VERIFY_S, settle_s=_SETTLE_S) as at:
        requests = plain(Target(at.port, at.seller.path), keys, len(keys) + count)
        for batch in (requests[:_FIRST], requests[_FIRST : len(keys)]):
            if batch:
                send(at, stand, batch, min(_FIRST_CONNECTIONS, len(batch)))
        with _Polls(_bought(at.port, keys[0])) as polls:
            before, cpu = stand.spent(), at.web.cpu() + at.work.cpu()
            shown = send(at, stand, requests[len(keys) :], connections)
            cpu = at.web.cpu() + at.work.cpu() - cpu + stand.spent().since(before).seconds
        settled = at.settled()
    bound = connections / (_VERIFY_S + _SETTLE_S)
    return {
        "asked": len(keys) + 1 + count,
        "done": settled,
        "per_second": count / shown["seconds"],
        "cpu_us": cpu / count * 1e6,
        "of_bound": count / shown["seconds"] / bound,
        "p50_ms": shown["p50_ms"],
        "p99_ms": shown["p99_ms"],
        "poll_p99_ms": polls.p99_ms,
    }


def _bought(port: int, key: str) -> urllib.request.Request:
    """Buys one task with a contract; how to poll it."""
    [hired] = contracts(port, "nothing-paid", [key], 1)
    task = hired.pay().json["task_id"]
    return urllib.request.Request(
        f"http://127.0.0.1:{port}/tasks/{task}", headers={"X-Contract-ID": hired.id}
    )


class _Polls:
    """Asks for a task twenty times a second until the block ends."""

    def __init__(self, request: urllib.request.Request) -> None:
        self._request = request
        self._times: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Polls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        if sellers.load_prefix():
            os.sched_setaffinity(0, {1})  # of this thread alone: the load's core
        while not self._over.wait(0.05):
            began = time.perf_counter()
            with urllib.request.urlopen(self._request, timeout=30) as answer:
                answer.read()
            self._times.append(time.perf_counter() - began)

    @property
    def p99_ms(self) -> float:
        return latencies(self._times)["p99_ms"]
