"""Followers of event streams on two web processes: how late events arrive, and what a follower holds."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

from bench.rounds import Contender, Measurement, Reading, WorkMissing, interleave
from bench.stand import GUNICORN, ROOT, Stand, answers, until
from worker.engine.events import Kind
from worker.engine.transitions import AppendAnswer
from worker.local.valkey import free_port
from worker.parts import Parts

NAME = "followers"
_PROCESSES = 2
_EACH = 20
_EVENTS_A_SECOND = 50


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds, followers, seconds = (1, 40, 2.0) if quick else (5, 2_000, 6.0)
    contenders = [Contender("followers", lambda: _round(stand, followers, seconds))]
    about = f"{followers} followers on {_PROCESSES} web processes, {_EACH} of each execution"
    found = Measurement(NAME, about, interleave(contenders, rounds, told))
    found.below("p99 from writing an event to its arrival, ms", "followers", "p99_ms", 100.0)
    found.below("kB of the web processes for a follower", "followers", "kb_each", 60.0)
    found.notes += [
        f"{_EVENTS_A_SECOND} events a second, written one after the other",
        "web_us: processor time (µs) of the web processes for one arrival of an event",
    ]
    return found


def _round(stand: Stand, followers: int, seconds: float) -> Reading:
    stand.empty()
    port = free_port()
    with stand.processes([GUNICORN], stand.environ(PORT=str(port), WEB_CONCURRENCY=str(_PROCESSES))) as web:
        until(lambda: answers(port, "/health"), "the web processes did not start")
        parts = stand.parts()
        fences = _running(parts, max(1, followers // _EACH))
        file = stand.folder / "followed"
        file.write_text("\n".join(fences))
        before = web.memory()
        opening = seconds + followers / 200
        command = [sys.executable, "-m", "bench.follow", str(port), str(file), str(followers), str(opening)]
        reader = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert reader.stdout is not None
        if reader.stdout.readline().strip() != "READY":
            raise WorkMissing("the followers did not start")
        held = web.memory() - before
        cpu = web.cpu()
        written = _write(parts, fences, int(seconds * 0.8 * _EVENTS_A_SECOND))
        cpu = web.cpu() - cpu
        out, _ = reader.communicate(timeout=120)
    seen = json.loads(out.splitlines()[-1])
    return {
        "asked": written * (followers // max(1, followers // _EACH)),
        "done": seen["received"],
        "p50_ms": seen["p50_ms"],
        "p99_ms": seen["p99_ms"],
        "kb_each": held / followers / 1e3,
        "web_us": cpu / seen["received"] * 1e6,
    }


def _running(parts: Parts, count: int) -> dict[str, int]:
    """Executions under a lease of this process, with their fences."""
    found = {}
    for _ in range(count):
        _, id = parts.executions.create("nothing-queued", None, door="bench")
        taken = parts.store.take(id, lease_us=600_000_000, worker="bench", session="bench")
        assert taken is not None
        found[id] = taken[0].fence
    return found


def _write(parts: Parts, fences: dict[str, int], count: int) -> int:
    """Appends events at the fixed rate, turn by turn; returns how many."""
    began, ids = time.monotonic(), list(fences)
    numbers = dict.fromkeys(ids, 0)
    for turn in range(count):
        time.sleep(max(0.0, began + turn / _EVENTS_A_SECOND - time.monotonic()))
        id = ids[turn % len(ids)]
        numbers[id] += 1
        fact = json.dumps({"fraction": 0.5, "message": f"sent-{time.time()}"}).encode()
        answer = parts.store.append(id, fences[id], numbers[id], [(Kind.PROGRESS, fact)])
        if answer is not AppendAnswer.OK:
            raise WorkMissing(f"an event was not written: {answer}")
    return count
