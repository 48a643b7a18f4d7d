"""Executions survive the death of whatever ran them. Every process here is real, and so is every kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import redis

from tests.e2e.conftest import Measure
from tests.e2e.tree import Lab, Work, check_log, gone, kill
from tests.waiting import eventually
from worker.local.valkey import free_port, valkey_binary

BOTH = ("", "-queued")
LANES = pytest.mark.parametrize("lane", BOTH, ids=["express", "queue"])


@pytest.fixture(name="tree", scope="module")
def _tree(lab: Lab) -> Work:
    """A tree that loses single processes and goes on."""
    return lab.work()


@LANES
def test_a_killed_process_is_replaced_and_its_work_runs_again(
    lab: Lab, tree: Work, lane: str, measure: Measure
) -> None:
    """kill -9 of a running job's process: the next attempt begins within 2 s, and its result counts."""
    id = lab.create(f"nap{lane}", seconds=60, attempts=1)
    killed = kill(lab.began(id).pid)
    second = lab.began(id, 2, 5)
    measure(
        f"kill -9 of a job's process -> next attempt begins ({lane[1:] or 'express'})", second.at - killed
    )
    assert second.at - killed < 2
    assert lab.output(id) == {"attempt": 2}
    check_log(lab.log(id))
    assert lab.kinds(id)[1:4] == ["execution.started", "agent.timeout", "execution.reset"]
    eventually(lambda: lab.taking(tree), 5, "the lane has its process again")


@LANES
def test_a_process_whose_pipe_is_held_open_is_replaced(lab: Lab, tree: Work, lane: str) -> None:
    """A copy of the dead process, made by the author's function, hides its death from nobody and ends too."""
    id = lab.create(f"forked{lane}")
    assert lab.output(id, 5) == {"attempt": 2}
    copy = int(lab.traces(id, "child:")[0].word.split(":")[1])
    eventually(lambda: gone(copy), 2, "the copy is gone")


def test_three_crashes_are_the_end(lab: Lab, tree: Work) -> None:
    """Work that kills its process each time fails as WORKER_CRASHED after its third attempt."""
    ids = [lab.create(f"crash{lane}", times=9) for lane in BOTH]
    for id in ids:
        execution = lab.ended(id)
        assert (execution.state, execution.attempt) == ("failed", 3)
        assert execution.error["code"] == "WORKER_CRASHED"
        assert [each.attempt for each in lab.traces(id)] == [1, 2, 3]
        check_log(lab.log(id))
    for lane in BOTH:
        assert lab.output(lab.create(f"quick{lane}", n=1)) == {"n": 1, "attempt": 1}
    eventually(lambda: not lab.client.keys("rq:job:*"), 4, "no message is left")


def test_overtime_ends_the_process_and_all_it_started(lab: Lab, tree: Work, measure: Measure) -> None:
    """Work beyond its limit fails as EXECUTION_TIMEOUT; its process and programs end, the pool goes on."""
    ids = {lane: lab.create(f"overtime{lane}") for lane in BOTH}
    for lane, id in ids.items():
        [run] = eventually(lambda id=id: lab.traces(id, "child:"), 5, "it begins")  # type: ignore[misc]
        execution = lab.ended(id, 5)
        assert execution.error["code"] == "EXECUTION_TIMEOUT"
        assert 0.9 < (execution.ended - execution.started) / 1e6 < 2
        eventually(lambda run=run: gone(run.pid), 3, "the process is gone")  # type: ignore[misc]
        measure(f"time limit -> process gone ({lane[1:] or 'express'})", _since(run.at) - 1.0)
        program = int(run.word.split(":")[1])
        eventually(lambda program=program: gone(program), 2, "its program is gone")  # type: ignore[misc]
        check_log(lab.log(id))
        assert lab.output(lab.create(f"quick{lane}", n=2)) == {"n": 2, "attempt": 1}


def test_a_function_deaf_to_cancel_is_ended(lab: Lab, tree: Work, measure: Measure) -> None:
    """A loop that never calls its job cannot keep its process: it is killed, and the pool goes on."""
    ids = {lane: lab.create(f"deaf{lane}") for lane in BOTH}
    runs = {lane: lab.began(id) for lane, id in ids.items()}
    cancelled = time.monotonic()
    for lane, id in ids.items():
        lab.parts.executions.cancel(id)
        assert lab.ended(id, 1).state == "cancelled", lane
    for lane, run in runs.items():
        eventually(lambda run=run: gone(run.pid), 12, "the deaf process is gone")  # type: ignore[misc]
        measure(f"cancel of a deaf function -> process gone ({lane[1:] or 'express'})", _since(cancelled))
        assert lab.output(lab.create(f"quick{lane}", n=3), 5) == {"n": 3, "attempt": 1}
    for id in ids.values():
        check_log(lab.log(id))
        assert lab.kinds(id) == ["execution.created", "execution.started", "execution.cancelled"]


def _since(at: float) -> float:
    return time.monotonic() - at


def test_a_passing_fault_waits_and_runs_again(lab: Lab, tree: Work) -> None:
    """Transient is tried again after a second, in one execution."""
    ids = [lab.create(f"shaky{lane}") for lane in BOTH]
    for id in ids:
        assert lab.output(id, 8) == {"attempt": 2}
        first, second = lab.traces(id)
        assert second.at - first.at > 0.9
        check_log(lab.log(id))


def test_a_popped_id_is_found_again(lab: Lab, tree: Work, measure: Measure) -> None:
    """An id whose taker died between popping it and taking the lease is found again within 3 s."""
    busy = [lab.create("nap", seconds=0.8), lab.create("nap-queued", seconds=0.8)]
    for id in busy:
        lab.began(id)
    express, queued = lab.create("quick", n=1), lab.create("quick-queued", n=2)
    popped = time.monotonic()
    assert lab.client.lpop("w:express") == express.encode()
    assert lab.client.lmove("rq:queue:work", "rq:queue:work:intermediate", "LEFT", "RIGHT") == queued.encode()
    for name, id in (("express", express), ("queue", queued)):
        run = lab.began(id, 1, 5)
        measure(f"popped and never taken -> runs ({name})", run.at - popped)
        assert run.at - popped < 3
        lab.ended(id)
    eventually(lambda: not lab.client.exists("rq:queue:work:intermediate"), 3, "nothing is left in between")


def test_a_lost_message_is_sent_again(lab: Lab, tree: Work) -> None:
    """RQ losing a message, with its job or without, costs seconds and not the execution."""
    blocker = lab.create("nap-queued", seconds=0.5)
    lab.began(blocker)
    bare, whole = lab.create("quick-queued", n=1), lab.create("quick-queued", n=2)
    lost = time.monotonic()
    lab.client.delete(f"rq:job:{bare}")
    lab.client.delete("rq:queue:work", f"rq:job:{whole}")
    for id in (bare, whole):
        assert lab.began(id, 1, 5).at - lost < 3
        assert lab.ended(id).attempt == 1


def test_a_repeated_message_is_one_run(lab: Lab, tree: Work) -> None:
    """However often an id is pushed on either lane, also while it runs, it runs once."""
    queued = lab.create("nap-queued", seconds=0.3)
    express = lab.create("nap", seconds=0.3)
    for _ in range(3):
        lab.parts.queue.push(queued)
        lab.client.rpush("w:express", express, queued)
        time.sleep(0.05)
    for id in (queued, express):
        assert lab.output(id) == {"attempt": 1}
    time.sleep(0.3)
    for id in (queued, express):
        assert len(lab.traces(id)) == 1
        check_log(lab.log(id))
    eventually(lambda: not lab.client.keys("rq:job:*"), 4, "no message is left")
    eventually(lambda: not lab.client.exists("rq:queue:work:intermediate"), 4, "nothing is left in between")


def test_killed_processes_leave_no_trace_in_rq(lab: Lab, tree: Work) -> None:
    """RQ's list of workers names the living only, once the next one has come and the dead have faded."""
    [old] = lab.processes(tree, "queue")
    name = f"rq:worker:{next(n for n in _rq_workers(lab) if n.endswith(f'-{old}'))}"
    kill(old)
    lab.client.delete(name)  # as its time-out does after some time
    eventually(lambda: lab.processes(tree, "queue") not in ([], [old]), 5, "the queue has its process again")
    eventually(
        lambda: not any(n.endswith(f"-{old}") for n in _rq_workers(lab)), 3, "the dead are off the list"
    )


def _rq_workers(lab: Lab) -> list[str]:
    return [key.decode().removeprefix("rq:worker:") for key in lab.client.smembers("rq:workers")]


def test_a_stopped_process_loses_to_the_next(lone: Lab, measure: Measure) -> None:
    """SIGSTOP past the lease, then SIGCONT: the late writer loses, the second attempt's result stands."""
    trees = [lone.work(LEASE="2"), lone.work(LEASE="2")]
    ids = [lone.create(name, seconds=2.0) for name in ("nap", "nap-queued")]
    first = [lone.began(id) for id in ids]
    stopped = time.monotonic()
    for run in first:
        os.kill(run.pid, signal.SIGSTOP)
    second = [lone.began(id, 2, 12) for id in ids]
    for run in second:
        measure("SIGSTOP of a job's process, lease of 2 s -> next attempt begins", run.at - stopped)
        assert run.at - stopped < 5
    for run in first:
        os.kill(run.pid, signal.SIGCONT)
    for id, run in zip(ids, first, strict=True):
        ended = eventually(lambda id=id: lone.traces(id, "end"), 10, "the late run ends")  # type: ignore[misc]
        assert ended[0].pid == run.pid, "the late writer came first, and yet"
        assert lone.output(id) == {"attempt": 2}
        check_log(lone.log(id))
        assert lone.kinds(id).count("execution.started") == 2
    eventually(
        lambda: sum(tree.log.count("execution.lease_gone") for tree in trees) >= 2, 5, "the late know it"
    )
    for lane in BOTH:
        assert lone.output(lone.create(f"quick{lane}", n=4), 5)["n"] == 4


def test_a_killed_tree_is_replaced_by_a_new_one(lone: Lab, measure: Measure) -> None:
    """kill -9 of the only tree: a new one has everything running within 10 s of its start."""
    tree = lone.work()
    ids = [lone.create(name, seconds=60, attempts=1) for name in ("nap", "nap-queued")]
    for id in ids:
        lone.began(id)
    ids += [lone.create("quick", n=1), lone.create("quick-queued", n=1)]
    tree.kill_family()
    fresh = lone.work(ready=False)
    for id, attempt in zip(ids, (2, 2, 1, 1), strict=True):
        run = lone.began(id, attempt, 15)
        measure(
            f"kill -9 of the only tree, from a new one's start: attempt {attempt}", run.at - fresh.started
        )
        assert run.at - fresh.started < 10
        assert lone.ended(id).state == "completed"
        check_log(lone.log(id))


def test_a_killed_tree_is_replaced_by_another(lone: Lab, measure: Measure) -> None:
    """kill -9 of one of two trees, first of its parent only: the other goes on within 10 s of the kill."""
    trees = [lone.work(), lone.work()]
    ids = [lone.create(name, seconds=60, attempts=1) for name in ("nap", "nap-queued") * 2]
    runs = {id: lone.began(id) for id in ids}
    doomed, _ = trees
    family = doomed.family()
    killed = kill(doomed.pid)
    doomed.ends(5)
    eventually(lambda: all(gone(pid) for pid in family), 2, "no child outlives its parent")
    hit = [id for id, run in runs.items() if run.pid in family]
    assert len(hit) == 2
    for id in set(ids) - set(hit):
        kill(runs[id].pid)  # makes room: both lanes of the other tree are asleep
    for id in hit:
        run = lone.began(id, 2, 15)
        measure("kill -9 of one of two trees -> next attempt in the other", run.at - killed)
        assert run.at - killed < 10
    for id in ids:
        assert lone.output(id) == {"attempt": 2}
        check_log(lone.log(id))


def test_an_idle_tree_ends_at_once(lone: Lab, measure: Measure) -> None:
    """SIGTERM ends an idle tree in a moment, without a trace of trouble in its log."""
    tree = lone.work()
    family = tree.family()
    asked = tree.signal(signal.SIGTERM)
    assert tree.ends(5) == 0
    measure("SIGTERM -> idle tree gone", _since(asked))
    assert _since(asked) < 2
    assert all(gone(pid) for pid in family)
    assert "Traceback" not in tree.log


def test_a_tree_told_twice_and_all_at_once_ends(lone: Lab) -> None:
    """A host that signals every process, again and again, and also while they start, is obeyed."""
    for delay in (0.0, 0.15, 0.3, 0.45):
        tree = lone.work(ready=False)
        time.sleep(delay)
        for _ in range(3):
            for pid in tree.family():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            time.sleep(0.02)
        assert tree.ends(5) in (0, -signal.SIGTERM)
        assert not tree.family()


def test_short_work_is_finished_before_leaving(lone: Lab) -> None:
    """SIGTERM lets running work that fits the grace end well, takes nothing new, and then leaves."""
    tree = lone.work(HANDBACK_GRACE="10")
    running = [lone.create(name, seconds=1.0) for name in ("nap", "nap-queued")]
    for id in running:
        lone.began(id)
    asked = tree.signal(signal.SIGTERM)
    time.sleep(0.2)
    waiting = [lone.create("quick", n=1), lone.create("quick-queued", n=1)]
    assert tree.ends(8) == 0
    assert _since(asked) < 4, "it need not wait for the end of the grace"
    for id in running:
        assert lone.output(id, 0.5) == {"attempt": 1}
        assert "execution.reset" not in lone.kinds(id)
    assert [lone.parts.executions.get(id).state for id in waiting] == ["pending", "pending"]
    lone.work()
    for id in waiting:
        assert lone.output(id) == {"n": 1, "attempt": 1}


def test_long_work_is_handed_back(lone: Lab, measure: Measure) -> None:
    """Work beyond the grace is handed back without using an attempt, and finished by another tree."""
    tree = lone.work(HANDBACK_GRACE="0.5s")
    ids = [lone.create(name, seconds=1.7) for name in ("nap", "nap-queued")]
    for id in ids:
        lone.began(id)
    asked = tree.signal(signal.SIGTERM)
    other = lone.work()
    assert tree.ends(8) == 0
    assert _since(asked) < 5
    for id in ids:
        resumed = eventually(lambda id=id: lone.traces(id)[1:], 5, "it runs again")[0]  # type: ignore[misc]
        measure("SIGTERM with a grace of 0.5 s -> handed back and begun elsewhere", resumed.at - asked)
        assert resumed.attempt == 1
        assert resumed.pid in other.family()
        assert lone.output(id) == {"attempt": 1}
        check_log(lone.log(id))
        [reset] = [event for event in lone.log(id) if event.kind == "execution.reset"]
        assert reset.data()["reason"] == "handed_back"
        assert "agent.timeout" not in lone.kinds(id)


def test_work_waits_for_its_store(lone: Lab, tmp_path: Path) -> None:
    """A tree started before its store waits for it instead of ending, and then works."""
    port = free_port()
    tree = lone.work(ready=False, REDIS_URL=f"redis://127.0.0.1:{port}/0")
    eventually(lambda: "work.store_away" in tree.log, 8, "it says so")
    assert tree.process.poll() is None
    server = subprocess.Popen(
        [str(valkey_binary()), "--port", str(port), "--dir", str(tmp_path), "--save", ""]
    )
    try:
        fresh = redis.Redis(port=port)
        eventually(lambda: fresh.zcard("w:takers:express") and fresh.zcard("w:takers:queue"), 5, "it works")
        assert "Traceback" not in tree.log
        tree.signal(signal.SIGTERM)
        assert tree.ends(5) == 0
    finally:
        server.kill()
        server.wait(5)


def test_story_goes_on_where_it_was(lone: Lab) -> None:
    """A stream that dies in the middle is told to its end, each word once, whoever tells it."""
    lone.work()
    for id in [lone.create(f"story{lane}", lines=12, pause=0.03, dies_at=7) for lane in BOTH]:
        execution = lone.ended(id)
        assert (execution.state, execution.attempt) == ("completed", 2)
        said = "".join(event.data()["text"] for event in lone.log(id) if event.kind == "output.chunk")
        assert said == "".join(f"line {number}\n" for number in range(12))
        shown = [e.data()["fraction"] for e in lone.log(id) if e.kind == "progress.updated"]
        assert shown == sorted(set(shown))
        [file] = execution.result["files"]
        assert b"".join(lone.parts.files.open(file["key"])).decode() == said
