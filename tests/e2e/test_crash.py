"""Executions survive the death of the process that runs them. All processes and kills are real."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis

from tests.e2e.conftest import Measure
from tests.e2e.tree import Work, WorkTrees, check_log, gone, kill
from tests.waiting import eventually
from worker.local.valkey import free_port, valkey_binary

BOTH = ("", "-queued")
LANES = pytest.mark.parametrize("lane", BOTH, ids=["express", "queue"])


@pytest.fixture(name="tree", scope="module")
def _tree(work_trees: WorkTrees) -> Work:
    """A tree that keeps working when single processes are killed."""
    return work_trees.work()


@LANES
def test_killed_process_is_replaced_and_its_work_retried(
    work_trees: WorkTrees, tree: Work, lane: str, measure: Measure
) -> None:
    """kill -9 of a running job's process: the next attempt starts within 2 s, and its result counts."""
    id = work_trees.create(f"nap{lane}", seconds=60, attempts=1)
    killed = kill(work_trees.began(id).pid)
    second = work_trees.began(id, 2, 5)
    measure(
        f"kill -9 of a job's process -> next attempt begins ({lane[1:] or 'express'})", second.at - killed
    )
    assert second.at - killed < 2
    assert work_trees.output(id) == {"attempt": 2}
    check_log(work_trees.log(id))
    assert work_trees.kinds(id)[1:4] == ["execution.started", "agent.timeout", "execution.reset"]
    eventually(lambda: work_trees.taking(tree), 5, "the lane has its process again")


@LANES
def test_process_with_an_inherited_pipe_is_replaced(work_trees: WorkTrees, tree: Work, lane: str) -> None:
    """A forked copy that holds the dead process's pipe does not hide its death, and is killed too."""
    id = work_trees.create(f"forked{lane}")
    assert work_trees.output(id, 5) == {"attempt": 2}
    copy = int(work_trees.traces(id, "child:")[0].word.split(":")[1])
    eventually(lambda: gone(copy), 2, "the copy is gone")


def test_three_crashes_fail_the_execution(work_trees: WorkTrees, tree: Work) -> None:
    """Work that kills its process each time fails as WORKER_CRASHED after its third attempt."""
    ids = [work_trees.create(f"crash{lane}", times=9) for lane in BOTH]
    for id in ids:
        execution = work_trees.ended(id)
        assert (execution.state, execution.attempt) == ("failed", 3)
        assert execution.error["code"] == "WORKER_CRASHED"
        assert [each.attempt for each in work_trees.traces(id)] == [1, 2, 3]
        check_log(work_trees.log(id))
    for lane in BOTH:
        assert work_trees.output(work_trees.create(f"quick{lane}", n=1)) == {"n": 1, "attempt": 1}
    eventually(lambda: not work_trees.client.keys("rq:job:*"), 4, "no message is left")


def test_overtime_kills_the_process_and_its_children(
    work_trees: WorkTrees, tree: Work, measure: Measure
) -> None:
    """Work beyond its limit fails with EXECUTION_TIMEOUT; process and children end, the pool goes on."""
    ids = {lane: work_trees.create(f"overtime{lane}") for lane in BOTH}
    for lane, id in ids.items():
        [run] = eventually(lambda id=id: work_trees.traces(id, "child:"), 5, "it begins")  # type: ignore[misc]
        execution = work_trees.ended(id, 5)
        assert execution.error["code"] == "EXECUTION_TIMEOUT"
        assert 0.9 < (execution.ended - execution.started) / 1e6 < 2
        eventually(lambda run=run: gone(run.pid), 3, "the process is gone")  # type: ignore[misc]
        measure(f"time limit -> process gone ({lane[1:] or 'express'})", _since(run.at) - 1.0)
        program = int(run.word.split(":")[1])
        eventually(lambda program=program: gone(program), 2, "its program is gone")  # type: ignore[misc]
        check_log(work_trees.log(id))
        assert work_trees.output(work_trees.create(f"quick{lane}", n=2)) == {"n": 2, "attempt": 1}


def test_uncooperative_function_is_killed_after_cancel(
    work_trees: WorkTrees, tree: Work, measure: Measure
) -> None:
    """A loop that never calls its job is killed after a cancel, and the pool keeps working."""
    ids = {lane: work_trees.create(f"deaf{lane}") for lane in BOTH}
    runs = {lane: work_trees.began(id) for lane, id in ids.items()}
    cancelled = time.monotonic()
    for lane, id in ids.items():
        work_trees.parts.executions.cancel(id)
        assert work_trees.ended(id, 1).state == "cancelled", lane
    for lane, run in runs.items():
        eventually(lambda run=run: gone(run.pid), 12, "the deaf process is gone")  # type: ignore[misc]
        measure(f"cancel of a deaf function -> process gone ({lane[1:] or 'express'})", _since(cancelled))
        assert work_trees.output(work_trees.create(f"quick{lane}", n=3), 5) == {"n": 3, "attempt": 1}
    for id in ids.values():
        check_log(work_trees.log(id))
        assert work_trees.kinds(id) == ["execution.created", "execution.started", "execution.cancelled"]


def _since(at: float) -> float:
    return time.monotonic() - at


def test_transient_failure_is_retried(work_trees: WorkTrees, tree: Work) -> None:
    """A transient failure is retried after a second, in the same execution."""
    ids = [work_trees.create(f"shaky{lane}") for lane in BOTH]
    for id in ids:
        assert work_trees.output(id, 8) == {"attempt": 2}
        first, second = work_trees.traces(id)
        assert second.at - first.at > 0.9
        check_log(work_trees.log(id))


def test_popped_id_is_recovered(work_trees: WorkTrees, tree: Work, measure: Measure) -> None:
    """An id whose process died between popping it and taking the lease is recovered within 3 s."""
    busy = [work_trees.create("nap", seconds=0.8), work_trees.create("nap-queued", seconds=0.8)]
    for id in busy:
        work_trees.began(id)
    express, queued = work_trees.create("quick", n=1), work_trees.create("quick-queued", n=2)
    popped = time.monotonic()
    assert work_trees.client.lpop("w:express") == express.encode()
    assert (
        work_trees.client.lmove("rq:queue:work", "rq:queue:work:intermediate", "LEFT", "RIGHT")
        == queued.encode()
    )
    for name, id in (("express", express), ("queue", queued)):
        run = work_trees.began(id, 1, 5)
        measure(f"popped and never taken -> runs ({name})", run.at - popped)
        assert run.at - popped < 3
        work_trees.ended(id)
    eventually(
        lambda: not work_trees.client.exists("rq:queue:work:intermediate"), 3, "nothing is left in between"
    )


def test_lost_rq_message_is_resent(work_trees: WorkTrees, tree: Work) -> None:
    """When RQ loses a message, with or without its job, the execution is delayed by seconds but not lost."""
    blocker = work_trees.create("nap-queued", seconds=0.5)
    work_trees.began(blocker)
    bare, whole = work_trees.create("quick-queued", n=1), work_trees.create("quick-queued", n=2)
    lost = time.monotonic()
    work_trees.client.delete(f"rq:job:{bare}")
    work_trees.client.delete("rq:queue:work", f"rq:job:{whole}")
    for id in (bare, whole):
        assert work_trees.began(id, 1, 5).at - lost < 3
        assert work_trees.ended(id).attempt == 1


def test_duplicate_messages_run_once(work_trees: WorkTrees, tree: Work) -> None:
    """An id pushed repeatedly on either lane, also while it runs, runs once."""
    queued = work_trees.create("nap-queued", seconds=0.3)
    express = work_trees.create("nap", seconds=0.3)
    for _ in range(3):
        work_trees.parts.queue.push(queued)
        work_trees.client.rpush("w:express", express, queued)
        time.sleep(0.05)
    for id in (queued, express):
        assert work_trees.output(id) == {"attempt": 1}
    time.sleep(0.3)
    for id in (queued, express):
        assert len(work_trees.traces(id)) == 1
        check_log(work_trees.log(id))
    eventually(lambda: not work_trees.client.keys("rq:job:*"), 4, "no message is left")
    eventually(
        lambda: not work_trees.client.exists("rq:queue:work:intermediate"), 4, "nothing is left in between"
    )


def test_rq_forgets_killed_workers(work_trees: WorkTrees, tree: Work) -> None:
    """RQ's worker list holds only living workers once the dead ones have expired."""
    [old] = work_trees.processes(tree, "queue")
    name = f"rq:worker:{next(n for n in _rq_workers(work_trees) if n.endswith(f'-{old}'))}"
    kill(old)
    work_trees.client.delete(name)  # as its time-out would do later
    eventually(
        lambda: work_trees.processes(tree, "queue") not in ([], [old]), 5, "the queue has its process again"
    )
    eventually(
        lambda: not any(n.endswith(f"-{old}") for n in _rq_workers(work_trees)),
        3,
        "the dead are off the list",
    )


def _rq_workers(work_trees: WorkTrees) -> list[str]:
    return [key.decode().removeprefix("rq:worker:") for key in work_trees.client.smembers("rq:workers")]


def lost(trees: Sequence[Work], id: str) -> list[str]:
    """Log lines about a run that lost its lease: it was stopped, or its result was refused."""
    lines = [line for tree in trees for line in tree.log.splitlines() if id in line]
    return [line for line in lines if "execution.lease_lost" in line or "status=lost" in line]


def test_suspended_process_loses_to_its_successor(empty_work_trees: WorkTrees, measure: Measure) -> None:
    """SIGSTOP past the lease, then SIGCONT: the late write is refused, the second attempt's result counts."""
    trees = [empty_work_trees.work(LEASE="2"), empty_work_trees.work(LEASE="2")]
    ids = [empty_work_trees.create(name, seconds=2.0) for name in ("nap", "nap-queued")]
    first = [empty_work_trees.began(id) for id in ids]
    stopped = time.monotonic()
    for run in first:
        os.kill(run.pid, signal.SIGSTOP)
    second = [empty_work_trees.began(id, 2, 12) for id in ids]
    for run in second:
        measure("SIGSTOP of a job's process, lease of 2 s -> next attempt begins", run.at - stopped)
        assert run.at - stopped < 5
    for run in first:
        os.kill(run.pid, signal.SIGCONT)
    for id, run in zip(ids, first, strict=True):
        ended = eventually(lambda id=id: empty_work_trees.traces(id, "end"), 10, "the late run ends")  # type: ignore[misc]
        assert ended[0].pid == run.pid, "the late writer came first, and yet"
        assert empty_work_trees.output(id) == {"attempt": 2}
        check_log(empty_work_trees.log(id))
        assert empty_work_trees.kinds(id).count("execution.started") == 2
    for id in ids:
        eventually(lambda id=id: lost(trees, id), 5, "the late run was told that its lease is lost")  # type: ignore[misc]
    for lane in BOTH:
        assert empty_work_trees.output(empty_work_trees.create(f"quick{lane}", n=4), 5)["n"] == 4


def test_killed_worker_is_replaced_by_a_new_start(empty_work_trees: WorkTrees, measure: Measure) -> None:
    """kill -9 of the only tree: a new one has all work running within 10 s of its start."""
    tree = empty_work_trees.work()
    ids = [empty_work_trees.create(name, seconds=60, attempts=1) for name in ("nap", "nap-queued")]
    for id in ids:
        empty_work_trees.began(id)
    ids += [empty_work_trees.create("quick", n=1), empty_work_trees.create("quick-queued", n=1)]
    tree.kill_family()
    fresh = empty_work_trees.work(ready=False)
    for id, attempt in zip(ids, (2, 2, 1, 1), strict=True):
        run = empty_work_trees.began(id, attempt, 15)
        measure(
            f"kill -9 of the only tree, from a new one's start: attempt {attempt}", run.at - fresh.started
        )
        assert run.at - fresh.started < 10
        assert empty_work_trees.ended(id).state == "completed"
        check_log(empty_work_trees.log(id))


def test_killed_worker_is_replaced_by_the_other(empty_work_trees: WorkTrees, measure: Measure) -> None:
    """kill -9 of one of two trees, its parent first: the other takes over within 10 s of the kill."""
    trees = [empty_work_trees.work(), empty_work_trees.work()]
    ids = [empty_work_trees.create(name, seconds=60, attempts=1) for name in ("nap", "nap-queued") * 2]
    runs = {id: empty_work_trees.began(id) for id in ids}
    doomed, _ = trees
    family = doomed.family()
    killed = kill(doomed.pid)
    doomed.ends(5)
    eventually(lambda: all(gone(pid) for pid in family), 2, "no child outlives its parent")
    hit = [id for id, run in runs.items() if run.pid in family]
    assert len(hit) == 2
    for id in set(ids) - set(hit):
        kill(runs[id].pid)  # free a process: both lanes of the other tree are busy sleeping
    for id in hit:
        run = empty_work_trees.began(id, 2, 15)
        measure("kill -9 of one of two trees -> next attempt in the other", run.at - killed)
        assert run.at - killed < 10
    for id in ids:
        assert empty_work_trees.output(id) == {"attempt": 2}
        check_log(empty_work_trees.log(id))


def test_idle_worker_stops_at_once(empty_work_trees: WorkTrees, measure: Measure) -> None:
    """SIGTERM ends an idle tree at once, with no errors in its log."""
    tree = empty_work_trees.work()
    family = tree.family()
    asked = tree.signal(signal.SIGTERM)
    assert tree.ends(5) == 0
    measure("SIGTERM -> idle tree gone", _since(asked))
    assert _since(asked) < 2
    assert all(gone(pid) for pid in family)
    assert "Traceback" not in tree.log


def test_repeated_stop_signals_end_the_worker(empty_work_trees: WorkTrees) -> None:
    """Repeated signals to every process end the worker, also during its start."""
    for delay in (0.0, 0.15, 0.3, 0.45):
        tree = empty_work_trees.work(ready=False)
        time.sleep(delay)
        for _ in range(3):
            for pid in tree.family():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            time.sleep(0.02)
        assert tree.ends(5) in (0, -signal.SIGTERM)
        assert not tree.family()


def test_short_work_finishes_before_shutdown(empty_work_trees: WorkTrees) -> None:
    """On SIGTERM running work that fits the grace completes, no new work is taken, then the tree exits."""
    tree = empty_work_trees.work(HANDBACK_GRACE="10")
    running = [empty_work_trees.create(name, seconds=1.0) for name in ("nap", "nap-queued")]
    for id in running:
        empty_work_trees.began(id)
    asked = tree.signal(signal.SIGTERM)
    time.sleep(0.2)
    waiting = [empty_work_trees.create("quick", n=1), empty_work_trees.create("quick-queued", n=1)]
    assert tree.ends(8) == 0
    assert _since(asked) < 4, "it need not wait for the end of the grace"
    for id in running:
        assert empty_work_trees.output(id, 0.5) == {"attempt": 1}
        assert "execution.reset" not in empty_work_trees.kinds(id)
    assert [empty_work_trees.parts.executions.get(id).state for id in waiting] == ["pending", "pending"]
    empty_work_trees.work()
    for id in waiting:
        assert empty_work_trees.output(id) == {"n": 1, "attempt": 1}


def test_long_work_is_handed_back_at_shutdown(empty_work_trees: WorkTrees, measure: Measure) -> None:
    """Work beyond the grace period is handed back without using an attempt and finished by another tree."""
    tree = empty_work_trees.work(HANDBACK_GRACE="0.5s")
    ids = [empty_work_trees.create(name, seconds=1.7) for name in ("nap", "nap-queued")]
    for id in ids:
        empty_work_trees.began(id)
    asked = tree.signal(signal.SIGTERM)
    other = empty_work_trees.work()
    assert tree.ends(8) == 0
    assert _since(asked) < 5
    for id in ids:
        resumed = eventually(lambda id=id: empty_work_trees.traces(id)[1:], 5, "it runs again")[0]  # type: ignore[misc]
        measure("SIGTERM with a grace of 0.5 s -> handed back and begun elsewhere", resumed.at - asked)
        assert resumed.attempt == 1
        assert resumed.pid in other.family()
        assert empty_work_trees.output(id) == {"attempt": 1}
        check_log(empty_work_trees.log(id))
        [reset] = [event for event in empty_work_trees.log(id) if event.kind == "execution.reset"]
        assert reset.data()["reason"] == "handed_back"
        assert "agent.timeout" not in empty_work_trees.kinds(id)


def test_worker_waits_for_its_store(empty_work_trees: WorkTrees, tmp_path: Path) -> None:
    """A tree started before its store waits for it instead of exiting, and then works."""
    port = free_port()
    tree = empty_work_trees.work(ready=False, REDIS_URL=f"redis://127.0.0.1:{port}/0")
    eventually(lambda: "work.store_unavailable" in tree.log, 8, "it says so")
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


def test_stream_resumes_after_a_crash_without_repeats(empty_work_trees: WorkTrees) -> None:
    """A stream interrupted midway is completed, each word once, whichever process sends it."""
    empty_work_trees.work()
    for id in [empty_work_trees.create(f"story{lane}", lines=12, pause=0.03, dies_at=7) for lane in BOTH]:
        execution = empty_work_trees.ended(id)
        assert (execution.state, execution.attempt) == ("completed", 2)
        text = "".join(
            event.data()["text"] for event in empty_work_trees.log(id) if event.kind == "output.chunk"
        )
        assert text == "".join(f"line {number}\n" for number in range(12))
        shown = [e.data()["fraction"] for e in empty_work_trees.log(id) if e.kind == "progress.updated"]
        assert shown == sorted(set(shown))
        [file] = execution.result["files"]
        assert b"".join(empty_work_trees.parts.files.open(file["key"])).decode() == text
