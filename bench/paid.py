"""A paid inline task: what it costs all processes, against official middlewares and floors written by hand.

Servers, their store and their work share the first core; load and facilitator have the second.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence

from bench import sellers
from bench.agents import PRICE
from bench.batches import pack
from bench.purchases import WALLETS, Target, contracts, paying, plain
from bench.rounds import Contender, Measurement, Reading, WorkMissing, interleave
from bench.sellers import Seller, Served, served
from bench.stand import ROOT, Stand

NAME = "paid"
_CONNECTIONS = 64
_TAIL_CONNECTIONS = 32
_CAPABILITY = "nothing-paid"


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, count = (1, 24) if quick else (5, 600)
    all_sellers = [sellers.WORKER, sellers.PLAIN, sellers.BY_HAND, sellers.JOURNALED, sellers.FLASK]
    if not quick:
        all_sellers += sellers.others()
    contenders = [
        Contender(seller.name, lambda seller=seller: _round(stand, seller, count))  # type: ignore[misc]
        for seller in all_sellers
    ]
    with sellers.pinned(not quick):
        readings = interleave(contenders, rounds, told)
    about = f"a paid task of {PRICE} USDC that does nothing; one web process, {_CONNECTIONS} connections"
    found = Measurement(NAME, about, readings)
    _goals(found)
    found.notes += [
        "cpu_us: processor time per task of web, work, clock and store together",
        f"p50_ms: one connection; p99_ms: {_TAIL_CONNECTIONS} connections",
        "by-hand: Flask and two facilitator calls; journaled: with three scripts on the same store",
        "each round's charges were counted at the facilitator",
    ]
    return found


def _goals(found: Measurement) -> None:
    found.below("CPU µs of all processes for a contract", "worker", "cpu_us", 3_400)
    found.below("CPU µs of all processes for a plain purchase", "plain", "cpu_us", 3_400)
    found.below("round trips to the store", "worker", "trips", 12)
    found.below("bytes kept in the store for a finished hire", "worker", "kept_bytes", 5_000)
    found.at_most("CPU against the journaled floor", "worker", "journaled", "cpu_us", 1.8)
    found.at_most("the plain door's CPU against the HIRE door's", "plain", "worker", "cpu_us", 1.05)
    found.at_least("tasks a second against official Flask", "worker", "flask", "per_second", 0.5)
    found.at_most("p99 against official Flask", "worker", "flask", "p99_ms", 2.0)
    if "fastapi" in found.readings:
        found.at_least("tasks a second against official FastAPI", "worker", "fastapi", "per_second", 2.0)


def _round(stand: Stand, seller: Seller, count: int) -> Reading:
    keys = ["0x" + secrets.token_hex(32) for _ in range(WALLETS)]
    few = max(10, count // 6)
    with served(stand, seller) as at:
        # The first purchase of each wallet, after which it is no newcomer, and everybody's code is warm.
        [first] = _requests(at, keys, [WALLETS])
        send(at, stand, first, 4)
        empty = stand.memory()
        batches = _requests(at, keys, [count, few, count // 2])
        before, web, work = stand.spent(), at.web.cpu(), at.work.cpu()
        shown = send(at, stand, batches[0], _CONNECTIONS)
        spent = stand.spent().since(before)
        web, work = at.web.cpu() - web, at.work.cpu() - work
        one, tail = send(at, stand, batches[1], 1), send(at, stand, batches[2], _TAIL_CONNECTIONS)
        settled, kept = at.settled(), stand.memory() - empty
    asked = WALLETS + count + few + count // 2
    return {
        "asked": asked,
        "done": settled if settled == asked else -settled,
        "cpu_us": (web + work + spent.seconds) / count * 1e6,
        "web_us": web / count * 1e6,
        "work_us": work / count * 1e6,
        "store_us": spent.seconds / count * 1e6,
        "trips": spent.trips / count,
        "commands": spent.commands / count,
        "per_second": count / shown["seconds"],
        "kept_bytes": max(0.0, kept / (asked - WALLETS)),
        "p50_ms": one["p50_ms"],
        "p99_ms": tail["p99_ms"],
    }


def _requests(at: Served, keys: Sequence[str], sizes: Sequence[int]) -> list[list[bytes]]:
    """Paid requests in batches of these sizes."""
    if at.seller.path == sellers.WORKER.path:
        made = paying(at.port, contracts(at.port, _CAPABILITY, keys, sum(sizes)))
    elif "bench.floors:create_app()" in at.seller.command:
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
    at: Served, stand: Stand, requests: Sequence[bytes], connections: int, status: int = 200
) -> dict[str, float]:
    """Sends them all from the second core; every one must get this status."""
    file = pack(requests, stand.folder / "requests")
    command = [*sellers.load_prefix(), sys.executable, "-m", "bench.replay"]
    done = subprocess.run(
        [*command, str(at.port), str(connections), str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise WorkMissing(f"a client failed: {done.stderr.strip().splitlines()[-1:]}")
    seen: dict[str, float] = json.loads(done.stdout)
    if seen.get(f"status_{status}") != len(requests):
        raise WorkMissing(f"{at.seller.name} answered {seen}")
    return seen
