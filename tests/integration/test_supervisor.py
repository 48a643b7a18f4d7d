"""The supervisor of `worker work` with real processes that do one strange thing each."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
import redis

from worker.executions.record import Execution, from_mapping
from worker.queue.line import Line
from worker.queue.supervisor import Supervisor

FORK = get_context("fork")


def execution(id: str, fence: int = 1) -> Execution:
    given = {"id": id, "lane": "express", "state": "running", "phase": "working", "fence": str(fence)}
    return from_mapping({name: value.encode() for name, value in given.items()})


class Notes:
    """Lines that any process may append, and the test reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def add(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line + "\n")

    def read(self) -> list[str]:
        return self._path.read_text().splitlines()

    def wait(self, what: str, times: int = 1, seconds: float = 8.0) -> None:
        until = time.monotonic() + seconds
        while self.read().count(what) < times:
            assert time.monotonic() < until, f"no {what} x {times} in {self.read()}"
            time.sleep(0.01)


@pytest.fixture(name="notes")
def _notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


Run = Callable[..., int]


@pytest.fixture(name="run")
def _run(notes: Notes) -> Iterator[Run]:
    """Starts a supervisor in a process of its own; the number of that process."""
    started = []

    def run(
        child_main: Callable[[str, Line], None],
        *kinds: str,
        grace: float = 0.5,
        silence: float = 15.0,
        requeue: Callable[[str, int], None] | None = None,
    ) -> int:
        def main() -> None:
            os.setsid()
            supervisor = Supervisor(
                kinds=list(kinds),
                child_main=child_main,
                requeue=requeue or (lambda id, fence: notes.add(f"requeue {id} {fence}")),
                grace=grace,
                silence=silence,
            )
            supervisor.run()
            sys.stdout.flush()
            os._exit(0)

        process = FORK.Process(target=main)
        process.start()
        started.append(process)
        assert process.pid is not None
        return process.pid

    yield run
    for process in started:
        process.kill()
        process.join(5)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _gone(pid: int, seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while _alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not _alive(pid)


def _sleep_on(number: int = signal.SIGTERM, frame: object = None) -> None:
    return


def test_what_a_dead_process_held_is_handed_over(run: Run, notes: Notes) -> None:
    """An execution that was running is requeued under its fence; one that was finished is not."""

    def child(kind: str, line: Line) -> None:
        line.running(execution("done", 1), 60)
        line.idle()
        line.running(execution(kind, 7), 60)
        notes.add("ready")
        os.kill(os.getpid(), signal.SIGKILL)

    run(child, "held")
    notes.wait("requeue held 7")
    assert "requeue done 1" not in notes.read()


def test_a_hand_over_is_tried_until_the_store_takes_it(run: Run, notes: Notes) -> None:
    """A store that is away when a process dies gets to know later, and once."""

    def requeue(id: str, fence: int) -> None:
        notes.add("asked")
        if notes.read().count("asked") < 3:
            raise redis.ConnectionError("away")
        notes.add(f"requeue {id} {fence}")

    def child(kind: str, line: Line) -> None:
        if "began" in notes.read():
            time.sleep(60)
        notes.add("began")
        line.running(execution("x", 2), 60)
        os._exit(1)

    run(child, "one", requeue=requeue)
    notes.wait("requeue x 2")
    time.sleep(0.6)
    assert notes.read().count("asked") == 3


def test_a_child_that_dies_young_comes_back_with_a_pause(run: Run, notes: Notes) -> None:
    """A process that cannot start does not become a storm of processes."""

    def child(kind: str, line: Line) -> None:
        notes.add("began")
        os._exit(3)

    run(child, "one")
    notes.wait("began", times=2)
    time.sleep(0.5)
    assert len(notes.read()) <= 3


def test_overtime_and_silence_are_ended(run: Run, notes: Notes) -> None:
    """A process beyond its limit, one mute at work and one mute when idle: all go."""

    def child(kind: str, line: Line) -> None:
        if kind == "idle":
            line.beat()
        else:
            line.running(execution(kind), 0.0 if kind == "late" else 60.0)
        notes.add(f"{kind} {os.getpid()}")
        if kind == "late":
            for _ in range(100):
                line.beat()
                time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGSTOP)

    run(child, "late", "mute", "idle", silence=1.5)
    notes.wait("requeue late 1")
    notes.wait("requeue mute 1")
    first = [line.split() for line in notes.read() if not line.startswith("requeue")]
    for kind, pid in first[:3]:
        assert _gone(int(pid)), kind


def test_a_process_that_says_nothing_of_itself_is_left_alone(run: Run, notes: Notes) -> None:
    """Silence counts only after a first sign: the clock has no work to be lost and gives none."""

    def child(kind: str, line: Line) -> None:
        notes.add("began")
        time.sleep(60)

    run(child, "clock", silence=0.3)
    notes.wait("began")
    time.sleep(1.0)
    assert notes.read() == ["began"]


def test_a_process_that_asks_for_its_end_gets_it(run: Run, notes: Notes) -> None:
    """`kill` on the line is kill -9, and its work is handed over."""

    def child(kind: str, line: Line) -> None:
        line.running(execution(kind), 60)
        line.kill_me()
        time.sleep(60)

    run(child, "one")
    notes.wait("requeue one 1")


def test_a_closed_line_is_the_end(run: Run, notes: Notes) -> None:
    """A process that closes what it talks through, as careless code does with all it has open, goes."""

    def child(kind: str, line: Line) -> None:
        line.running(execution(kind), 60)
        notes.add(f"pid {os.getpid()}")
        os.closerange(3, 256)
        time.sleep(60)

    run(child, "one")
    notes.wait("requeue one 1")
    assert _gone(int(notes.read()[0].split()[1]))


def test_what_a_process_started_ends_with_it(run: Run, notes: Notes) -> None:
    """A copy that holds the line open neither hides the death nor outlives it."""

    def child(kind: str, line: Line) -> None:
        if notes.read():
            time.sleep(60)
        line.running(execution(kind), 60)
        copy = os.fork()
        if copy == 0:
            time.sleep(60)
            os._exit(0)
        notes.add(f"copy {copy}")
        os.kill(os.getpid(), signal.SIGKILL)

    run(child, "one")
    notes.wait("requeue one 1", seconds=2)
    assert _gone(int(notes.read()[0].split()[1]))


def test_a_request_to_stop_reaches_every_child(run: Run, notes: Notes) -> None:
    """SIGTERM at any moment, also while children are being started, ends all within the grace."""

    def child(kind: str, line: Line) -> None:
        notes.add(f"pid {os.getpid()}")
        time.sleep(60)

    for delay in (0.0, 0.005, 0.01, 0.02, 0.05):
        pid = run(child, *["one"] * 8)
        time.sleep(0.03 + delay)
        os.kill(pid, signal.SIGTERM)
        assert _gone(pid, 3), delay
        assert all(_gone(int(line.split()[1]), 1) for line in notes.read())


def test_a_child_that_will_not_leave_is_made_to(run: Run, notes: Notes) -> None:
    """Whoever ignores SIGTERM is killed some seconds after its grace, and its work handed over."""

    def child(kind: str, line: Line) -> None:
        signal.signal(signal.SIGTERM, _sleep_on)
        line.running(execution(kind), 60)
        notes.add("ready")
        while True:
            time.sleep(1)
            line.beat()

    pid = run(child, "one", grace=0.0)
    notes.wait("ready")
    asked = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    assert _gone(pid, 10)
    assert 4 < time.monotonic() - asked < 8
    assert notes.read().count("requeue one 1") == 1


def test_no_child_outlives_its_supervisor(run: Run, notes: Notes) -> None:
    """kill -9 of the parent takes the children with it, whatever they ignore."""

    def child(kind: str, line: Line) -> None:
        signal.signal(signal.SIGTERM, _sleep_on)
        notes.add(f"pid {os.getpid()}")
        notes.add("ready")
        while True:
            time.sleep(1)

    pid = run(child, "one", "two")
    notes.wait("ready", times=2)
    os.kill(pid, signal.SIGKILL)
    for line in notes.read():
        if line.startswith("pid"):
            assert _gone(int(line.split()[1]), 2)
