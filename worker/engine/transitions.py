"""Storage of executions: one record and one log each, changed only by scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from worker.core.states import Lane, Phase
from worker.engine import record
from worker.engine.answers import (
    APPEND,
    CANCEL,
    CREATE,
    EXPIRE,
    HINT,
    PARK,
    REMEMBER,
    RENEW,
    REQUEUE,
    SEAL,
    STEP_BEGIN,
    STEP_END,
    STEP_EXPIRE,
    TAKE,
    AppendAnswer,
    CancelAnswer,
    CreateAnswer,
    ExpireAnswer,
    HintAnswer,
    ParkAnswer,
    RememberAnswer,
    RenewAnswer,
    RequeueAnswer,
    SealAnswer,
    StepBeginAnswer,
    StepEndAnswer,
    StepExpireAnswer,
    TakeAnswer,
)
from worker.engine.creation import NewExecution
from worker.engine.events import MOST_EVENTS, MOST_LOG_BYTES, RESERVED_BYTES, RESERVED_EVENTS
from worker.engine.reader import ExecutionReader
from worker.engine.record import Execution
from worker.engine.step_fields import read_step_member
from worker.store.client import as_bytes, as_texts
from worker.store.data_model import Keys
from worker.store.scripts import Arg, Reply, ScriptCall, Scripts, read_reply

# A warm process that has not signed on for this long counts as gone.
PRESENT_US = 20_000_000

# The settler of a waiting request goes first; the clock follows after this delay.
SETTLE_GRACE_US = 1_000_000

LUA = Path(__file__).parent / "lua"
SHARED = LUA / "_engine.lua"


@dataclass(frozen=True, slots=True)
class DueWork:
    """The due work that the clock found."""

    at: int
    lapsed: list[str]
    timers: list[str]
    deadlines: list[str]
    steps: list[tuple[str, str]]
    ended: list[str]
    # Whether this tree of processes has the shared chores.
    shared_chores: bool


class ExecutionStore(ExecutionReader):
    """Reads executions and changes them by scripts: one round trip per method.

    `hooks` are the payments' Lua files, which the scripts call for executions that may have been paid for.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        keys: Keys | None = None,
        hooks: Sequence[Path],
        test_clock: bool = False,
    ) -> None:
        super().__init__(client, keys or Keys())
        self.test_clock = test_clock
        self.scripts = Scripts(client, self.keys, LUA, libraries=[SHARED, *hooks], test_clock=test_clock)

    # Life

    def create(self, new: NewExecution) -> tuple[bool, str]:
        """Creates the record; (False, id) names the one that already has the id or idempotency key."""
        reply = read_reply(CREATE, self.scripts.send(self.creation(new)))
        return reply.answer is CreateAnswer.CREATED, reply.text()

    def creation(self, new: NewExecution) -> ScriptCall:
        """Returns the call of the script that creates the record."""
        indexes = self.keys.indexes(new.agent, new.door, new.labels)
        if new.lane is Lane.REMOTE and new.phase is Phase.WORKING:
            indexes.append(self.keys.waiting(new.agent))
        return self.scripts.call(
            "create",
            id=new.id,
            scope=new.scope,
            key=new.key,
            indexes=indexes,
            keyed="1" if new.key else "",
            lane=new.lane,
            phase=new.phase,
            timeout=new.timeout_us,
            payload=new.payload,
            fields=_flat(new.fields),
        )

    def take(self, id: str, *, lease_us: int, worker: str, session: str) -> tuple[Execution, int] | None:
        """Acquires the lease on a pending execution and returns the store's time; None if not possible."""
        reply = self.scripts.run(TAKE, id=id, lease=lease_us, worker=worker, session=session)
        if reply.answer is not TakeAnswer.TAKEN:
            return None
        return record.decode(reply.values[1:]), int(reply.values[0])

    def renew(self, id: str, fence: int, lease_us: int) -> RenewAnswer:
        return self.scripts.run(RENEW, id=id, fence=fence, lease=lease_us).answer

    def append(
        self,
        id: str,
        fence: int,
        number: int,
        facts: Iterable[tuple[str, bytes]],
        fields: Mapping[str, Arg] | None = None,
    ) -> AppendAnswer:
        """Appends events and record fields: 'ok' (also for a repeat), 'full' or 'lost'."""
        pairs = _flat(fields or {})
        flat = [part for fact in facts for part in fact]
        return self.scripts.run(
            APPEND,
            id=id,
            fence=fence,
            number=number,
            most_events=MOST_EVENTS - RESERVED_EVENTS,
            most_bytes=MOST_LOG_BYTES - RESERVED_BYTES,
            fields=len(pairs) // 2,
            facts=[*pairs, *flat],
        ).answer

    def seal(
        self,
        id: str,
        fence: int,
        outcome: str,
        *,
        output: bytes,
        result: bytes,
        error: bytes,
        payload: bytes,
        condition: str = "no_response",
        send: Callable[[ScriptCall], Any] | None = None,
    ) -> SealAnswer | None:
        """Returns 'ok', 'settling' (from here on only money decides) or 'lost'.

        `send` sends the call; None, returned by both, means that its reply is read later.
        """
        call = self.scripts.call(
            SEAL.name,
            id=id,
            fence=fence,
            outcome=outcome,
            output=output,
            result=result,
            problem=error,
            payload=payload,
            condition=condition,
            grace=SETTLE_GRACE_US,
        )
        reply = (send or self.scripts.send)(call)
        return None if reply is None else read_reply(SEAL, reply).answer

    def requeue(
        self,
        id: str,
        fence: int | None,
        reason: str,
        *,
        delay_us: int = 0,
        crashed: bytes = b"",
        overtime: bytes = b"",
        latency: bytes = b"",
        deadline: bytes = b"",
    ) -> tuple[RequeueAnswer, str]:
        """Returns the outcome ('queued', 'later', 'failed', 'gone') and the lane where it is queued.

        The reasons 'handed_back' and 'not_begun' cost no attempt.
        """
        reply = self.scripts.run(
            REQUEUE,
            id=id,
            fence="" if fence is None else fence,
            reason=reason,
            delay=delay_us,
            crashed=crashed,
            timed_out=overtime,
            latency=latency,
            deadline=deadline,
        )
        return reply.answer, reply.text()

    def hint(self, id: str) -> tuple[HintAnswer, str]:
        reply = self.scripts.run(HINT, id=id)
        return reply.answer, reply.text()

    def pass_on(self, id: str) -> str:
        """Passes a pending execution to another process; returns its lane, '' if it no longer waits."""
        return as_bytes(self.scripts.value("pass_on", id=id)).decode()

    def cancel(self, id: str, payload: bytes, *, by: str, forfeit: bool = False) -> tuple[CancelAnswer, str]:
        reply = self.scripts.run(CANCEL, id=id, payload=payload, by=by, forfeit="1" if forfeit else "")
        return reply.answer, reply.text()

    def expire(self, id: str, *, age: bytes, latency: bytes, unpaid: bytes, deadline: bytes) -> ExpireAnswer:
        return self.scripts.run(
            EXPIRE, id=id, age=age, latency=latency, unpaid=unpaid, deadline=deadline
        ).answer

    def park(self, id: str, fence: int, error: bytes, kind: str) -> ParkAnswer:
        return self.scripts.run(PARK, id=id, fence=fence, problem=error, why=kind).answer

    # Steps

    def step_begin(
        self,
        id: str,
        fence: int,
        *,
        key: str,
        step: str,
        tool: str,
        digest: str,
        attempts: int,
        timeout_us: int,
        intent: bytes,
        created: bytes,
    ) -> Reply[StepBeginAnswer]:
        return self.scripts.run(
            STEP_BEGIN,
            id=id,
            fence=fence,
            key=key,
            step=step,
            tool=tool,
            digest=digest,
            attempts=attempts,
            timeout=timeout_us,
            accepted=intent,
            created=created,
            most_events=MOST_EVENTS,
            most_bytes=MOST_LOG_BYTES,
        )

    def step_end(
        self,
        id: str,
        fence: int,
        step: str,
        outcome: str,
        value: bytes,
        payload: bytes,
        *,
        attempt: int = 1,
        pause_us: int = 0,
    ) -> Reply[StepEndAnswer]:
        """Records the outcome of attempt `attempt`; a pause precedes the next one."""
        return self.scripts.run(
            STEP_END,
            id=id,
            fence=fence,
            step=step,
            outcome=outcome,
            value=value,
            payload=payload,
            tried=attempt,
            pause=pause_us,
        )

    def step_expire(self, id: str, step: str, payload: bytes) -> StepExpireAnswer:
        return self.scripts.run(STEP_EXPIRE, id=id, step=step, payload=payload).answer

    def remember(
        self, id: str, fence: int, name: str, value: bytes, *, kind: str = "", payload: bytes = b""
    ) -> bytes | None:
        """Stores and returns the first value for the name, with an event if it has a kind; None if lost."""
        reply = self.scripts.run(
            REMEMBER,
            id=id,
            fence=fence,
            name=name,
            value=value,
            kind=kind,
            payload=payload,
            most_events=MOST_EVENTS,
            most_bytes=MOST_LOG_BYTES,
        )
        return as_bytes(reply.values[0]) if reply.answer is RememberAnswer.KEPT else None

    # Processes and their clock

    def now(self) -> int:
        """The store's clock, in microseconds."""
        return int(self.scripts.value("time"))

    def sign_on(self, lane: str, name: str) -> None:
        self.scripts.value("sign_on", lane=lane, name=name)

    def sign_off(self, lane: str, name: str) -> None:
        self.scripts.value("sign_off", lane=lane, name=name)

    def takers(self, lane: str) -> int:
        """Number of warm processes of a lane that signed on recently."""
        return int(self.scripts.value("takers", lane=lane, silence=PRESENT_US))

    def clock_age(self) -> float | None:
        """Seconds since any clock last ticked; None if none ever did."""
        age = int(self.scripts.value("clock_age"))
        return None if age < 0 else age / 1e6

    def due(self, *, tree: str, retention_us: int, duty_ms: int | None = None, most: int = 100) -> DueWork:
        """Returns the work that is due. With `duty_ms`, asks for the shared chores."""
        duty = "" if duty_ms is None else duty_ms
        at, *lists, shared = self.scripts.value(
            "due", most=most, retention=retention_us, tree=tree, duty=duty
        )
        lapsed, timers, deadlines, steps, ended = (as_texts(found) for found in lists)
        pairs = [read_step_member(member) for member in steps]
        return DueWork(int(at), lapsed, timers, deadlines, pairs, ended, bool(int(shared)))

    def queued_before(self, before_us: int, most: int) -> list[str]:
        """Queued executions that were queued, or last checked, before this time; the oldest first."""
        found = self.client.zrangebyscore(self.keys.queued, "-inf", before_us, start=0, num=most)
        return as_texts(found)

    def all_queued_before(self, before_us: int) -> list[str]:
        return as_texts(self.client.zrangebyscore(self.keys.queued, "-inf", before_us))

    def queued_and_express(self) -> tuple[int, int]:
        """Number of executions queued in all lanes, and of ids in the express lane."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.zcard(self.keys.queued)
            pipe.llen(self.keys.express)
            queued, express = pipe.execute()
        return int(queued), int(express)

    def express_messages(self) -> list[str]:
        return as_texts(self.client.lrange(self.keys.express, 0, -1))

    def looked_at(self, ids: Sequence[str], at: int) -> None:
        """Marks these queued executions as checked, so that others are checked before them next time."""
        if ids:
            self.client.zadd(self.keys.queued, dict.fromkeys(ids, at), xx=True)

    def forget(self, id: str) -> None:
        """Removes an id from the index of ended executions when its record is already gone."""
        self.client.zrem(self.keys.ended, id)

    def purge(self, execution: Execution, before_us: int, *, look: bool = False) -> bool:
        """Removes an execution that ended before `before_us` from all indexes; with `look`, only checks."""
        payments = self.payment_keys(execution.id)
        removed = self.scripts.value(
            "purge",
            id=execution.id,
            scope=execution.scope,
            key=execution.key,
            contracts=[execution.contract] if execution.contract else [],
            indexes=self.keys.indexes(execution.agent, execution.door, execution.labels),
            payments=list(payments.values()),
            before=before_us,
            look="look" if look else "",
            numbers=list(payments),
        )
        return bool(removed)


def _flat(fields: Mapping[str, Arg]) -> list[Arg]:
    return [part for pair in fields.items() for part in pair]
