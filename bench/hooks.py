"""Webhooks to many receivers, against plain `requests` in as many threads.

Executions that asked for a webhook have ended; then the process that sends starts. Time runs from the first
call that a receiver sees to the last.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import requests

from bench.receivers import host
from bench.rounds import Contender, Measurement, Reading, WorkMissing, interleave
from bench.stand import Stand, answers, fetch, until
from worker.delivery.webhook_pool import THREADS
from worker.engine.answers import SealAnswer
from worker.local.valkey import free_port
from worker.parts import Parts

NAME = "webhooks"
_RECEIVERS = 100
_RESULT = b'{"type":"json","files":[]}'
_BODY = json.dumps({"event": "task_completed", "filler": "x" * 600})


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, count = (1, 40) if quick else (5, 1_000)
    contenders = [
        Contender("worker", lambda: _sent_by_worker(stand, count)),
        Contender("requests", lambda: _sent_by_requests(stand, count)),
    ]
    about = f"{count} webhooks to {_RECEIVERS} receivers, {THREADS} threads"
    found = Measurement(NAME, about, interleave(contenders, rounds, told))
    found.at_least("webhooks a second against plain requests", "worker", "requests", "per_second", 0.7)
    found.notes.append("the worker's are signed, journaled before and after, and checked for their address")
    return found


def _sent_by_worker(stand: Stand, count: int) -> Reading:
    stand.empty()
    environ = stand.environ(WORKER_KEY="0x" + "22" * 32)
    with _receivers(stand) as port:
        _ended(stand.parts(), port, count)
        with stand.processes([["-m", "worker", "work"]], environ) as work:
            until(lambda: _calls(port)["calls"] > 0, "no webhook arrived")
            cpu, first = work.cpu(), _calls(port)["calls"]  # what a start costs does not count
            until(lambda: _calls(port)["calls"] >= count, "webhooks did not arrive", every=0.05)
            cpu = work.cpu() - cpu
        return _reading(port, count) | {"cpu_us": cpu / max(1, count - first) * 1e6}


def _sent_by_requests(stand: Stand, count: int) -> Reading:
    with _receivers(stand) as port:
        began = time.process_time()

        def send(number: int) -> None:
            url = f"http://{host(number % _RECEIVERS)}:{port}/hook"
            requests.post(url, data=_BODY, headers={"Content-Type": "application/json"}, timeout=10)

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(send, range(count)))
        return _reading(port, count) | {"cpu_us": (time.process_time() - began) / count * 1e6}


def _reading(port: int, count: int) -> dict[str, float]:
    seen = _calls(port)
    return {"asked": count, "done": seen["calls"], "per_second": (count - 1) / seen["seconds"]}


@contextmanager
def _receivers(stand: Stand) -> Iterator[int]:
    port = free_port()
    with stand.processes([["-m", "bench.receivers", str(port), str(_RECEIVERS)]]):
        until(lambda: answers(port, "/count"), "the receivers did not start")
        yield port


def _calls(port: int) -> dict[str, float]:
    found: dict[str, float] = json.loads(fetch(port, "/count"))
    return found


def _ended(parts: Parts, port: int, count: int) -> None:
    """Completed executions of as many wallets that have paid, each with a webhook."""
    store, keys, client = parts.store, parts.keys, parts.client
    for number in range(count):
        _, id = parts.executions.create("nothing-queued", None, door="bench")
        taken = store.take(id, lease_us=60_000_000, worker="bench", session="bench")
        assert taken is not None
        wallet = f"0x{number:040x}"
        hooks = json.dumps([{"url": f"http://{host(number % _RECEIVERS)}:{port}/hook"}])
        with client.pipeline(transaction=False) as pipe:
            pipe.hset(keys.record(id), "hooks", hooks)
            pipe.hset(keys.money(id), "1 payer", wallet)
            pipe.hset(keys.wallets, f"paid {wallet}", 1)
            pipe.execute()
        sealed = store.seal(
            id, taken[0].fence, "completed", output=b"{}", result=_RESULT, error=b"", payload=b"{}"
        )
        if sealed is not SealAnswer.OK:
            raise WorkMissing(f"an execution did not end: {sealed}")
    # Messages about them would keep the queue's process busy beside the one that sends.
    client.delete(parts.queue.key)
