"""A paid inline task: what it costs all processes, against official middlewares and floors written by hand.

Servers, their store and their work share the first core; load and facilitator have the second.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable, Sequence

from bench import sellers
from bench.agents import PRICE
from bench.batches import pack
from bench.purchases import WALLETS, Target, contracts, paying, plain, wallets
from bench.rounds import Contender, Measurement, Reading, WorkMissing, interleave
from bench.sellers import Seller, Served, served
from bench.stand import Stand, client

NAME = "paid"
_CONNECTIONS = 64
_TAIL_CONNECTIONS = 32
# Below what the slowest contender can do, so that latency is compared and not a queue.
_RATE = 100
_CALLS = 100
_CAPABILITY = "nothing-paid"
_HEADERS = {"Content-Type": "application/json"}


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, count = (1, 24) if quick else (5, 500)
    compared = [sellers.WORKER, sellers.PLAIN, sellers.BY_HAND, sellers.JOURNALED, sellers.FLASK]
    shown = []
    if not quick:
        compared += sellers.fastapi(1)
        shown = [sellers.JOURNALED_AS_SERVED, *sellers.node_servers()]
    contenders = [
        Contender(each.name, lambda each=each: _round(stand, each, count), each in shown)  # type: ignore[misc]
        for each in (*compared, *shown)
    ]
    with sellers.pinned(not quick):
        readings = interleave(contenders, rounds, told)
    about = f"a paid task of {PRICE} USDC that does nothing; one web process, {_CONNECTIONS} connections"
    found = Measurement(NAME, about, readings)
    _goals(found)
    found.notes += [
        "worker, plain: one web and one express process",
        "cpu_us: processor time per task of web, work, clock and store together",
        "p50_ms: one connection; added_ms: the same without the two facilitator calls, as made by hand",
        "alone_trips: those of the clock included",
        f"p99_ms: {_TAIL_CONNECTIONS} connections, closed loop",
        f"open_p99_ms: {_RATE} requests due a second whatever the server does, time waiting for it included",
        "by-hand: Flask and two facilitator calls, gunicorn as published; journaled: with three scripts on"
        " the same store; journaled, our server: the same under the worker's own HTTP",
        "each round's charges were counted at the facilitator",
    ]
    return found


def _goals(found: Measurement) -> None:
    found.below("CPU µs of all processes for a contract", "worker", "cpu_us", 3_400)
    found.below("CPU µs of all processes for a plain purchase", "plain", "cpu_us", 3_400)
    found.below("round trips to the store, one connection", "worker", "alone_trips", 12)
    found.below("bytes kept in the store for a finished hire", "worker", "kept_bytes", 5_000)
    found.at_most("CPU against the journaled floor", "worker", "journaled", "cpu_us", 1.8)
    found.at_most("the plain door's CPU against the HIRE door's", "plain", "worker", "cpu_us", 1.05)
    found.at_least("tasks a second against official Flask", "worker", "flask", "per_second", 0.5)
    found.below("ms that one connection waits over the two facilitator calls", "worker", "added_ms", 2.5)
    found.at_most("p99 of 32 connections against official Flask", "worker", "flask", "p99_ms", 2.0)
    if "fastapi" in found.readings:
        found.at_least("tasks a second against official FastAPI", "worker", "fastapi", "per_second", 2.0)


def _round(stand: Stand, seller: Seller, count: int) -> Reading:
    sizes = [WALLETS, count, max(10, count // 6), count // 2, count // 3]
    with served(stand, seller) as at:
        # The first purchase of each wallet, after which it is no newcomer, and everybody's code is warm.
        keys = wallets()
        [first] = paid_requests(at, _CAPABILITY, keys, sizes[:1])
        send(at, stand, first, 4)
        empty = stand.memory()
        batches = paid_requests(at, _CAPABILITY, keys, sizes[1:])
        cost = loaded(at, stand, batches[0], _CONNECTIONS)
        before = stand.spent()
        one = send(at, stand, batches[1], 1)
        alone = stand.spent().since(before)
        tail = send(at, stand, batches[2], _TAIL_CONNECTIONS)
        due = send(at, stand, batches[3], _CONNECTIONS, rate=_RATE)
        settled, kept = at.settled(), stand.memory() - empty
        facilitator_ms = calls_ms(at)
    asked = sum(sizes)
    return {
        "asked": asked,
        "done": settled if settled == asked else -settled,
        **cost,
        "alone_trips": alone.trips / sizes[2],
        "kept_bytes": max(0.0, kept / (asked - WALLETS)),
        "p50_ms": one["p50_ms"],
        "added_ms": max(0.0, one["p50_ms"] - facilitator_ms),
        "p99_ms": tail["p99_ms"],
        "open_p99_ms": due["p99_ms"],
    }


def loaded(at: Served, stand: Stand, requests: Sequence[bytes], connections: int) -> dict[str, float]:
    """Sends them all; what one of them cost whom, and how many there were a second."""
    before, cpu = stand.spent(), [each.cpu() for each in (at.web, at.work, at.facilitator)]
    shown = send(at, stand, requests, connections)
    spent, count = stand.spent().since(before), len(requests)
    web, work, facilitator = (
        each.cpu() - then for each, then in zip((at.web, at.work, at.facilitator), cpu, strict=True)
    )
    return {
        "cpu_us": (web + work + spent.seconds) / count * 1e6,
        "web_us": web / count * 1e6,
        "work_us": work / count * 1e6,
        "store_us": spent.seconds / count * 1e6,
        "load_us": (facilitator + shown["client_cpu"]) / count * 1e6,
        "trips": spent.trips / count,
        "commands": spent.commands / count,
        "per_second": count / shown["seconds"],
    }


def calls_ms(at: Served) -> float:
    """The median of verify and settle together, ms, on one kept connection without a seller."""
    link, times = http.client.HTTPConnection("127.0.0.1", at.facilitator_port, timeout=10), []
    for number in range(_CALLS):
        payment = {"payload": {"authorization": {"from": sellers.PAYEE, "nonce": f"{number:#066x}"}}}
        body = json.dumps({"x402Version": 2, "paymentPayload": payment})
        began = time.perf_counter()
        for operation in ("/verify", "/settle"):
            link.request("POST", operation, body, _HEADERS)
            link.getresponse().read()
        times.append(time.perf_counter() - began)
    link.close()
    return statistics.median(times) * 1e3


def paid_requests(
    at: Served, capability: str, keys: Sequence[str], sizes: Sequence[int]
) -> list[list[bytes]]:
    """Paid requests of these wallets, in batches of these sizes."""
    if at.seller.path == sellers.WORKER.path:
        made = paying(at.port, contracts(at.port, capability, keys, sum(sizes)))
    elif at.seller.is_floor:
        # They ask for nothing: what another seller's offer asks for is as good.
        made = _for_floor(at, keys, sum(sizes))
    else:
        made = plain(Target(at.port, at.seller.path), keys, sum(sizes))
    batches, at_request = [], 0
    for size in sizes:
        batches.append(made[at_request : at_request + size])
        at_request += size
    return batches


def _for_floor(at: Served, keys: Sequence[str], count: int) -> list[bytes]:
    offer = {
        "accepts": [
            {
                "scheme": "exact",
                "network": "eip155:84532",
                "amount": "10000",
                "asset": "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
                "payTo": sellers.PAYEE,
                "maxTimeoutSeconds": 300,
                "extra": {"name": "USDC", "version": "2"},
            }
        ],
        "resource": {"url": f"http://127.0.0.1:{at.port}{at.seller.path}", "mimeType": "application/json"},
    }
    return plain(Target(at.port, at.seller.path), keys, count, offer)


def send(
    at: Served,
    stand: Stand,
    requests: Sequence[bytes],
    connections: int,
    status: int = 200,
    *,
    rate: int = 0,
) -> dict[str, float]:
    """Sends them all from the second core, so many a second if `rate`; every one must get this status."""
    file = pack(requests, stand.folder / "requests")
    seen = client("bench.replay", at.port, connections, file, rate, prefix=sellers.load_prefix())
    if seen.get(f"status_{status}") != len(requests):
        raise WorkMissing(f"{at.seller.name} answered {seen}")
    return seen
