"""`worker work`: a parent that keeps warm processes alive and kills hung ones.

The parent imports the app once and forks; a child that dies is replaced in milliseconds, and the
execution it held is requeued at once instead of when its lease lapses.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import redis
import structlog

from worker.core.descendants import adopt_orphans, children, end_children
from worker.core.logs import keep_apart
from worker.core.processes import die_with_parent, end
from worker.engine.answers import RequeueAnswer
from worker.engine.transitions import ExecutionStore
from worker.queue.hand_backs import hand_back
from worker.queue.prints import PrintedOutput
from worker.queue.runner import LOST
from worker.queue.status_page import AskedRun, CurrentRun, StatusPage
from worker.queue.supervisor_pipe import KILL, REPLACE, SIGNED_ON, SupervisorPipe
from worker.store.outage import note

log = structlog.get_logger()

# After its limit a job may still notice by itself; a process silent for longer than this hangs.
OVERTIME_GRACE = 1.0
SILENCE = 15.0
# How long after the grace period a child may still take to exit.
_LEAVING = 5.0
_QUICK_DEATH = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

ChildMain = Callable[[str, SupervisorPipe], None]
Requeue = Callable[[CurrentRun | AskedRun], None]


@dataclass
class ChildProcess:
    """One warm process as its parent sees it."""

    kind: str
    pid: int
    fd: int
    started: float
    printed: PrintedOutput
    page: StatusPage
    buffer: bytes = b""
    signalled: bool = False
    killed: bool = False
    # Whether another process was started in its place, or is about to be.
    replaced: bool = False
    # The process that this one replaces, and that ends once this one takes work.
    relieves: ChildProcess | None = None


@dataclass(frozen=True, slots=True)
class _Restart:
    """A process to be started at this time."""

    at: float
    kind: str
    relieves: ChildProcess | None


@dataclass
class Supervisor:
    """Starts `kinds` (one entry per process), replaces dead processes, kills hung ones."""

    kinds: list[str]
    child_main: ChildMain
    requeue: Requeue
    grace: float
    silence: float = SILENCE
    children: dict[int, ChildProcess] = field(default_factory=dict)
    _lost_runs: list[CurrentRun | AskedRun] = field(default_factory=list)
    _restarts: list[_Restart] = field(default_factory=list)
    _stopping: float = 0.0
    _helpers: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT; returns when every child is gone."""
        self._selector = selectors.DefaultSelector()
        adopt_orphans()
        self._helpers = children()  # processes started by author modules during import
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for name in _SIGNALS:
            signal.signal(name, self._on_signal)
        self._selector.register(wake_read, selectors.EVENT_READ)
        for kind in self.kinds:
            self._start(kind)
        while self.children or not self._stopping or self._hands_over():
            for key, _ in self._selector.select(timeout=0.25):
                if key.fd == wake_read:
                    os.read(wake_read, 4096)
                elif isinstance(key.data, PrintedOutput):
                    self._pass_on(key.data)
                else:
                    self._read_requests(self.children[key.fd])
            self._reap()
            self._tick()
        signal.set_wakeup_fd(-1)

    def _on_signal(self, number: int, frame: object) -> None:
        """Only records the signal: the loop acts, so that a child being started just now is not missed."""
        if number != signal.SIGCHLD and not self._stopping:
            self._stopping = time.monotonic()

    def _start(self, kind: str, relieves: ChildProcess | None = None) -> None:
        read, write = os.pipe()
        printed_read, printed_write = os.pipe()
        parent, page = os.getpid(), StatusPage()
        # A signal that reaches the child before it has reset its parent's handlers would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            self._become_child(kind, parent, read, SupervisorPipe(write, page), printed_write, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for fd in (write, printed_write):
            os.close(fd)
        for fd in (read, printed_read):
            os.set_blocking(fd, False)
        printed = PrintedOutput(printed_read, kind)
        child = ChildProcess(kind, pid, read, time.monotonic(), printed, page, relieves=relieves)
        self.children[read] = child
        self._selector.register(read, selectors.EVENT_READ)
        self._selector.register(printed_read, selectors.EVENT_READ, printed)

    def _become_child(
        self,
        kind: str,
        parent: int,
        read: int,
        link: SupervisorPipe,
        printed: int,
        mask: set[int | signal.Signals],
    ) -> None:
        status = 1
        try:
            _print_to(printed)
            signal.set_wakeup_fd(-1)
            for name in _SIGNALS:
                signal.signal(name, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.setpgid(0, 0)  # what an author's function starts is killed with its process
            die_with_parent(parent)
            os.close(read)
            self._selector.close()
            self.child_main(kind, link)
            status = 0
        except SystemExit as ended:  # stopped while waiting for work
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:  # the child must never return into the parent's loop
            log.exception("work.process_failed", kind=kind)
        finally:
            os._exit(status)

    def _pass_on(self, printed: PrintedOutput) -> None:
        if not printed.read():
            self._selector.unregister(printed.fd)

    def _read_requests(self, child: ChildProcess) -> None:
        """Reads all pending requests of a child."""
        while True:
            try:
                data = os.read(child.fd, 65536)
            except BlockingIOError:
                return
            if not data:  # dead or dying: no other process holds, or should hold, the other end
                self._selector.unregister(child.fd)
                end(child.pid, signal.SIGKILL)
                return
            *requests, child.buffer = (child.buffer + data).split(b"\n")
            for request in requests:
                if request == KILL:
                    self._kill(child, "asked")
                elif request == REPLACE and not child.replaced:
                    self._replace(child, time.monotonic(), relieves=child)
                elif request == SIGNED_ON:
                    self._relieve(child)

    def _reap(self) -> None:
        """Polls for dead children: a process started by an author's function can hold a pipe open."""
        for child in list(self.children.values()):
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._remove(child)

    def _remove(self, child: ChildProcess) -> None:
        if child.fd in self._selector.get_map():
            self._read_requests(child)
        if child.fd in self._selector.get_map():
            self._selector.unregister(child.fd)
        os.close(child.fd)
        if child.printed.fd in self._selector.get_map():
            self._selector.unregister(child.printed.fd)
        child.printed.close()
        del self.children[child.fd]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # before the pid can be reused
        _, status = os.waitpid(child.pid, 0)
        end_children(self._helpers.union(other.pid for other in self.children.values()))
        run = child.page.run()
        self._lost_runs += [*([run] if run else []), *child.page.asked()]
        child.page.close()
        # One whose successor was started before goes on for a while, and may still crash.
        if not self._stopping and (status or not child.replaced):
            log.warning("work.process_ended", kind=child.kind, status=os.waitstatus_to_exitcode(status))
        if not self._stopping and not child.replaced:
            now = time.monotonic()
            at_once = now - child.started > _QUICK_DEATH
            self._replace(child, now + (0.0 if at_once else 1.0), relieves=child.relieves)

    def _replace(self, child: ChildProcess, at: float, *, relieves: ChildProcess | None) -> None:
        child.replaced = True
        self._restarts.append(_Restart(at, child.kind, relieves))

    def _tick(self) -> None:
        now = time.monotonic()
        if self._stopping and any(not child.signalled for child in self.children.values()):
            log.info("work.stop_requested")
        due = [restart for restart in self._restarts if restart.at <= now and not self._stopping]
        self._restarts = [restart for restart in self._restarts if restart.at > now]
        for restart in due:
            self._start(restart.kind, restart.relieves)
        for child in list(self.children.values()):
            child.printed.report()
            if self._stopping and not child.signalled:
                child.signalled = True
                end(child.pid, signal.SIGTERM)
            why = "" if child.killed else self._fault(child, now)
            if why:
                self._kill(child, why)
        # Each may wait for a store that hangs.
        while self._lost_runs and self._hand_over(self._lost_runs[0]):
            del self._lost_runs[0]

    def _relieve(self, successor: ChildProcess) -> None:
        worn, successor.relieves = successor.relieves, None
        if worn is not None and self.children.get(worn.fd) is worn:
            worn.page.relieve()

    def _fault(self, child: ChildProcess, now: float) -> str:
        """Why the child must be killed; ''."""
        run, beat = child.page.run(), child.page.last_beat
        if run is not None and now > run.ends_by + OVERTIME_GRACE:
            return "overtime"
        if beat and now > beat + self.silence:
            return "silent"
        overdue = self._stopping and now > self._stopping + self.grace + _LEAVING
        return "shutdown" if overdue else ""

    def _hands_over(self) -> bool:
        """Whether work of dead children waits for the store, and may do so."""
        return bool(self._lost_runs) and time.monotonic() < self._stopping + self.grace + _LEAVING

    def _hand_over(self, lost_run: CurrentRun | AskedRun) -> bool:
        """Returns whether this is finished: after a bug the clock finds the lease once it has lapsed."""
        try:
            self.requeue(lost_run)
        except redis.RedisError as error:
            return not note(error, "work.requeue", execution_id=lost_run.execution_id)
        return True

    def _kill(self, child: ChildProcess, why: str) -> None:
        run = child.page.run()
        log.warning(
            "work.process_killed", kind=child.kind, why=why, execution_id=run.execution_id if run else ""
        )
        child.killed = True
        end(child.pid, signal.SIGKILL)


def _print_to(fd: int) -> None:
    """In a child: sends prints of author code to the parent; log lines keep their destination."""
    keep_apart(os.dup(2))
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def requeue_lost(store: ExecutionStore, push: Callable[[str], None]) -> Requeue:
    """Returns a function that requeues the execution of a dead process; one not begun loses no attempt."""

    def requeue(run: CurrentRun | AskedRun) -> None:
        if isinstance(run, AskedRun):
            hand_back(store, run.execution_id, run.session)
            return
        answer, lane = store.requeue(run.execution_id, run.fence, "process_lost", **LOST)
        if answer is RequeueAnswer.QUEUED and lane == "queue":
            push(run.execution_id)

    return requeue
