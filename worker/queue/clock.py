"""The clock finishes abandoned work. Every process tree has one; no leader, every tick is idempotent."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TypeVar

import redis
import structlog

from worker.core.errors import Problem
from worker.engine.answers import HintAnswer, RequeueAnswer
from worker.engine.stored_files import files_of
from worker.engine.transitions import ExecutionStore
from worker.files.store import Files
from worker.queue.lost_messages import LostMessages
from worker.queue.rq import RunQueue
from worker.queue.runner import DEADLINE_MISSED, LOST, STEP_TIMEOUT, TOO_OLD, TOO_SLOW, UNPAID
from worker.store.outage import Resting, is_outage, note

log = structlog.get_logger()

T = TypeVar("T")

TICK_SECONDS = 0.25
# Interval of chores, about a second.
_LOOK_EVERY = 4
_MOST = 250
# How long one tree has the shared chores; if it dies, another tree takes them after this time.
_DUTY_MS = 3_000
# Each removal takes several round trips and is not urgent.
_REMOVE = 100

Chore = Callable[[int], None]


class Clock:
    """`chores` run about once a second for other packages; each gets the store's time.

    `shared_chores` are done by one tree at a time: a second scan of the same keys would find nothing more.
    """

    def __init__(
        self,
        store: ExecutionStore,
        queue: RunQueue,
        *,
        files: Files,
        tree: str,
        retention_us: int,
        chores: list[Chore] | None = None,
        shared_chores: list[Chore] | None = None,
        attend: Callable[[str], None] = lambda id: None,
    ) -> None:
        self._store = store
        self._queue = queue
        self._files = files
        self._tree = tree
        self._retention_us = retention_us
        self._chores = chores or []
        self._shared_chores = shared_chores or []
        self._attend = attend
        self._lost = LostMessages(store, queue)
        self._resting = Resting()
        self._ticks = 0
        self._stop = False

    def run(self) -> None:
        """Runs until SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while not self._stop:
            try:
                self.tick()
            except redis.RedisError as error:
                note(error, "clock")
            time.sleep(TICK_SECONDS * random.uniform(0.8, 1.2))

    def tick(self) -> None:
        looks = self._ticks % _LOOK_EVERY == 0
        due = self._store.due(
            tree=self._tree,
            retention_us=self._retention_us,
            duty_ms=_DUTY_MS if looks else None,
            most=_MOST,
        )
        self._each(due.lapsed, self._requeue)
        self._each(due.timers, self._hint)
        self._each(due.deadlines, self._expire)
        self._each(due.steps, lambda step: self._store.step_expire(*step, STEP_TIMEOUT))
        if due.shared_chores:
            self._each(self._lost.find(due.at), self._hint)
            self._each(due.ended[:_REMOVE], lambda id: self._remove(id, due.at - self._retention_us))
            self._each(self._shared_chores, lambda chore: chore(due.at))
        if looks:
            self._each(self._chores, lambda chore: chore(due.at))
        self._ticks += 1

    def _each(self, items: Iterable[T], act: Callable[[T], object]) -> None:
        """Runs `act` on each item; one failure must not block the others."""
        for item in items:
            name = f"{act.__qualname__} {item}"
            if name in self._resting:
                continue
            try:
                act(item)
            except Problem as problem:
                log.warning("clock.item_postponed", item=item, code=problem.code)
            except Exception as error:
                if is_outage(error):
                    raise
                note(error, "clock", item=item)
                self._resting.add(name)

    def _requeue(self, id: str) -> None:
        self._push(id, *self._store.requeue(id, None, "lease_lapsed", **LOST))

    def _hint(self, id: str) -> None:
        self._push(id, *self._store.hint(id))

    def _push(self, id: str, answer: RequeueAnswer | HintAnswer, lane: str) -> None:
        if answer is HintAnswer.ATTEND:
            self._attend(id)
        if answer in (RequeueAnswer.QUEUED, HintAnswer.QUEUED) and lane == "queue":
            self._queue.push(id)

    def _expire(self, id: str) -> None:
        self._store.expire(id, age=TOO_OLD, latency=TOO_SLOW, unpaid=UNPAID, deadline=DEADLINE_MISSED)

    def _remove(self, id: str, before_us: int) -> None:
        """Deletes the files first: as long as the record exists, this can be repeated."""
        execution = self._store.get(id)
        if execution is None:
            self._store.forget(id)
        elif self._store.purge(execution, before_us, look=True):
            for key in files_of(execution, self._store.steps(id)):
                self._files.delete(key)
            self._store.purge(execution, before_us)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop = True
