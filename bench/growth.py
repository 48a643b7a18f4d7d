"""What many finished and waiting executions cost others: 402, paid task, replay, list and the idle clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench import copies, sellers
from bench.batches import get
from bench.paid import send
from bench.purchases import WALLETS, asking, contracts, paying, wallets
from bench.rounds import Contender, Measurement, Reading, interleave
from bench.sellers import Served, served
from bench.stand import Stand
from bench.stand import stand as new_stand

NAME = "growth"
_CONNECTIONS = 16
_ROWS = 50
# How often each 402 and each replay is asked for, because it takes so little.
_REPEATS = 5
# What is compared, and its name among the figures.
_ANSWERS = {"402": "asked", "paid task": "paid", "replay": "replayed", "list": "listed"}


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, hires, finished, queued = (1, 16, 100, 20) if quick else (5, 320, 100_000, 10_000)
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
    for text, name in _ANSWERS.items():
        found.at_most(f"{text}: CPU against an empty store", "grown", "empty", f"{name}_us", 1.1)
        found.at_most(f"{text}: commands against an empty store", "grown", "empty", f"{name}_commands", 1.1)
        # The clock's own trips count for more where an answer takes only one or two.
        limit = 1.02 if name == "paid" else 1.1
        found.at_most(f"{text}: trips against an empty store", "grown", "empty", f"{name}_trips", limit)
    found.below("share of a core that work and clock take when idle", "grown", "idle_share", 0.03)
    found.notes += [
        f"list: GET /v0/executions, {_ROWS} rows",
        f"CPU is that of web and store, for a paid task of all; {_CONNECTIONS} connections",
        "trips are counted with one connection, because under load many requests share one",
    ]
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
        listed = [get(f"/v0/executions?limit={_ROWS}")] * hires
        reading = {
            "asked": WALLETS + hires,
            **_figures("asked", at, stand, asked, 402),
            **_figures("paid", at, stand, paid),
            **_figures("replayed", at, stand, paid * repeats),
            **_figures("listed", at, stand, listed),
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


def _figures(
    name: str, at: Served, stand: Stand, requests: Sequence[bytes], status: int = 200
) -> dict[str, float]:
    """Per request, what the clock does meanwhile included; work processes count for a paid task only."""
    alone, together = requests[: len(requests) // 4], requests[len(requests) // 4 :]
    crowds = [at.web, at.work] if name == "paid" else [at.web]
    before, cpu = stand.spent(), sum(each.cpu() for each in crowds)
    send(at, stand, together, _CONNECTIONS, status)
    spent, cpu = stand.spent().since(before), sum(each.cpu() for each in crowds) - cpu
    before = stand.spent()
    send(at, stand, alone, 1, status)
    return {
        f"{name}_us": (cpu + spent.seconds) / len(together) * 1e6,
        f"{name}_commands": spent.commands / len(together),
        f"{name}_trips": stand.spent().since(before).trips / len(alone),
    }


def _fill(stand: Stand, finished: int, queued: int) -> None:
    """Executions that have ended, and some that wait behind one that sleeps."""
    stand.empty()
    parts = stand.parts()
    stand.admin.config_set("appendfsync", "no")
    copies.finished(stand, finished)
    for _ in range(queued):
        parts.executions.create("sleeper", None, door="bench")
    stand.admin.config_set("appendfsync", "always")
