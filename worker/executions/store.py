"""Where executions live: one record and one log each, moved by scripts and by nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis

from worker.executions import events, record
from worker.executions.events import Event
from worker.executions.keys import Keys
from worker.executions.record import Execution
from worker.executions.scripts import Arg, Call, Scripts
from worker.executions.states import Lane, Phase, State
from worker.store import as_bytes, as_mapping

# What a log may hold. Text and progress leave room for steps, signals and files, which matter more.
MOST_EVENTS = 10_000
MOST_LOG_BYTES = 4 << 20
RESERVED_EVENTS = 1_000
RESERVED_BYTES = 1 << 20

# So many events are read at a time.
BATCH = 1_000

# A warm process that gave no sign for so long counts as gone.
PRESENT_US = 20_000_000

# The settler of a request that waits goes first; the clock comes after it.
SETTLE_GRACE_US = 1_000_000

LOST, FULL = "lost", "full"

_Scored = list[tuple[object, float]]


@dataclass(frozen=True, slots=True)
class New:
    """What an execution starts with. JSON values are given as bytes."""

    id: str
    agent: str
    door: str
    lane: Lane
    input: bytes
    labels: Mapping[str, str]
    timeout_us: int
    run_limit_us: int
    attempts: int = 3
    phase: Phase = Phase.WORKING
    input_ref: bytes = b""
    context: bytes = b""
    digest: str = ""
    version: str = ""
    scope: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Due:
    """What the clock found waiting."""

    at: int
    lapsed: list[str]
    timers: list[str]
    deadlines: list[str]
    steps: list[tuple[str, str]]
    queued: list[str]
    ended: list[str]


class ExecutionStore:
    """Reads and moves executions, one round trip a method."""

    def __init__(self, client: redis.Redis, *, keys: Keys | None = None, test_clock: bool = False) -> None:
        self.client = client
        self.keys = keys or Keys()
        self.scripts = Scripts(client, test_clock=self.keys.test_clock if test_clock else None)
        self._memory: dict[str, Any] = {}
        self._memory_read = float("-inf")

    # Life

    def create(self, new: New) -> tuple[bool, str]:
        """Makes the record; (False, id) names the one that the id or the idempotency key already has."""
        done, id, *_ = self.scripts(*self.creation(new))
        return bool(done), id.decode()

    def creation(self, new: New) -> Call:
        """The script that makes the record."""
        labels = json.dumps(dict(new.labels), separators=(",", ":"))
        agent, about = json.dumps(new.agent).encode(), _about(new.input_ref)
        payload = b'{"agent_id":%s,"input":%s%s,"labels":%s}' % (agent, new.input, about, labels.encode())
        fields: dict[str, Arg] = {
            "agent": new.agent,
            "door": new.door,
            "labels": labels,
            "input": new.input,
            "attempts": new.attempts,
            "run_limit": new.run_limit_us,
        }
        optional: dict[str, Arg] = {
            "input_ref": new.input_ref,
            "context": new.context,
            "digest": new.digest,
            "version": new.version,
        }
        fields |= {name: value for name, value in optional.items() if value}
        if new.key:
            fields.update(scope=new.scope, key=new.key)
        head: list[Arg] = [new.id, "1" if new.key else "", new.lane, new.phase, new.timeout_us, payload]
        keys = [*self.keys.transition(new.id), self.keys.idempotency(new.scope, new.key)]
        keys += self.keys.indexes(new.agent, new.door, new.labels)
        if new.lane is Lane.REMOTE and new.phase is Phase.WORKING:
            keys.append(self.keys.waiting(new.agent))
        return "create", keys, [*head, *_flat(fields)]

    def take(self, id: str, *, lease_us: int, worker: str, session: str) -> tuple[Execution, int] | None:
        """The lease on a pending execution, and the store's time; None when it is not to be had."""
        reply = self._move("take", id, [id, lease_us, worker, session])
        if reply[0] != b"taken":
            return None
        return record.decode(reply[2:]), int(reply[1])

    def renew(self, id: str, fence: int, lease_us: int) -> str:
        return _text(self._move("renew", id, [id, fence, lease_us]))

    def append(
        self,
        id: str,
        fence: int,
        number: int,
        facts: Iterable[tuple[str, bytes]],
        fields: Mapping[str, Arg] | None = None,
    ) -> str:
        """Facts about the work, with fields to remember: 'ok', 'full' or 'lost'; 'ok' too when repeated."""
        pairs = _flat(fields or {})
        flat = [part for fact in facts for part in fact]
        most = [MOST_EVENTS - RESERVED_EVENTS, MOST_LOG_BYTES - RESERVED_BYTES]
        args = [fence, number, *most, len(pairs) // 2, *pairs, *flat]
        return _text(self._move("append", id, args))

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
    ) -> str:
        """'ok', 'settling' when only money decides from here on, or 'lost'."""
        args: list[Arg] = [id, fence, outcome, output, result, error, payload, condition, SETTLE_GRACE_US]
        return _text(self._move("seal", id, args))

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
    ) -> tuple[str, str]:
        """What became of it ('queued', 'later', 'failed', 'gone'), and the lane where it is queued."""
        held: Arg = "" if fence is None else fence
        failures: list[Arg] = [crashed, overtime, latency, deadline]
        reply = self._move("requeue", id, [id, held, reason, delay_us, *failures])
        return _text(reply[0]), _text(reply[1]) if len(reply) > 1 else ""

    def hint(self, id: str) -> tuple[str, str]:
        reply = self._move("hint", id, [id])
        return _text(reply[0]), _text(reply[1]) if len(reply) > 1 else ""

    def cancel(self, id: str, payload: bytes, *, by: str) -> tuple[str, str]:
        reply = self._move("cancel", id, [id, payload, by])
        return _text(reply[0]), _text(reply[1]) if len(reply) > 1 else ""

    def expire(self, id: str, *, age: bytes, latency: bytes, unpaid: bytes, deadline: bytes) -> str:
        return _text(self._move("expire", id, [id, age, latency, unpaid, deadline]))

    def park(self, id: str, fence: int, error: bytes, kind: str) -> str:
        return _text(self._move("park", id, [id, fence, error, kind]))

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
    ) -> list[bytes]:
        args: list[Arg] = [id, fence, key, step, tool, digest, attempts, timeout_us, intent, created]
        reply: list[bytes] = self._move("step_begin", id, [*args, MOST_EVENTS, MOST_LOG_BYTES])
        return reply

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
    ) -> list[bytes]:
        """What became of the `attempt`-th try; before the next one there is a pause."""
        args: list[Arg] = [id, fence, step, outcome, value, payload, attempt, pause_us]
        reply: list[bytes] = self._move("step_end", id, args)
        return reply

    def step_expire(self, id: str, step: str, payload: bytes) -> str:
        return _text(self._move("step_expire", id, [id, step, payload]))

    def remember(
        self, id: str, fence: int, name: str, value: bytes, *, kind: str = "", payload: bytes = b""
    ) -> bytes | None:
        """The first value for the name, told of by an event if it has a kind; None without the lease."""
        args: list[Arg] = [fence, name, value, kind, payload, MOST_EVENTS, MOST_LOG_BYTES]
        reply: list[bytes] = self._move("remember", id, args)
        return reply[1] if reply[0] == b"kept" else None

    def steps(self, id: str) -> dict[str, bytes]:
        """All that is known about steps, and what `remember` kept."""
        return as_mapping(self.client.hgetall(self.keys.steps(id)))

    # Reading

    def get(self, id: str) -> Execution | None:
        raw = as_mapping(self.client.hgetall(self.keys.record(id)))
        return record.from_mapping(raw) if raw else None

    def state(self, id: str) -> State | None:
        found = self.client.hget(self.keys.record(id), "state")
        return State(as_bytes(found).decode()) if found else None

    def events(self, id: str, after: int = 0, limit: int = BATCH) -> list[Event]:
        lines = self.client.lrange(self.keys.log(id), after, after + limit - 1)
        return [events.decode(id, after + 1 + at, as_bytes(line)) for at, line in enumerate(lines)]

    def log_length(self, id: str) -> int:
        return int(self.client.llen(self.keys.log(id)))

    def page(self, index: str, *, cursor: tuple[int, str] | None, most: int) -> list[tuple[str, int]]:
        """(id, created) of a list, newest first, strictly after the cursor."""
        highest = "+inf" if cursor is None else cursor[0]
        rows: list[tuple[str, int]] = []
        start = 0
        while True:
            # A few more than asked for: the cursor's own row, and rows of the same microsecond.
            found = self.client.zrevrangebyscore(
                index, highest, "-inf", start=start, num=most + 8, withscores=True
            )
            read = [(as_bytes(id).decode(), int(score)) for id, score in cast(_Scored, found)]
            rows += [row for row in read if cursor is None or (row[1], row[0]) < cursor]
            if len(rows) >= most or len(read) < most + 8:
                return rows[:most]
            start += most + 8

    def summaries(self, ids: Sequence[str]) -> list[Execution | None]:
        """What a list shows of executions: without inputs, outputs and the like, which may be long."""
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hmget(self.keys.record(id), record.SUMMARY)
            return [record.from_values(record.SUMMARY, values) for values in pipe.execute()]

    def get_many(self, ids: Sequence[str]) -> list[Execution | None]:
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hgetall(self.keys.record(id))
            found = [as_mapping(raw) for raw in pipe.execute()]
        return [record.from_mapping(raw) if raw else None for raw in found]

    def smallest(self, indexes: Sequence[str]) -> str:
        """The list with the fewest entries."""
        if len(indexes) == 1:
            return indexes[0]
        with self.client.pipeline(transaction=False) as pipe:
            for index in indexes:
                pipe.zcard(index)
            return min(zip(pipe.execute(), indexes, strict=True))[1]

    def count(self, index: str) -> int:
        return int(self.client.zcard(index))

    def stats(self) -> dict[str, bytes]:
        """Everything that is counted; most of it by the name of its sample."""
        return as_mapping(self.client.hgetall(self.keys.stats))

    def memory(self) -> dict[str, Any]:
        """What the server says of its memory; asked at most once a second."""
        now = time.monotonic()
        if now - self._memory_read > 1.0:
            self._memory = dict(self.client.info("memory"))
            self._memory_read = now
        return self._memory

    def now(self) -> int:
        """The store's clock, in microseconds."""
        return int(self.scripts("time", [], []))

    def sign_on(self, lane: str, name: str) -> None:
        self.scripts("sign_on", [self.keys.takers(lane)], [name])

    def takers(self, lane: str) -> int:
        """Warm processes of a lane that gave a sign lately."""
        return int(self.scripts("takers", [self.keys.takers(lane)], [PRESENT_US]))

    def clock_age(self) -> float | None:
        """Seconds since any clock ticked; None when none ever did."""
        age = int(self.scripts("clock_age", [self.keys.ticks], []))
        return None if age < 0 else age / 1e6

    # The clock's side

    def due(self, *, tree: str, queued_age_us: int, retention_us: int, most: int = 100) -> Due:
        k = self.keys
        reply = self.scripts(
            "due",
            [k.leases, k.timers, k.deadlines, k.step_deadlines, k.queued, k.ended, k.ticks],
            [most, queued_age_us, retention_us, tree],
        )
        at, *lists = reply
        lapsed, timers, deadlines, steps, queued, ended = ([_text(item) for item in found] for found in lists)
        pairs = [(member.split(" ")[0], member.split(" ")[1]) for member in steps]
        return Due(int(at), lapsed, timers, deadlines, pairs, queued, ended)

    def looked_at(self, ids: Sequence[str], at: int) -> None:
        """These queued ones wait where they should; their turn to be looked for comes again after others'."""
        if ids:
            self.client.zadd(self.keys.queued, dict.fromkeys(ids, at), xx=True)

    def forget(self, id: str) -> None:
        """Takes an id out of the list of what ended, when its record is gone already."""
        spare = [self.keys.idempotency("", ""), self.keys.hooks(id), self.keys.contract(id)]
        self._move("purge", id, [id, 0], spare)

    def purge(self, execution: Execution, before_us: int, *, look: bool = False) -> bool:
        """Removes an execution that ended before, wherever it stands; or only tells whether it may be."""
        scope, key = execution.raw.get("scope", b"").decode(), execution.raw.get("key", b"").decode()
        contract = execution.raw.get("contract", b"").decode()
        keys = [
            self.keys.idempotency(scope, key),
            self.keys.hooks(execution.id),
            self.keys.contract(contract or execution.id),
            *self.keys.indexes(execution.agent, execution.door, execution.labels),
        ]
        args: list[Arg] = [execution.id, before_us, "look" if look else ""]
        return bool(self._move("purge", execution.id, args, keys))

    def _move(self, name: str, id: str, args: Sequence[Arg], more: Sequence[str] = ()) -> Any:
        return self.scripts(name, [*self.keys.transition(id), *more], args)


def _about(input_ref: bytes) -> bytes:
    """What the log says of an input that lies in a file."""
    if not input_ref:
        return b""
    shown = {name: value for name, value in json.loads(input_ref).items() if name != "key"}
    return b',"input_file":' + json.dumps(shown, separators=(",", ":")).encode()


def _flat(fields: Mapping[str, Arg]) -> list[Arg]:
    return [part for pair in fields.items() for part in pair]


def _text(value: bytes) -> str:
    return value.decode()
