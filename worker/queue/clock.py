"""The clock finishes what others left. Every tree has one; no leader, every tick is idempotent."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TypeVar

import redis
import structlog

from worker.agents.blobs import files_of
from worker.delivery.files import Files
from worker.errors import Problem
from worker.executions.store import Due, ExecutionStore
from worker.queue.rq import RunQueue
from worker.queue.runner import DEADLINE_MISSED, LOST, STEP_TIMEOUT, TOO_OLD, TOO_SLOW, UNPAID
from worker.store import unavailable

log = structlog.get_logger()

T = TypeVar("T")

TICK_SECONDS = 0.25
# A record that waits longer than this is looked for in its queue, once a second.
_QUEUED_AGE_US = 1_000_000
_LOOK_EVERY = 4
_MOST = 250
# Removing takes several trips each, and is in no hurry.
_REMOVE = 100

Chore = Callable[[int], None]


class Clock:
    """`chores` are what other rooms want done about once a second; each gets the store's time."""

    def __init__(
        self,
        store: ExecutionStore,
        queue: RunQueue,
        *,
        files: Files,
        tree: str,
        retention_us: int,
        chores: list[Chore] | None = None,
        attend: Callable[[str], None] = lambda id: None,
    ) -> None:
        self._store = store
        self._queue = queue
        self._files = files
        self._tree = tree
        self._retention_us = retention_us
        self._chores = chores or []
        self._attend = attend
        self._ticks = 0
        self._stop = False

    def run(self) -> None:
        """Until SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while not self._stop:
            try:
                self.tick()
            except redis.RedisError:
                log.warning("clock.store_away")
            time.sleep(TICK_SECONDS * random.uniform(0.8, 1.2))

    def tick(self) -> None:
        due = self._store.due(
            tree=self._tree, queued_age_us=_QUEUED_AGE_US, retention_us=self._retention_us, most=_MOST
        )
        self._each(due.lapsed, self._requeue)
        self._each(due.timers, self._hint)
        self._each(due.deadlines, self._expire)
        self._each(due.steps, lambda step: self._store.step_expire(*step, STEP_TIMEOUT))
        if self._ticks % _LOOK_EVERY == 0:
            self._find_lost(due)
            self._each(due.ended[:_REMOVE], lambda id: self._remove(id, due.at - self._retention_us))
            self._each(self._chores, lambda chore: chore(due.at))
        self._ticks += 1

    def _each(self, items: Iterable[T], act: Callable[[T], object]) -> None:
        """One that cannot be helped must not keep the others waiting."""
        for item in items:
            try:
                act(item)
            except Problem as problem:
                log.warning("clock.put_off", item=item, code=problem.code)
            except Exception as error:
                if unavailable(error) is not None:
                    raise
                log.exception("clock.stuck", item=item)

    def _requeue(self, id: str) -> None:
        self._push(id, *self._store.requeue(id, None, "lease_lapsed", **LOST))

    def _hint(self, id: str) -> None:
        self._push(id, *self._store.hint(id))

    def _push(self, id: str, what: str, lane: str) -> None:
        if what == "attend":
            self._attend(id)
        if what == "queued" and lane == "queue":
            self._queue.push(id)

    def _expire(self, id: str) -> None:
        self._store.expire(id, age=TOO_OLD, latency=TOO_SLOW, unpaid=UNPAID, deadline=DEADLINE_MISSED)

    def _find_lost(self, due: Due) -> None:
        """Queued records that no queue names: the message was lost with the process that took it.

        Those that are where they should be step back, so that a long queue hides nobody behind it.
        """
        lost = self._queue.lost(due.queued)
        missing = set(lost)
        self._store.looked_at([id for id in due.queued if id not in missing], due.at)
        taken = self._queue.taken()
        stranded = []
        for id, found in zip(taken, self._store.get_many(taken), strict=True):
            if found is None or found.state != "pending":
                self._queue.forget(id)
            elif due.at - found.updated > _QUEUED_AGE_US:
                stranded.append(id)
        self._each(lost, self._hint)
        self._each(self._queue.lost(stranded), self._hint)

    def _remove(self, id: str, before_us: int) -> None:
        """The files go first: as long as the record is there, this can be done again."""
        execution = self._store.get(id)
        if execution is None:
            self._store.forget(id)
        elif self._store.purge(execution, before_us, look=True):
            for key in files_of(execution, self._store.steps(id)):
                self._files.delete(key)
            self._store.purge(execution, before_us)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop = True
