"""The express lane as one warm process sees it: a list of ids of short work."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis
import structlog
from redis.exceptions import NoScriptError

from worker.core.ids import new_id
from worker.engine import record
from worker.engine.answers import (
    SEAL,
    TAKE_HANDED,
    TAKE_NEXT,
    SealAnswer,
    TakeHandedAnswer,
    TakeNextAnswer,
)
from worker.engine.record import Execution
from worker.engine.transitions import ExecutionStore
from worker.queue.hand_backs import hand_back
from worker.queue.status_page import MOST_ASKED
from worker.store.client import as_bytes
from worker.store.commands import ask, checked, replies_together
from worker.store.link import Begun
from worker.store.outage import is_outage, note
from worker.store.scripts import ScriptCall, read_reply

log = structlog.get_logger()

# For how long work is waited for, in seconds and as a part of a lease: what comes later may have been granted
# so long ago that the lease has lapsed.
_POP_SECONDS, _POP_PART = 5.0, 0.5
# How often a lane that was empty is looked at with a seal, and the head of one that others take from.
_LOOK_EVERY = 8
# For how long a process leaves that head to others; with runs of such a length a round trip matters little.
_HEAD_SECONDS = 0.1
# In how many places, one after another, processes that share the lane look for the work they take next.
_PLACES = 4
# The part of a lease within which its run must begin.
_BEGINS_WITHIN = 0.1
# Leases are taken ahead of more than one run only while runs are as short as this.
_SHORT_SECONDS = 0.01
# For how long leases in hand may wait for one that is not.
_HAND_SECONDS = 0.25


class _Lease(NamedTuple):
    """A lease of a run to come, with the store's time then, and when it was asked for."""

    execution: Execution
    at: int
    asked_at: float


class _SentSeal(NamedTuple):
    """A seal that was sent ahead, what reads its answer, and until when it is worth sending again."""

    id: str
    call: ScriptCall
    begun: Begun
    until: float


class ExpressLane:
    """While work waits, the leases of the next runs come with a seal, in one round trip.

    For that the process looks at ids and leaves them in the lane, where others may take them first. It takes
    several leases only while its runs are short, and those that a longer run keeps waiting go back. While it
    has others, the seal of a run is sent at once and its answer is read with that of the last one. A lease
    whose process dies before its run begins is handed back by its parent, and one whose answer is lost by
    the process. An id that is lost with its process is found by the clock.

    Where no work waits, the process waits for it, and the store grants the lease as soon as there is some:
    the script that does so is sent with the command that waits, and so is a look at what waits behind it.
    """

    def __init__(
        self,
        waiting: redis.Redis,
        store: ExecutionStore,
        *,
        worker: str,
        lease_us: int,
        processes: int = 1,
        takes_ahead: Callable[[], int] = lambda: MOST_ASKED,
        asks: Callable[[Sequence[tuple[str, str]]], None] = lambda runs: None,
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self._waiting = waiting
        self._store = store
        self._scripts = store.scripts
        self._key = store.keys.express
        self._worker = worker
        self._lease_us = lease_us
        # How many there are in this tree that take from the lane.
        self._processes = processes
        self._begins_within = lease_us / 1e6 * _BEGINS_WITHIN
        self._pop_seconds = min(_POP_SECONDS, lease_us / 1e6 * _POP_PART)
        # How many other runs this process may take before it knows which agents they are for.
        self.takes_ahead = takes_ahead
        # Whether it may take whatever comes, unseen.
        self.takes_any: Callable[[], bool] = lambda: True
        # Tells the parent, which hands the leases back if this process dies before their runs begin.
        self._asks = asks
        # Called when leases wait in hand for the run under way.
        self._loaded = loaded
        # Held but while an empty lane is waited for: the keeper's thread hands leases back during a long run.
        self._lock = threading.RLock()
        self._next = ""
        # Of the last wait.
        self._session = ""
        self._hand: deque[_Lease] = deque()
        # Of leases whose answer was lost: executions and sessions. What was waited for has no name.
        self._unsure: list[tuple[str, str]] = []
        self._sent: deque[_SentSeal] = deque()
        self._seen: list[str] = []
        self._place = 0
        self._head_by = 0.0
        self._work_waits = False
        self._seals = 0
        # How many leases to take, and how long runs took lately.
        self._most = 1
        self._longest = 0.0
        # The run under way, if its lease was in hand, and when it began.
        self._run = ""
        self._began = 0.0

    @property
    def has_lease(self) -> bool:
        return bool(self._hand)

    def leased(self) -> tuple[Execution, int] | None:
        """An execution whose lease came with a seal, and the store's time; None if it is too late for it."""
        with self._lock:
            if self._sent:
                self._scripts.hear()
                # No other run begins while it is known that a finished one is not sealed.
                if any(sent.begun.refused() for sent in self._sent):
                    self._confirm()
            now = time.monotonic()
            if self._hand and now - self._hand[0].asked_at > self._begins_within:
                self.give_back()
            if not self._hand:
                return None
            lease = self._hand.popleft()
            self._began, self._run = now, lease.execution.id
            return lease.execution, lease.at + int((now - lease.asked_at) * 1e6)

    def take(self) -> str:
        """The next id, as soon as there is one; '' after some seconds without, or with a lease in hand."""
        with self._lock:
            self._confirm()
            self._resolve()
            id, self._next = self._next, ""
        if not id and self.takes_any():
            id = self._wait()
        elif not id:
            found = ask(self._waiting, "BLPOP", self._key, self._pop_seconds)
            id = "" if found is None else as_bytes(found[1]).decode()
        self._began = time.monotonic()
        return id

    def _wait(self) -> str:
        """Waits for work, whose lease is then in hand; returns its id if it is still to be leased."""
        session, before = new_id(), self._session
        take = self._scripts.call(
            TAKE_HANDED.name, id="", lease=self._lease_us, worker=self._worker, session=session, before=before
        )
        unseen = [("", session)]
        self._asks(unseen)
        self._session, self._unsure = session, unseen
        wait = ("BLMOVE", self._key, self._store.keys.handed(session), "LEFT", "LEFT", self._pop_seconds)
        asked_at = time.monotonic()
        replies = replies_together(self._waiting, wait, take.words, self._look())
        if isinstance(replies[1], NoScriptError):
            replies[1] = self._scripts.send(take)
        _, taken, after = checked(replies)
        reply = read_reply(TAKE_HANDED, taken)
        if time.monotonic() - asked_at > self._pop_seconds + self._begins_within:
            # This process has stood still: another one may hold the lease by now.
            self._resolve()
            return ""
        if reply.answer is TakeHandedAnswer.TAKEN:
            # A lease on a record that cannot be read lapses, which costs an attempt.
            self._keep("", reply.values, time.monotonic())
        behind = _ids(after)
        # The rest is left to the others, which may wait, too.
        share = -(-len(behind) // self._processes)
        self._unsure, self._seen = [], behind[: min(self._most, share)]
        return reply.text() if reply.answer is TakeHandedAnswer.LAST else ""

    def _keep(self, id: str, taken: Sequence[Any], asked_at: float) -> bool:
        """Takes a lease in hand; False if the record cannot be read. `id`: '' if only the record tells."""
        try:
            execution = record.decode(taken[1:])
        except (KeyError, TypeError, ValueError) as error:
            note(error, "express", execution_id=id)
            return False
        with self._lock:
            self._hand.append(_Lease(execution, int(taken[0]), asked_at))
        return True

    def seal(self, call: ScriptCall) -> Any:
        """Sends the script that ends a run; one that is tried again takes nothing else.

        Returns its reply, or None if that is read later.
        """
        with self._lock:
            self._measure()
            if self._hand and not self._next:
                until = time.monotonic() + self._lease_us / 1e6
                self._sent.append(_SentSeal(self._run, call, self._scripts.begin(call), until))
                return None
            reply = self._seal_with_more(call)
            self._confirm()
            return reply

    def lighten(self) -> bool:
        """Hands back the leases that a long run keeps waiting, and hears of the seals before it.

        Returns whether any are left.
        """
        if not self._lock.acquire(blocking=False):
            return True
        try:
            now = time.monotonic()
            if self._hand and now - self._hand[0].asked_at > _HAND_SECONDS:
                self.give_back()
            elif self._sent and now - self._began > _HAND_SECONDS:
                self._confirm()
            return bool(self._hand or self._sent)
        finally:
            self._lock.release()

    def give_back(self) -> None:
        """Leaves what this process will not run to the others."""
        with self._lock:
            self._confirm()
            if self._next:
                ask(self._waiting, "LPUSH", self._key, self._next)
                self._next = ""
            while self._hand:
                execution = self._hand[-1].execution
                self._hand_back(lambda of=execution: self._store.requeue(of.id, of.fence, "not_begun"))  # type: ignore[misc]
                self._hand.pop()
            self._resolve()

    def _confirm(self) -> None:
        """Reads what became of the seals sent ahead.

        One whose answer is lost is sent again while its lease may hold: the store knows whether it has it.
        """
        while self._sent:
            sent = self._sent[0]
            try:
                reply = sent.begun.reply()
            except redis.RedisError as error:
                reply = self._send_again(sent) if is_outage(error) else _dropped(sent, error)
            self._sent.popleft()
            if reply is not None and read_reply(SEAL, reply).answer is SealAnswer.LOST:
                log.warning("execution.stopped", reason="lost", execution_id=sent.id)

    def _send_again(self, sent: _SentSeal) -> Any:
        try:
            return self._scripts.send(sent.call)
        except redis.RedisError as error:
            if is_outage(error) and time.monotonic() < sent.until:
                raise
            return _dropped(sent, error)

    def _measure(self) -> None:
        took, self._began = time.monotonic() - self._began, time.monotonic()
        self._longest = max(took, self._longest * 0.7)
        if self._longest >= _SHORT_SECONDS:
            self._most = 1

    def _seal_with_more(self, call: ScriptCall) -> Any:
        self._seals += 1
        seen, self._seen = self._seen, []
        if self._next or self._hand or self._unsure:
            return self._scripts.send(call)
        looks = self._seals % _LOOK_EVERY == 0
        # What waits at the head may wait for as long as another process runs.
        if self._place and (looks or time.monotonic() > self._head_by):
            seen, self._place, self._work_waits = [], 0, True
        if seen:
            # They were seen before the run that ends now, which may have been a long one.
            seen = seen[: min(self._most, self._ahead())]
        if seen:
            return self._seal_and_lease(call, seen)
        if not (looks or self._work_waits):
            return self._scripts.send(call)
        self._work_waits = False
        reply, id, after = self._scripts.send_together(call, ("LPOP", self._key), self._look())
        if id is not None:
            self._work_waits, self._next = True, as_bytes(id).decode()
            self._seen = _ids(after)[: self._most]
        return reply

    def _ahead(self) -> int:
        try:
            return self.takes_ahead()
        except Exception as error:  # the run has ended, and its seal must go
            note(error, "express")
            return 0

    def _resolve(self) -> None:
        """Hands back the leases whose answer was lost, if they were granted: they would cost an attempt."""
        while self._unsure:
            id, session = self._unsure[-1]
            self._hand_back(lambda id=id, session=session: hand_back(self._store, id, session))  # type: ignore[misc]
            self._unsure.pop()

    def _hand_back(self, call: Callable[[], object]) -> None:
        try:
            call()
        except redis.RedisError as error:
            if is_outage(error):
                raise
            note(error, "express")  # the lease lapses

    def _look_elsewhere(self) -> None:
        if not self._place:
            self._head_by = time.monotonic() + _HEAD_SECONDS
        self._place = (self._place + 1) % _PLACES

    def _look(self) -> tuple[str, str, int, int]:
        first = self._place * self._most
        # One more, because a script that the store does not have yet runs later and takes what is seen here.
        return "LRANGE", self._key, first, first + self._most

    def _seal_and_lease(self, call: ScriptCall, seen: Sequence[str]) -> Any:
        asked_at, asked = time.monotonic(), [(id, new_id()) for id in seen]
        nexts = [
            self._scripts.call(
                TAKE_NEXT.name,
                id=id,
                lease=self._lease_us,
                worker=self._worker,
                session=session,
                instead="1" if len(seen) == 1 else "",
                waits="1" if number else "",
            )
            for number, (id, session) in enumerate(asked)
        ]
        self._asks(asked)
        self._work_waits, self._unsure = False, asked
        sealed, *taken, after = self._scripts.send_each(call, *nexts, self._look())
        self._unsure = []
        answers = [self._answered(each, asked_at, run) for each, run in zip(taken, asked, strict=True)]
        if not isinstance(after, Exception):
            granted = {lease.execution.id for lease in self._hand}
            left = [id for id in _ids(after) if id not in granted]
            self._work_waits, self._seen = True, left[: self._most]
        if not set(answers) <= {TakeNextAnswer.TAKEN, TakeNextAnswer.LAST}:
            self._most = max(1, self._most // 2)
            self._look_elsewhere()
        elif TakeNextAnswer.LAST not in answers:
            self._most = min(MOST_ASKED, self._most * 2)
        if self._hand:
            self._loaded()
        if isinstance(sealed, Exception):
            raise sealed
        return sealed

    def _answered(self, taken: Any, asked_at: float, run: tuple[str, str]) -> TakeNextAnswer | None:
        # An error here would hide the seal; the same work meets it again when its lease is taken alone.
        if isinstance(taken, Exception):
            return None
        reply = read_reply(TAKE_NEXT, taken)
        if reply.answer is TakeNextAnswer.TAKEN:
            if not self._keep(run[0], reply.values, asked_at):  # the others are in order
                self._unsure.append(run)
                return None
        elif reply.answer is TakeNextAnswer.OTHER:
            self._next = reply.text()
        return reply.answer


def _dropped(sent: _SentSeal, error: redis.RedisError) -> Any:
    """A seal that is not sent again: the lease lapses, and the clock has the work."""
    note(error, "express", execution_id=sent.id)
    return None


def _ids(found: Sequence[Any]) -> list[str]:
    return [as_bytes(id).decode() for id in found]
