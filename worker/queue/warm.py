"""What a warm process does: take ids from its lane, run them, and leave well when told to."""

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

from worker.queue.keeper import Keeper
from worker.queue.presence import Presence
from worker.queue.rq import QueueWorker
from worker.queue.runner import Runner
from worker.store import as_bytes

log = structlog.get_logger()

_POP_SECONDS = 5
_PAUSE = 0.5


class Leaving:
    """SIGTERM: an idle process ends at once; a busy one gets its grace, then hands its work back."""

    def __init__(self, runner: Runner, keeper: Keeper, grace: float) -> None:
        self._runner = runner
        self._keeper = keeper
        self._grace = grace
        self.asked = False
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # a terminal's ^C reaches the supervisor, which sends SIGTERM

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            return
        self.asked = True
        if not self._runner.engaged:
            raise StopRequested
        self._keeper.hand_back_within(self._grace, _leave)


def _leave() -> NoReturn:
    os._exit(0)


def express(client: redis.Redis, lane: str, runner: Runner, presence: Presence, leaving: Leaving) -> None:
    """Short work: ids straight from a list."""
    try:
        while not leaving.asked:
            _survive(lambda: _pop(client, lane, runner, presence))
    except StopRequested:
        return


def _pop(client: redis.Redis, lane: str, runner: Runner, presence: Presence) -> None:
    presence.sign()
    found = client.blpop([lane], timeout=_POP_SECONDS)
    if found is not None:
        runner.run(as_bytes(found[1]).decode())


def queue(client: redis.Redis, name: str, runner: Runner, presence: Presence, leaving: Leaving) -> None:
    """Long work: messages from RQ."""

    worker: QueueWorker | None = None

    def run(id: str) -> None:
        _survive(lambda: runner.run(id))
        if leaving.asked and worker is not None:
            worker.stop()

    def serve() -> None:
        nonlocal worker
        worker = QueueWorker(client, name=name, run=run, sign=presence.sign)
        worker.work()
        if not leaving.asked:  # RQ gives up on errors that pass
            time.sleep(_PAUSE)

    try:
        while not leaving.asked:
            _survive(serve)
    except StopRequested:
        return


def _survive(step: Callable[[], object]) -> None:
    """A store that is away must not end the process: what was lost meanwhile the clock finds."""
    try:
        step()
    except redis.RedisError:
        log.warning("work.store_away")
        time.sleep(_PAUSE)
