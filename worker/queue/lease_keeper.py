"""One thread per work process that renews the running job's lease and keeps its log up to date.

It also detects a lost lease, which the author's function cannot be relied on to do: it gives the function a
moment to return, then has the process killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from worker.agents.job import Job
from worker.agents.lease import LeaseLost
from worker.engine.record import Execution
from worker.engine.transitions import ExecutionStore
from worker.queue.presence import Presence
from worker.store.outage import note

log = structlog.get_logger()

STOP_GRACE = 5.0
# How often the thread looks at leases in hand.
_LOOK_SECONDS = 0.1


class SupervisorLink(Protocol):
    """Messages from the keeper to the supervisor."""

    def running(self, execution: Execution, seconds: float) -> None: ...
    def idle(self) -> None: ...
    def beat(self) -> None: ...
    def kill_me(self) -> None: ...


class LeaseKeeper:
    """Holds at most one lease at a time."""

    def __init__(
        self,
        store: ExecutionStore,
        *,
        lease_us: int,
        parent: SupervisorLink,
        presence: Presence,
        stop_grace: float = STOP_GRACE,
        lighten: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        # Hands back what waits for too long behind the running job; returns whether something waits.
        self._lighten = lighten
        self._looks = False
        self._stop_grace = stop_grace
        self._lease_us = lease_us
        self._parent = parent
        self.presence = presence
        self._condition = threading.Condition()
        self._held: tuple[Execution, Job] | None = None
        self._renew_at = 0.0
        self._lapses_at = 0.0
        self._kill_at = float("inf")
        self._nudged = False
        self._thread: threading.Thread | None = None
        self._leave: Callable[[], None] = lambda: None
        self.hand_back_at: float | None = None

    @contextmanager
    def hold(self, execution: Execution, job: Job) -> Iterator[None]:
        """Renews the lease while the block runs."""
        self._parent.running(execution, job.seconds_left())
        with self._condition:
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
                self._thread.start()
            now = time.monotonic()
            self._held = execution, job
            self._renew_at = now + self._lease_us / 3e6
            self._lapses_at = now + self._lease_us / 1e6
            self._kill_at = float("inf")
        try:
            yield
        finally:
            with self._condition:
                self._held = None
            self._parent.idle()

    def nudge(self) -> None:
        """Wakes the thread because output waits to be flushed."""
        with self._condition:
            self._nudged = True
            self._condition.notify()

    def loaded(self) -> None:
        """Leases wait in hand for the running job: from now on the thread looks at them."""
        if not self._looks:
            self.nudge()

    def hand_back_within(self, seconds: float, leave: Callable[[], None]) -> None:
        """Gives the running job this long; then hands it back and leaves the process."""
        self._leave = leave
        with self._condition:
            self.hand_back_at = time.monotonic() + seconds
            self._condition.notify()

    @property
    def busy(self) -> bool:
        return self._held is not None

    def _keep(self) -> None:
        soon: float | None = None
        while True:
            with self._condition:
                if not self._nudged:
                    self._condition.wait(timeout=self._pause(soon))
                self._nudged = False
                held = self._held
            self._look()
            soon = self._tend(*held) if held is not None else None

    def _look(self) -> None:
        self._looks = False
        try:
            if self._lighten():
                self._looks = True
        except Exception as error:  # as in _tend; again in a second
            note(error, "keeper")

    def _tend(self, execution: Execution, job: Job) -> float | None:
        """Checks the running job once; returns seconds until its output must be flushed."""
        try:
            soon = job.flush_when_old()
            self._renew_if_due(execution, job)
            return soon
        except LeaseLost:
            self._stop(execution, job, "lost")
        except Exception as error:  # without this thread the process would lose every lease it takes
            note(error, "keeper", execution_id=execution.id)
            self._after_failure(execution, job)
        return None

    def _after_failure(self, execution: Execution, job: Job) -> None:
        time.sleep(0.2)
        if time.monotonic() > self._lapses_at:
            self._stop(execution, job, "lost")

    def _pause(self, soon: float | None) -> float:
        now = time.monotonic()
        # Short enough to see a job that began meanwhile before its lease needs renewing.
        times = [now + min(_LOOK_SECONDS if self._looks else 1.0, self._lease_us / 3e6)]
        if self._held is not None:
            times += [self._renew_at, self._kill_at]
            if self.hand_back_at is not None:
                times.append(self.hand_back_at)
        if soon is not None:
            times.append(now + soon)
        return max(0.0, min(times) - now)

    def _renew_if_due(self, execution: Execution, job: Job) -> None:
        now = time.monotonic()
        self._parent.beat()
        if self.hand_back_at is not None and now >= self.hand_back_at:
            self._store.requeue(execution.id, execution.fence, "handed_back")
            log.info("execution.handed_back", execution_id=execution.id)
            self._leave()
        if job.stopped is not None:
            self._stop(execution, job, job.stopped)
            return
        if now < self._renew_at:
            return
        self.presence.sign()
        status = self._store.renew(execution.id, execution.fence, self._lease_us)
        if status != "held":
            self._stop(execution, job, status)
            return
        with self._condition:
            if self._held is not None and self._held[1] is job:
                self._renew_at = now + self._lease_us / 3e6
                self._lapses_at = now + self._lease_us / 1e6

    def _stop(self, execution: Execution, job: Job, reason: str) -> None:
        """Marks the lease as lost. The function stops at its next call, or its process is killed."""
        now = time.monotonic()
        with self._condition:
            if self._held is None or self._held[1] is not job:
                return
            first, kill = self._kill_at == float("inf"), now >= self._kill_at
            if first or kill:
                self._renew_at = self._kill_at = now + self._stop_grace
        if first:
            job.stop(reason)
            log.warning("execution.lease_lost", execution_id=execution.id, reason=reason)
        elif kill:
            self._parent.kill_me()
