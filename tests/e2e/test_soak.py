"""Hundreds of executions while processes are killed at random: each ends once and none is lost."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import psutil
import pytest
import redis

from tests.e2e.conftest import Measure
from tests.e2e.tree import Local, Trace, check_log, kill
from tests.waiting import eventually
from worker.engine.record import Execution

PAUSE = 0.05


class ProcessKiller(threading.Thread):
    """kill -9 of one process of the work trees each second: a warm one, a clock or a whole tree's parent.

    With `store`, every fifth kill hits the store.
    """

    def __init__(self, local: Local, seed: int, *, store: bool, most: int) -> None:
        super().__init__(daemon=True)
        self._most = most
        self._local = local
        self._store = store
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.killed: Counter[str] = Counter()

    def run(self) -> None:
        while not self._over.wait(1.0) and self.killed.total() < self._most:
            if self._store and self._random.random() < 0.2:
                pid = self._local.store_pid()
                with contextlib.suppress(ProcessLookupError):
                    if pid:
                        kill(pid)
                        self.killed["store"] += 1
                continue
            work = self._work()
            if not work:
                continue
            parents = {process.ppid() for process in work if _alive(process)}
            victim = self._random.choice(work)
            victim_kind = "parent" if victim.pid in parents else "child"
            with contextlib.suppress(ProcessLookupError):
                kill(victim.pid)
                self.killed[victim_kind] += 1

    def _work(self) -> list[psutil.Process]:
        found = []
        for process in self._local.members():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[-2:] == ["worker", "work"]:
                    found.append(process)
        return found

    def stop(self) -> None:
        self._over.set()
        self.join()


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("many", "seconds", "store"),
    [
        pytest.param(500, 60, False, id="500"),
        pytest.param(5_000, 600, False, id="5000", marks=pytest.mark.soak),
        pytest.param(2_000, 600, True, id="2000-and-the-store", marks=pytest.mark.soak),
    ],
)
def test_every_execution_ends_once(
    own: Callable[..., Local], many: int, seconds: float, store: bool, measure: Measure
) -> None:
    """Two trees, both lanes, steps and progress in each execution, and a kill every second."""
    seed = random.randrange(2**32)
    local = own("--work", "2")
    local.start()
    killer = ProcessKiller(local, seed, store=store, most=many // 25)
    began = time.monotonic()
    killer.start()
    try:
        ids = [_create(local, number) for number in range(many)]
        eventually(lambda: _open(local) == 0, seconds, "all have ended")
    finally:
        killer.stop()
    took = time.monotonic() - began
    eventually(lambda: local.request("GET", "/ready").status == 200, 20, "ready again")
    assert killer.killed.total() >= min(many // 25, took / 2), "it was hardly a test"
    found = [local.parts.executions.get(id) for id in ids]
    runs = local.all_traces()
    for number, execution in enumerate(found):
        _check(local, execution, number, runs[execution.id])
    attempts = Counter(execution.attempt for execution in found)
    assert attempts.keys() <= {1, 2, 3}
    _check_nothing_is_left(local, many)
    print(f"seed {seed}, killed {dict(killer.killed)}, attempts {dict(attempts)}")
    measure(
        f"soak: {many} executions, {dict(killer.killed)} killed, attempts {dict(sorted(attempts.items()))}",
        took,
    )


def _create(local: Local, number: int) -> str:
    """Creates one execution per number, retrying while the store does not answer."""
    agent = ("chores", "chores-queued")[number % 2]
    while True:
        try:
            _, id = local.parts.executions.create(
                agent, {"n": number, "pause": PAUSE}, door="test", scope="soak", key=str(number)
            )
            return id
        except redis.ConnectionError:
            time.sleep(0.1)


def _open(local: Local) -> int:
    keys = local.parts.keys
    try:
        open = ("pending", "running", "blocked")
        return sum(local.parts.store.count(keys.by_state(state)) for state in open)
    except redis.ConnectionError:
        return -1


def _check(local: Local, execution: Execution, number: int, runs: list[Trace]) -> None:
    """One correct end; each step, word and mark appears once, however often it was started."""
    log = local.log(execution.id)
    check_log(log)
    kinds = Counter(str(event.kind) for event in log)
    assert kinds["execution.started"] == execution.fence
    assert execution.attempt <= 3
    if execution.state == "failed":
        assert (execution.error["code"], execution.attempt) == ("WORKER_CRASHED", 3)
        return
    assert execution.state == "completed"
    output = local.parts.executions.output(execution)
    steps = local.parts.store.steps(execution.id)
    assert output == {"n": number, "sum": number + 2, "token": steps["once:token"].decode().strip('"')}
    text = "".join(event.data()["text"] for event in log if event.kind == "output.chunk")
    assert text == f"first {number + 1}\nsecond {number + 2}\n"
    done = [event.step_id for event in log if event.kind == "step.completed"]
    assert len(done) == len(set(done)) == kinds["step.created"] == 2
    assert kinds["file.written"] == 1
    [file] = execution.result["files"]
    assert b"".join(local.parts.files.open(file["key"])) == str(number + 2).encode()
    shown = [event.data()["fraction"] for event in log if event.kind == "progress.updated"]
    assert shown == sorted(set(shown))
    assert len(runs) <= execution.fence


def _check_nothing_is_left(local: Local, many: int) -> None:
    """No lease, timer or message remains: every list is as it would be without kills."""
    client, keys, store = local.parts.client, local.parts.keys, local.parts.store
    for key in (keys.leases, keys.queued, keys.timers, keys.deadlines, keys.step_deadlines):
        assert not client.zcard(key), key
    ended = sum(store.count(keys.by_state(state)) for state in ("completed", "failed", "cancelled"))
    assert (ended, store.count(keys.everything), client.zcard(keys.ended)) == (many, many, many)
    counted = {
        name.split('"')[1]: int(value) for name, value in store.stats().items() if "executions" in name
    }
    assert counted["created"] == many == counted["completed"] + counted.get("failed", 0)

    def tidy() -> bool:
        return not client.keys("rq:job:*") and not any(
            client.exists(key) for key in ("rq:queue:work", "rq:queue:work:intermediate", keys.express)
        )

    eventually(tidy, 10, "no message is left")
