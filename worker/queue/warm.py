"""Main loops of a warm process: take ids from its lane, run them, shut down in order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import redis
import structlog
from rq.exceptions import StopRequested

from worker.core.descendants import end_children
from worker.engine.answers import SEAL, TAKE_HANDED, TAKE_NEXT
from worker.queue.express_lane import ExpressLane
from worker.queue.lease_keeper import LeaseKeeper
from worker.queue.presence import Presence
from worker.queue.process_limits import ProcessWear
from worker.queue.rq import PASSED_ON_PAUSE, QueueWorker, TakenMessage
from worker.queue.runner import Runner
from worker.queue.supervisor_pipe import SupervisorPipe
from worker.store.outage import insist, note

log = structlog.get_logger()

# The scripts with which each process of the express lane begins.
FIRST_SCRIPTS = "sign_on", TAKE_HANDED.name, TAKE_NEXT.name, SEAL.name
_PAUSE = 0.5
# With the time-out of its last try this is shorter than the silence for which a parent kills its child.
_LAST_SECONDS = 4.0
# How long a worn process waits for its successor before it leaves the lane empty, and how often it looks.
_SUCCESSOR_SECONDS, _LOOK_SECONDS = 10.0, 0.02


class Shutdown:
    """SIGTERM: an idle process exits at once; a busy one gets its grace period, then hands its work back.

    In an idle process the signal raises StopRequested, wherever it is.

    A process that has reached a limit is worn: it takes no more work and its parent replaces it. One of the
    express lane asks for its successor before, and ends when that one relieves it.
    """

    def __init__(
        self, runner: Runner, keeper: LeaseKeeper, grace: float, wear: ProcessWear, parent: SupervisorPipe
    ) -> None:
        self._wear = wear
        self._parent = parent
        self._asked_for_successor = False
        self._runner = runner
        self._keeper = keeper
        self._grace = grace
        self.asked = False
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # a terminal's ^C reaches the supervisor, which sends SIGTERM

    @property
    def worn(self) -> bool:
        return bool(self._wear.reason())

    @property
    def relieved(self) -> bool:
        """Whether the successor takes work, so that this process ends when it has none in hand."""
        return self._parent.relieved

    def takes_more(self) -> bool:
        """Whether the run under way may be followed by another, whichever agent it is for."""
        ends = self.asked or self.relieved or self._wear.ends_after_this()
        return not ends and self._runner.runs_all()

    @property
    def patience(self) -> float:
        """For how many seconds the end of the process may wait for the store."""
        return min(self._grace, _LAST_SECONDS)

    def takes_ahead(self) -> int:
        """The same, and how many."""
        return self._wear.runs_after_this() if self.takes_more() else 0

    def ran(self, taken: bool) -> None:
        """After each run: kills the processes that author code started."""
        if taken:
            self._wear.ran()
            left = end_children()
            if left:
                log.warning("work.leftovers_ended", processes=left)

    def look_ahead(self) -> None:
        """Asks for a successor before a limit is reached: to start one takes as long as many short runs."""
        if self._wear.nearly():
            self._ask_for_successor()

    def _ask_for_successor(self) -> None:
        if not self._asked_for_successor:
            self._asked_for_successor = True
            self._parent.replace_me()

    def sign_off(self, presence: Presence) -> None:
        """The end of a worn process: it leaves its lane when its successor takes work there.

        A lane without a process refuses requests that would have waited for a moment.
        """
        limit = "" if self.asked else self._wear.reason() or self._wear.nearly()
        if not limit:
            return
        log.info("work.process_worn", limit=limit)
        self._ask_for_successor()
        until = time.monotonic() + _SUCCESSOR_SECONDS
        while not self._parent.relieved and time.monotonic() < until:
            _survive(presence.sign)
            time.sleep(_LOOK_SECONDS)
        _survive(presence.leave)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            return
        self.asked = True
        if not self._runner.engaged:
            raise StopRequested
        self._keeper.hand_back_within(self._grace, _leave)


def _leave() -> NoReturn:
    os._exit(0)


def express(lane: ExpressLane, runner: Runner, presence: Presence, leaving: Shutdown) -> None:
    """Runs short work: ids straight from a list. While its successor starts, a process goes on."""
    lane.takes_ahead, lane.takes_any = leaving.takes_ahead, runner.runs_all

    def step() -> None:
        _take(lane, runner, presence, leaving)
        leaving.look_ahead()

    try:
        while not (leaving.asked or leaving.worn or (leaving.relieved and not lane.has_lease)):
            _survive(step)
    finally:
        # Finished work may wait for a store that is just away.
        _survive(lambda: insist(lane.give_back, "work", patience=leaving.patience))


def _take(lane: ExpressLane, runner: Runner, presence: Presence, leaving: Shutdown) -> None:
    presence.sign()
    id = "" if lane.has_lease else lane.take()
    if lane.has_lease:
        leaving.ran(runner.run_leased(lane.leased))
        return
    if not id:
        return
    if runner.passes_on(id):
        time.sleep(PASSED_ON_PAUSE)
    else:
        leaving.ran(runner.run(id))


def queue(
    client: redis.Redis,
    name: str,
    runner: Runner,
    presence: Presence,
    leaving: Shutdown,
    taken: TakenMessage,
) -> None:
    """Runs long work: messages from RQ."""

    taken.takes_more = leaving.takes_more
    worker: QueueWorker | None = None

    def run(id: str) -> None:
        _survive(lambda: leaving.ran(runner.run(id)))
        if (leaving.asked or leaving.worn) and worker is not None:
            worker.stop()

    def sign() -> None:
        presence.sign()
        if leaving.worn and not runner.engaged:
            raise StopRequested

    def serve() -> None:
        nonlocal worker
        worker = QueueWorker(client, name=name, run=run, sign=sign, passes_on=runner.passes_on, taken=taken)
        worker.work()
        if not (leaving.asked or leaving.worn):  # RQ gives up on transient errors
            time.sleep(_PAUSE)

    try:
        while not (leaving.asked or leaving.worn):
            _survive(serve)
    finally:
        _survive(lambda: taken.give_back(client))


def _survive(step: Callable[[], object]) -> None:
    """Keeps the process alive through outages and bugs of the store; the clock finds lost work."""
    try:
        step()
    except redis.RedisError as error:
        note(error, "work")
        time.sleep(_PAUSE)
