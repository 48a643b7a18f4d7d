"""When a warm process is replaced, and how much of its prints is passed on."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from structlog.testing import capture_logs

from worker.queue import prints, process_limits
from worker.queue.prints import BURST, PrintedOutput
from worker.queue.process_limits import ProcessLimits, ProcessWear


def test_a_new_process_is_never_worn_by_what_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts above a limit does one run before it is replaced."""
    wear = ProcessWear(ProcessLimits(open_files=1))
    assert wear.reason() == ""
    wear.ran()
    assert wear.reason() == "open_files"


def test_each_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, memory growth and age each have a reason; limits differ slightly between processes."""
    worn = ProcessWear(ProcessLimits(runs=1))
    worn.ran()
    assert worn.reason() == "runs"
    used = 1 << 30
    monkeypatch.setattr(process_limits, "memory_used", lambda: used)
    monkeypatch.setattr(process_limits, "peak_memory", lambda: used)
    heavy = ProcessWear(ProcessLimits())
    heavy.ran()
    assert heavy.reason() == ""
    used = 1 << 40
    heavy.ran()
    assert heavy.reason() == "memory"
    assert ProcessWear(ProcessLimits(seconds=0)).reason() == "age"


def test_the_end_by_runs_or_age_is_seen_before_it_comes() -> None:
    """A twentieth before, so that a successor has time to start."""
    wear = ProcessWear(ProcessLimits(runs=100))
    soon = []
    while not wear.reason():
        soon.append(wear.nearly())
        wear.ran()
    last = len(soon) // 20
    assert 90 <= len(soon) <= 100 and soon == [""] * (len(soon) - last) + ["runs"] * last
    assert ProcessWear(ProcessLimits(seconds=0)).nearly() == "age"
    assert ProcessWear(ProcessLimits(runs=1)).nearly() == ""


@pytest.mark.parametrize("leaks", ["memory", "files"])
def test_runs_are_not_taken_ahead_for_which_a_leak_leaves_no_room(
    monkeypatch: pytest.MonkeyPatch, leaks: str
) -> None:
    """It is expected to go on as it did; a process that leaks nothing is bounded by its runs alone."""
    used = {"memory": 1 << 30, "files": 20}
    monkeypatch.setattr(process_limits, "memory_used", lambda: used["memory"])
    monkeypatch.setattr(process_limits, "peak_memory", lambda: used["memory"])
    monkeypatch.setattr(process_limits, "open_files", lambda: used["files"])
    wear = ProcessWear(ProcessLimits(runs=100, memory=60 << 20, open_files=80))
    assert 89 <= wear.runs_after_this() <= 99
    after = []
    for _ in range(3):
        used[leaks] += {"memory": 20 << 20, "files": 20}[leaks]
        after.append(wear.runs_after_this())
        wear.ran()
    assert after == [2, 1, 0]
    used[leaks] *= 2
    assert wear.runs_after_this() == 0


def test_what_one_run_used_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak that was freed bounds what is taken ahead for a while; runs without a leak hide no later one."""
    used = {"now": 1 << 30, "peak": 1 << 30}
    monkeypatch.setattr(process_limits, "memory_used", lambda: used["now"])
    monkeypatch.setattr(process_limits, "peak_memory", lambda: used["peak"])
    wear = ProcessWear(ProcessLimits(memory=60 << 20))
    used["peak"] += 300 << 20
    assert wear.runs_after_this() == 0
    for _ in range(40):
        wear.ran()
    assert wear.runs_after_this() > 800
    used |= {"now": used["now"] + (20 << 20), "peak": used["peak"] + (20 << 20)}
    assert wear.runs_after_this() == 2


def test_memory_that_was_freed_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak only tells whether the present size must be looked at; a reached limit stays reached."""
    used = {"now": 1 << 30, "peak": 1 << 30}
    monkeypatch.setattr(process_limits, "memory_used", lambda: used["now"])
    monkeypatch.setattr(process_limits, "peak_memory", lambda: used["peak"])
    wear = ProcessWear(ProcessLimits())
    used["peak"] = 1 << 40
    wear.ran()
    assert wear.reason() == ""
    used["now"] = 1 << 40
    assert wear.reason() == "memory"
    used["now"] = 1 << 30
    assert wear.reason() == "memory"


def test_what_leaks_between_runs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that an author's function has left goes on while nothing runs."""
    opened = 10
    monkeypatch.setattr(process_limits, "open_files", lambda: opened)
    wear = ProcessWear(ProcessLimits(open_files=50))
    wear.ran()
    assert wear.reason() == ""
    opened = 100
    assert wear.reason() == "open_files"


def test_the_peak_tells_when_to_look_at_the_present_size() -> None:
    """It is never far below, also in a fork, whose peak begins anew."""
    pid = os.fork()
    if pid == 0:
        grown = b"x" * (64 << 20)
        enough = process_limits.peak_memory() + (8 << 20) >= process_limits.memory_used() > len(grown)
        os._exit(not enough)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


COUNTS = """
import os
from worker.queue import process_limits
before = process_limits.open_files()
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(7)]
assert process_limits.open_files() == before + 7
os.stat = lambda path: os.stat_result([0] * 10)
assert process_limits.open_files() >= before + 7
"""


def test_open_files_are_counted() -> None:
    """Whether the kernel says the number or only lists them; nobody else opens or closes any here."""
    subprocess.run([sys.executable, "-c", COUNTS], check=True, timeout=60)


def test_prints_beyond_the_allowance_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allowance refills with time, and a log line counts the dropped bytes."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    read, write = os.pipe()
    os.set_blocking(read, False)
    passed: list[bytes] = []
    printed = PrintedOutput(read, "express", write=passed.append)
    with capture_logs() as logs:
        for _ in range(10):
            os.write(write, b"x" * 60_000)
            assert printed.read()
        assert sum(map(len, passed)) == BURST and not logs
        now[0] += 10.0
        os.write(write, b"y" * 60_000)
        assert printed.read()
        printed.report()
        printed.report(0)
    assert sum(map(len, passed)) == BURST + 10 * prints.PER_SECOND
    dropped = 10 * 60_000 - BURST + 60_000 - 10 * prints.PER_SECOND
    assert [(line["event"], line["bytes"]) for line in logs] == [("work.prints_dropped", dropped)]
    os.close(write)
    assert not printed.read()
    printed.close()
