"""`worker work`: a parent that keeps warm processes alive and ends the ones that hang.

The parent imports the app once and forks; a child that dies is replaced in milliseconds, and the
execution it held runs again at once instead of when its lease lapses.
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

from worker.executions.store import ExecutionStore
from worker.processes import die_with_parent, end
from worker.queue import line
from worker.queue.line import Line
from worker.queue.runner import LOST

log = structlog.get_logger()

# After its limit a job may still notice by itself; a process that gives no sign for so long hangs.
OVERTIME_GRACE = 1.0
SILENCE = 15.0
# How long after the grace a child may still be about leaving.
_LEAVING = 5.0
_QUICK_DEATH = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

ChildMain = Callable[[str, Line], None]
Requeue = Callable[[str, int], None]


@dataclass
class Child:
    """One warm process as its parent sees it."""

    kind: str
    pid: int
    fd: int
    started: float
    buffer: bytes = b""
    execution_id: str = ""
    fence: int = 0
    ends_by: float = 0.0
    last_sign: float = 0.0
    signs: bool = False
    told: bool = False


@dataclass
class _Grave:
    """An execution whose process died and that could not be handed over yet."""

    execution_id: str
    fence: int


@dataclass
class Supervisor:
    """Starts `kinds` (one entry a process), replaces the dead, ends the hung."""

    kinds: list[str]
    child_main: ChildMain
    requeue: Requeue
    grace: float
    silence: float = SILENCE
    children: dict[int, Child] = field(default_factory=dict)
    _graves: list[_Grave] = field(default_factory=list)
    _restarts: list[tuple[float, str]] = field(default_factory=list)
    _stopping: float = 0.0

    def run(self) -> None:
        """Until SIGTERM or SIGINT; returns when every child is gone."""
        self._selector = selectors.DefaultSelector()
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for name in _SIGNALS:
            signal.signal(name, self._on_signal)
        self._selector.register(wake_read, selectors.EVENT_READ)
        for kind in self.kinds:
            self._start(kind)
        while self.children or not self._stopping:
            for key, _ in self._selector.select(timeout=0.25):
                if key.fd == wake_read:
                    os.read(wake_read, 4096)
                else:
                    self._hear(self.children[key.fd])
            self._reap()
            self._look_around()
        signal.set_wakeup_fd(-1)

    def _on_signal(self, number: int, frame: object) -> None:
        """Only takes note: the loop acts, so that a child being started just now is not missed."""
        if number != signal.SIGCHLD and not self._stopping:
            self._stopping = time.monotonic()

    def _start(self, kind: str) -> None:
        read, write = os.pipe()
        parent = os.getpid()
        # A signal that meets the child before it has let go of its parent's handlers would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            self._become_child(kind, parent, read, write, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write)
        os.set_blocking(read, False)
        now = time.monotonic()
        self.children[read] = Child(kind, pid, read, now, last_sign=now)
        self._selector.register(read, selectors.EVENT_READ)

    def _become_child(
        self, kind: str, parent: int, read: int, write: int, mask: set[int | signal.Signals]
    ) -> None:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for name in _SIGNALS:
                signal.signal(name, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.setpgid(0, 0)  # what an author's function starts ends with the process that started it
            die_with_parent(parent)
            os.close(read)
            self._selector.close()
            self.child_main(kind, Line(write))
            status = 0
        except BaseException:  # the child must never return into the parent's loop
            log.exception("work.process_failed", kind=kind)
        finally:
            os._exit(status)

    def _hear(self, child: Child) -> None:
        """Reads all that a child has said so far."""
        while True:
            try:
                data = os.read(child.fd, 65536)
            except BlockingIOError:
                return
            if not data:  # dead or dying: nobody else holds the other end, or nobody should
                self._selector.unregister(child.fd)
                end(child.pid, signal.SIGKILL)
                return
            child.last_sign, child.signs = time.monotonic(), True
            *lines, child.buffer = (child.buffer + data).split(b"\n")
            for text in lines:
                self._note(child, line.parse(text))

    def _note(self, child: Child, message: line.Message) -> None:
        if message.word == "run":
            child.execution_id, child.fence = message.execution_id, message.fence
            child.ends_by = child.last_sign + message.seconds + OVERTIME_GRACE
        elif message.word == "idle":
            child.execution_id = ""
        elif message.word == "kill":
            self._kill(child, "asked")

    def _reap(self) -> None:
        """Finds the dead by asking for them: a pipe can be held open by what an author's function started."""
        for child in list(self.children.values()):
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._bury(child)

    def _bury(self, child: Child) -> None:
        if child.fd in self._selector.get_map():
            self._hear(child)
        if child.fd in self._selector.get_map():
            self._selector.unregister(child.fd)
        os.close(child.fd)
        del self.children[child.fd]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # before the number is free for others
        _, status = os.waitpid(child.pid, 0)
        if child.execution_id:
            self._graves.append(_Grave(child.execution_id, child.fence))
        if not self._stopping:
            log.warning("work.process_ended", kind=child.kind, status=os.waitstatus_to_exitcode(status))
            lived = time.monotonic() - child.started
            self._restarts.append((time.monotonic() + (0.0 if lived > _QUICK_DEATH else 1.0), child.kind))

    def _look_around(self) -> None:
        now = time.monotonic()
        if self._stopping and any(not child.told for child in self.children.values()):
            log.info("work.stopping")
        due = [kind for at, kind in self._restarts if at <= now and not self._stopping]
        self._restarts = [(at, kind) for at, kind in self._restarts if at > now]
        for kind in due:
            self._start(kind)
        for child in list(self.children.values()):
            if self._stopping and not child.told:
                child.told = True
                end(child.pid, signal.SIGTERM)
            if child.execution_id and now > child.ends_by:
                self._kill(child, "overtime")
            elif child.signs and now > child.last_sign + self.silence:
                self._kill(child, "silent")
            elif self._stopping and now > self._stopping + self.grace + _LEAVING:
                self._kill(child, "shutdown")
        self._graves = [grave for grave in self._graves if not self._hand_over(grave)]

    def _hand_over(self, grave: _Grave) -> bool:
        try:
            self.requeue(grave.execution_id, grave.fence)
        except redis.RedisError:
            return False
        return True

    def _kill(self, child: Child, why: str) -> None:
        log.warning("work.process_killed", kind=child.kind, why=why, execution_id=child.execution_id)
        child.ends_by = float("inf")
        child.last_sign = float("inf")
        end(child.pid, signal.SIGKILL)


def requeue_lost(store: ExecutionStore, push: Callable[[str], None]) -> Requeue:
    """What happens to the execution of a process that died."""

    def requeue(execution_id: str, fence: int) -> None:
        what, lane = store.requeue(execution_id, fence, "process_lost", **LOST)
        if what == "queued" and lane == "queue":
            push(execution_id)

    return requeue
