"""The supervisor of `worker work` with real child processes, each misbehaving in one way."""

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

from worker.engine.record import Execution, from_mapping
from worker.queue.status_page import AskedRun, CurrentRun
from worker.queue.supervisor import Requeue, Supervisor
from worker.queue.supervisor_pipe import SupervisorPipe

FORK = get_context("fork")


def execution(id: str, fence: int = 1) -> Execution:
    fields = {"id": id, "lane": "express", "state": "running", "phase": "working", "fence": str(fence)}
    return from_mapping({name: value.encode() for name, value in fields.items()})


class SharedLog:
    """Lines that any process may append and the test reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def add(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line + "\n")

    def read(self) -> list[str]:
        return self._path.read_text().splitlines()

    def wait(self, line: str, times: int = 1, seconds: float = 8.0) -> None:
        until = time.monotonic() + seconds
        while self.read().count(line) < times:
            assert time.monotonic() < until, f"no {line} x {times} in {self.read()}"
            time.sleep(0.01)


@pytest.fixture(name="shared_log")
def _shared_log(tmp_path: Path) -> SharedLog:
    return SharedLog(tmp_path / "notes")


Run = Callable[..., int]


@pytest.fixture(name="run")
def _run(shared_log: SharedLog) -> Iterator[Run]:
    """Starts a supervisor in its own process and returns its pid."""
    started = []

    def run(
        child_main: Callable[[str, SupervisorPipe], None],
        *kinds: str,
        grace: float = 0.5,
        silence: float = 15.0,
        requeue: Requeue | None = None,
    ) -> int:
        def main() -> None:
            os.setsid()
            supervisor = Supervisor(
                kinds=list(kinds),
                child_main=child_main,
                requeue=requeue or (lambda run: shared_log.add(f"requeue {told(run)}")),
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


def told(run: CurrentRun | AskedRun) -> str:
    """The lost run's id, and its fence or session."""
    return f"{run.execution_id} {run.session if isinstance(run, AskedRun) else run.fence}"


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


def test_dead_childs_work_is_handed_back(run: Run, shared_log: SharedLog) -> None:
    """A running execution is requeued under its fence; a finished one is not."""

    def child(kind: str, line: SupervisorPipe) -> None:
        line.running(execution("done", 1), 60)
        line.idle()
        line.running(execution(kind, 7), 60)
        shared_log.add("ready")
        os.kill(os.getpid(), signal.SIGKILL)

    run(child, "held")
    shared_log.wait("requeue held 7")
    assert "requeue done 1" not in shared_log.read()


def test_dead_childs_next_work_is_handed_back_as_not_begun(run: Run, shared_log: SharedLog) -> None:
    """A lease that came with the seal of the run before; once its run has begun it counts as begun."""

    def child(kind: str, line: SupervisorPipe) -> None:
        if "began" in shared_log.read():
            time.sleep(60)
        shared_log.add("began")
        line.running(execution("first", 1), 60)
        line.asks([("second", "s2")])
        line.running(execution("second", 2), 60)
        line.asks([("third", "s3"), ("fourth", "s4")])
        os.kill(os.getpid(), signal.SIGKILL)

    run(child, "one")
    shared_log.wait("requeue fourth s4")
    assert [line for line in shared_log.read() if line.startswith("requeue")] == [
        "requeue second 2",
        "requeue third s3",
        "requeue fourth s4",
    ]


def test_hand_back_is_retried_through_an_outage(run: Run, shared_log: SharedLog) -> None:
    """If the store is unreachable when a process dies, it is notified later, once."""

    def requeue(run: CurrentRun | AskedRun) -> None:
        shared_log.add("asked")
        if shared_log.read().count("asked") < 3:
            raise redis.ConnectionError("away")
        shared_log.add(f"requeue {told(run)}")

    def child(kind: str, line: SupervisorPipe) -> None:
        if "began" in shared_log.read():
            time.sleep(60)
        shared_log.add("began")
        line.running(execution("x", 2), 60)
        os._exit(1)

    run(child, "one", requeue=requeue)
    shared_log.wait("requeue x 2")
    time.sleep(0.6)
    assert shared_log.read().count("asked") == 3


def test_crashing_child_is_restarted_with_a_delay(run: Run, shared_log: SharedLog) -> None:
    """A process that fails to start is not restarted in a tight loop."""

    def child(kind: str, line: SupervisorPipe) -> None:
        shared_log.add("began")
        os._exit(3)

    run(child, "one")
    shared_log.wait("began", times=2)
    time.sleep(0.5)
    assert len(shared_log.read()) <= 3


def test_overtime_and_silent_children_are_killed(run: Run, shared_log: SharedLog) -> None:
    """A process past its limit, one silent at work and one silent when idle are all killed."""

    def child(kind: str, line: SupervisorPipe) -> None:
        if kind == "idle":
            line.beat()
        else:
            line.running(execution(kind), 0.0 if kind == "late" else 60.0)
        shared_log.add(f"{kind} {os.getpid()}")
        if kind == "late":
            for _ in range(100):
                line.beat()
                time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGSTOP)

    run(child, "late", "mute", "idle", silence=1.5)
    shared_log.wait("requeue late 1")
    shared_log.wait("requeue mute 1")
    first = [line.split() for line in shared_log.read() if not line.startswith("requeue")]
    for kind, pid in first[:3]:
        assert _gone(int(pid)), kind


def test_child_without_reports_is_left_alone(run: Run, shared_log: SharedLog) -> None:
    """A child that has not reported yet is not killed for silence."""

    def child(kind: str, line: SupervisorPipe) -> None:
        shared_log.add("began")
        time.sleep(60)

    run(child, "clock", silence=0.3)
    shared_log.wait("began")
    time.sleep(1.0)
    assert shared_log.read() == ["began"]


def test_child_that_asks_to_be_killed_is_killed(run: Run, shared_log: SharedLog) -> None:
    """`kill` on the pipe means kill -9, and the work is handed back."""

    def child(kind: str, line: SupervisorPipe) -> None:
        line.running(execution(kind), 60)
        line.kill_me()
        time.sleep(60)

    run(child, "one")
    shared_log.wait("requeue one 1")


def test_worn_child_is_relieved_when_its_successor_has_signed_on(run: Run, shared_log: SharedLog) -> None:
    """The successor starts beside it; if that one dies before it takes work, the next one relieves it."""

    def child(kind: str, line: SupervisorPipe) -> None:
        began = shared_log.read().count("began")
        shared_log.add("began")
        if began == 0:
            line.replace_me()
            while not line.relieved:
                time.sleep(0.01)
            shared_log.add(f"relieved after {shared_log.read().count('began')}")
            return
        if began == 1:
            os._exit(1)
        line.signed_on()
        time.sleep(60)

    run(child, "one")
    shared_log.wait("relieved after 3")
    time.sleep(0.6)
    assert shared_log.read().count("began") == 3


def test_child_that_asks_for_its_successor_twice_gets_one(run: Run, shared_log: SharedLog) -> None:
    """Neither a second request nor its own end starts another process in its place."""

    def child(kind: str, line: SupervisorPipe) -> None:
        shared_log.add("began")
        if shared_log.read().count("began") == 1:
            line.replace_me()
            line.replace_me()
            return
        time.sleep(60)

    run(child, "one")
    shared_log.wait("began", times=2)
    time.sleep(0.6)
    assert shared_log.read().count("began") == 2


def test_child_that_closes_its_pipe_is_killed(run: Run, shared_log: SharedLog) -> None:
    """A child that closes its supervisor pipe is killed."""

    def child(kind: str, line: SupervisorPipe) -> None:
        line.running(execution(kind), 60)
        shared_log.add(f"pid {os.getpid()}")
        os.closerange(3, 256)
        time.sleep(60)

    run(child, "one")
    shared_log.wait("requeue one 1")
    assert _gone(int(shared_log.read()[0].split()[1]))


def test_grandchildren_end_with_the_child(run: Run, shared_log: SharedLog) -> None:
    """A copy of the child that holds the pipe open neither hides its death nor outlives it."""

    def child(kind: str, line: SupervisorPipe) -> None:
        if shared_log.read():
            time.sleep(60)
        line.running(execution(kind), 60)
        copy = os.fork()
        if copy == 0:
            time.sleep(60)
            os._exit(0)
        shared_log.add(f"copy {copy}")
        os.kill(os.getpid(), signal.SIGKILL)

    run(child, "one")
    shared_log.wait("requeue one 1", seconds=2)
    assert _gone(int(shared_log.read()[0].split()[1]))


def test_stop_request_reaches_every_child(run: Run, shared_log: SharedLog) -> None:
    """SIGTERM at any moment, even while children are being started, ends all within the grace."""

    def child(kind: str, line: SupervisorPipe) -> None:
        shared_log.add(f"pid {os.getpid()}")
        time.sleep(60)

    for delay in (0.0, 0.005, 0.01, 0.02, 0.05):
        pid = run(child, *["one"] * 8)
        time.sleep(0.03 + delay)
        os.kill(pid, signal.SIGTERM)
        assert _gone(pid, 3), delay
        assert all(_gone(int(line.split()[1]), 1) for line in shared_log.read())


def test_unresponsive_child_is_killed_at_shutdown(run: Run, shared_log: SharedLog) -> None:
    """A child that ignores SIGTERM is killed some seconds after its grace, and its work handed back."""

    def child(kind: str, line: SupervisorPipe) -> None:
        signal.signal(signal.SIGTERM, _sleep_on)
        line.running(execution(kind), 60)
        shared_log.add("ready")
        while True:
            time.sleep(1)
            line.beat()

    pid = run(child, "one", grace=0.0)
    shared_log.wait("ready")
    asked = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    assert _gone(pid, 10)
    assert 4 < time.monotonic() - asked < 8
    assert shared_log.read().count("requeue one 1") == 1


def test_no_child_outlives_its_supervisor(run: Run, shared_log: SharedLog) -> None:
    """kill -9 of the parent ends the children too, whatever signals they ignore."""

    def child(kind: str, line: SupervisorPipe) -> None:
        signal.signal(signal.SIGTERM, _sleep_on)
        shared_log.add(f"pid {os.getpid()}")
        shared_log.add("ready")
        while True:
            time.sleep(1)

    pid = run(child, "one", "two")
    shared_log.wait("ready", times=2)
    os.kill(pid, signal.SIGKILL)
    for line in shared_log.read():
        if line.startswith("pid"):
            assert _gone(int(line.split()[1]), 2)
