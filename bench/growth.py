"""What many finished and waiting executions cost others: 402, paid task, replay, list and the idle clock."""

from __future__ import annotations

import secrets
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from bench import sellers
from bench.paid import send
from bench.purchases import WALLETS, asking, contracts, paying
from bench.rounds import Contender, Measurement, Reading, WorkMissing, interleave
from bench.sellers import Served, served
from bench.stand import Stand
from worker.engine.answers import SealAnswer
from worker.parts import Parts

NAME = "growth"
_CONNECTIONS = 16
_IDLE_SECONDS = 5.0
_LISTS = 100


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, hires, finished, queued = (1, 16, 100, 20) if quick else (3, 200, 10_000, 1_000)
    contenders = [
        Contender("empty", lambda: _round(stand, hires, 0, 0)),
        Contender("grown", lambda: _round(stand, hires, finished, queued)),
    ]
    with sellers.pinned(not quick):
        readings = interleave(contenders, rounds, told)
    about = f"a store with {finished:,} finished executions and {queued:,} that wait, against an empty one"
    found = Measurement(NAME, about, readings)
    for figure in ("asked_us", "paid_us", "replayed_us", "listed_us"):
        text = f"{figure.removesuffix('_us')}: CPU against an empty store"
        found.at_most(text, "grown", "empty", figure, 1.1)
    found.at_most("trips of a paid task against an empty store", "grown", "empty", "paid_trips", 1.02)
    found.below("share of a core that work and clock take when idle", "grown", "idle_share", 0.03)
    found.notes.append("listed: GET /v0/executions, 50 rows; CPU is that of web and store, for paid of all")
    return found


def _round(stand: Stand, hires: int, finished: int, queued: int) -> Reading:
    keys = ["0x" + secrets.token_hex(32) for _ in range(WALLETS)]
    with served(stand, sellers.WORKER) as at:
        _fill(stand.parts(), finished, queued)
        hired = contracts(at.port, "nothing-paid", keys, WALLETS + hires)
        requests = paying(at.port, hired)
        send(at, stand, requests[:WALLETS], 4)
        asked, paid = asking(at.port, hired[WALLETS:]), requests[WALLETS:]
        reading = {
            "asked": WALLETS + hires,
            **_figures("asked", at, stand, hires, lambda: send(at, stand, asked, _CONNECTIONS, 402)),
            **_figures("paid", at, stand, hires, lambda: send(at, stand, paid, _CONNECTIONS)),
            **_figures("replayed", at, stand, hires, lambda: send(at, stand, paid, _CONNECTIONS)),
            **_figures("listed", at, stand, _LISTS, lambda: _list(at)),
        }
        cpu = at.work.cpu()
        time.sleep(_IDLE_SECONDS)
        idle = at.work.cpu() - cpu
        return {**reading, "idle_share": idle / _IDLE_SECONDS, "done": at.settled()}


def _figures(name: str, at: Served, stand: Stand, count: int, load: Callable[[], object]) -> dict[str, float]:
    with_work = name == "paid"
    before, cpu = stand.spent(), at.web.cpu() + (at.work.cpu() if with_work else 0.0)
    load()
    spent, cpu = stand.spent().since(before), at.web.cpu() + (at.work.cpu() if with_work else 0.0) - cpu
    return {
        f"{name}_us": (cpu + spent.seconds) / count * 1e6,
        f"{name}_trips": spent.trips / count,
    }


def _list(at: Served) -> None:
    for _ in range(_LISTS):
        url = f"http://127.0.0.1:{at.port}/v0/executions?limit=50"
        with urllib.request.urlopen(url, timeout=30) as answer:
            answer.read()


def _fill(parts: Parts, finished: int, queued: int) -> None:
    """Executions that have ended, and some that wait behind one that sleeps."""

    def fill(numbers: Sequence[int]) -> None:
        for _ in numbers:
            _complete(parts)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fill, [range(start, finished, 4) for start in range(4)]))
    for _ in range(queued):
        parts.executions.create("sleeper", None, door="bench")


def _complete(parts: Parts) -> None:
    _, id = parts.executions.create("nothing-express", None, door="bench")
    taken = parts.store.take(id, lease_us=60_000_000, worker="bench", session="bench")
    if taken is None:
        return  # a warm process was quicker, and completes it as well
    sealed = parts.store.seal(
        id,
        taken[0].fence,
        "completed",
        output=b"{}",
        result=b'{"type":"json","files":[]}',
        error=b"",
        payload=b"{}",
    )
    if sealed is not SealAnswer.OK:
        raise WorkMissing(f"an execution did not end: {sealed}")
