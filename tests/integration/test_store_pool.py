"""Many greenlets share a few store connections, against a real Valkey."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from worker.local.valkey import EmbeddedStore

ROOT = Path(__file__).parents[2]

FAIR = """
import redis
CALLS, CROWD = 40, 64
store = connect(settings, role="web")
counts, widest = [0] * CROWD, 0

def work(number):
    global widest
    for _ in range(CALLS):
        store.incr("n")
        counts[number] += 1
        widest = max(widest, max(counts) - min(counts))

gevent.joinall([gevent.spawn(work, number) for number in range(CROWD)], raise_error=True)
print(json.dumps({"counted": int(store.get("n")), "widest": widest}))
"""

RESERVED = """
import redis, time
from worker.store import pool as store_pool
from worker.store.pool import used_for
store_pool.PATIENCE = 0.3
store = connect(settings, role="web")
order, refused = [], []

def call(name, what, command):
    with used_for(what):
        try:
            store.eval(command, 0) if isinstance(command, str) else command()
            order.append(name)
        except redis.ConnectionError:
            refused.append(name)

def slow():
    store.blpop(["never"], 1)

crowd = [gevent.spawn(call, f"request {n}", "request", slow) for n in range(60)]
gevent.sleep(0.1)
kept = [gevent.spawn(call, what, what, "return 1") for what in ("stream", "paid")]
gevent.joinall(kept)
first = list(order)
many = [gevent.spawn(call, "paid again", "paid", slow) for n in range(12)]
gevent.joinall(crowd + many)
print(json.dumps({
    "first": sorted(first), "refused": sorted(set(name.split()[0] for name in refused)),
    "paid": order.count("paid again"), "requests": sum(name.startswith("request") for name in order),
}))
"""


def run(program: str, url: str) -> dict[str, Any]:
    start = """
from gevent import monkey; monkey.patch_all()
import gevent, json, os
from worker.core.settings import Settings
from worker.store.client import connect
settings = Settings.load(os.environ)
"""
    done = subprocess.run(
        [sys.executable, "-c", start + program],
        cwd=ROOT,
        env={**os.environ, "REDIS_URL": url, "STORE_CONNECTIONS": "9"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("client")
def test_no_waiting_greenlet_is_stranded(valkey: EmbeddedStore) -> None:
    """Sixty-four share eight connections (a ninth is separate); none is ever over two calls ahead."""
    found = run(FAIR, valkey.url)
    assert found["counted"] == 64 * 40
    assert found["widest"] <= 2


@pytest.mark.usefixtures("client")
def test_many_requests_leave_connections_for_streams_and_paid_work(valkey: EmbeddedStore) -> None:
    """While requests hold all their connections, streams and paid calls run; no paid call is refused."""
    found = run(RESERVED, valkey.url)
    assert found["first"] == ["paid", "stream"]
    assert found["refused"] == ["request"], "requests lost patience, and nobody else"
    assert found["paid"] == 12 and found["requests"] >= 6
