"""What many finished and waiting executions cost others: 402, paid task, replay, list and the idle clock."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable

from bench import copies, sellers
from bench.paid import send
from bench.purchases import WALLETS, asking, contracts, paying, wallets
from bench.rounds import Contender, Measurement, Reading, interleave
from bench.sellers import Served, served
from bench.stand import Stand
from bench.stand import stand as new_stand

NAME = "growth"
_CONNECTIONS = 16
_LISTS = 100
_ROWS = 50
# How often each unpaid answer is asked for, because processor time is counted in ticks of 10 ms.
_REPEATS = 10


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, hires, finished, queued = (1, 16, 100, 20) if quick else (5, 160, 100_000, 10_000)
    repeats, idle = (1, 1.0) if quick else (_REPEATS, 5.0)
    contenders = [Contender("empty", lambda: _round(stand, hires, repeats, idle, grown=False))]
    with new_stand() as full:
        began = time.monotonic()
        _fill(full, finished, queued)
        told(f"  {finished:,} finished and {queued:,} queued in {time.monotonic() - began:.0f} s")
        contenders.append(Contender("grown", lambda: _round(full, hires, repeats, idle, grown=True)))
        with sellers.pinned(not quick):
            readings = interleave(contenders, rounds, told)
    about = f"a store with {finished:,} finished executions and {queued:,} that wait, against an empty one"
    found = Measurement(NAME, about, readings)
    for name in ("asked", "paid", "replayed", "listed"):
        found.at_most(f"{name}: CPU against an empty store", "grown", "empty", f"{name}_us", 1.1)
        found.at_most(f"{name}: trips against an empty store", "grown", "empty", f"{name}_trips", 1.1)
        found.at_most(f"{name}: commands against an empty store", "grown", "empty", f"{name}_commands", 1.1)
    found.below("share of a core that work and clock take when idle", "grown", "idle_share", 0.03)
    found.notes.append(
        f"listed: GET /v0/executions, {_ROWS} rows; CPU is that of web and store, for paid of all"
    )
    return found


def _round(stand: Stand, hires: int, repeats: int, idle_seconds: float, *, grown: bool) -> Reading:
    keys = wallets()
    if not grown:  # a full page to list, and an execution that sleeps
        _fill(stand, _ROWS, 1)
    with served(stand, sellers.WORKER, emptied=False) as at:
        hired = contracts(at.port, "nothing-paid", keys, WALLETS + hires)
        requests = paying(at.port, hired)
        send(at, stand, requests[:WALLETS], 4)
        asked, paid = asking(at.port, hired[WALLETS:]) * repeats, requests[WALLETS:]
        replayed = paid * repeats
        reading = {
            "asked": WALLETS + hires,
            **_figures("asked", at, stand, len(asked), lambda: send(at, stand, asked, _CONNECTIONS, 402)),
            **_figures("paid", at, stand, len(paid), lambda: send(at, stand, paid, _CONNECTIONS)),
            **_figures("replayed", at, stand, len(replayed), lambda: send(at, stand, replayed, _CONNECTIONS)),
            **_figures("listed", at, stand, _LISTS, lambda: _list(at)),
        }
        before, cpu = stand.spent(), at.work.cpu()
        time.sleep(idle_seconds)
        idle, spent = at.work.cpu() - cpu, stand.spent().since(before)
        return {
            **reading,
            "idle_share": idle / idle_seconds,
            "idle_store_share": spent.seconds / idle_seconds,
            "done": at.settled(),
        }


def _figures(name: str, at: Served, stand: Stand, count: int, load: Callable[[], object]) -> dict[str, float]:
    """Per request, what the clock does meanwhile included; work processes count for a paid task only."""
    crowds = [at.web, at.work] if name == "paid" else [at.web]
    before, cpu = stand.spent(), sum(each.cpu() for each in crowds)
    load()
    spent, cpu = stand.spent().since(before), sum(each.cpu() for each in crowds) - cpu
    return {
        f"{name}_us": (cpu + spent.seconds) / count * 1e6,
        f"{name}_trips": spent.trips / count,
        f"{name}_commands": spent.commands / count,
    }


def _list(at: Served) -> None:
    for _ in range(_LISTS):
        url = f"http://127.0.0.1:{at.port}/v0/executions?limit={_ROWS}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            answer.read()


def _fill(stand: Stand, finished: int, queued: int) -> None:
    """Executions that have ended, and some that wait behind one that sleeps."""
    stand.empty()
    parts = stand.parts()
    stand.admin.config_set("appendfsync", "no")
    copies.finished(stand, finished)
    for _ in range(queued):
        parts.executions.create("sleeper", None, door="bench")
    stand.admin.config_set("appendfsync", "always")
