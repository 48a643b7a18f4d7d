"""What a 402 and the replay of a finished task cost the web process, against their floors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench import sellers
from bench.paid import send
from bench.purchases import Target, asking, contracts, paying, wallets
from bench.rounds import Contender, Measurement, Reading, WorkMissing, interleave
from bench.sellers import Seller, Served, floor, served
from bench.stand import Stand

NAME = "answers"
_CONNECTIONS = 64
_ASKED_FLOOR = floor("402-floor", "/asked")
_REPLAYED_FLOOR = floor("replay-floor", "/replayed")


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, hires, count = (1, 8, 40) if quick else (5, 64, 2_000)
    contenders = [
        Contender("402", lambda: _worker(stand, hires, count, replayed=False)),
        Contender("402-floor", lambda: _bare(stand, _ASKED_FLOOR, count, 402)),
        Contender("402-flask", lambda: _bare(stand, sellers.FLASK, count, 402)),
        Contender("replay", lambda: _worker(stand, hires, count, replayed=True)),
        Contender("replay-floor", lambda: _bare(stand, _REPLAYED_FLOOR, count, 200)),
    ]
    with sellers.pinned(not quick):
        readings = interleave(contenders, rounds, told)
    found = Measurement(
        NAME,
        f"402 of a known contract and replay of a finished one; one web process, {_CONNECTIONS} connections",
        readings,
    )
    found.at_most("web CPU of a 402 against its floor", "402", "402-floor", "web_us", 1.3)
    found.at_most("web CPU of a replay against its floor", "replay", "replay-floor", "web_us", 1.3)
    found.notes += [
        "402-floor: Flask, JSON and one GET; replay-floor: Flask, a digest and one GET",
        "402-flask: the official Flask middleware, which looks nothing up",
        "no answer charged: the charges of each round were counted at the facilitator",
    ]
    return found


def _worker(stand: Stand, hires: int, count: int, *, replayed: bool) -> Reading:
    keys = wallets()
    with served(stand, sellers.WORKER) as at:
        hired = contracts(at.port, "nothing-paid", keys, hires)
        requests = paying(at.port, hired) if replayed else asking(at.port, hired)
        if replayed:
            send(at, stand, requests, 4)
        found = _loaded(at, stand, requests, count, 200 if replayed else 402)
        charges = at.settled()
    if charges != (hires if replayed else 0):
        raise WorkMissing(f"{charges} charges for {hires} contracts")
    return found


def _bare(stand: Stand, seller: Seller, count: int, status: int) -> Reading:
    with served(stand, seller) as at:
        return _loaded(at, stand, [Target(at.port, seller.path).request({})], count, status)


def _loaded(at: Served, stand: Stand, requests: Sequence[bytes], count: int, status: int) -> Reading:
    repeated = [requests[number % len(requests)] for number in range(count)]
    send(at, stand, repeated[: count // 10], 4, status)
    before, cpu = stand.spent(), at.web.cpu()
    shown = send(at, stand, repeated, _CONNECTIONS, status)
    spent, cpu = stand.spent().since(before), at.web.cpu() - cpu
    return {
        "asked": count,
        "done": shown["answered"],
        "web_us": cpu / count * 1e6,
        "store_us": spent.seconds / count * 1e6,
        "trips": spent.trips / count,
        "commands": spent.commands / count,
        "per_second": count / shown["seconds"],
    }
