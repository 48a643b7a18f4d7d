"""The engine in one process: the real store and scripts, with a clock that a test can move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Registry
from worker.capabilities.serving import StoredServing
from worker.core.ids import new_id
from worker.core.states import Lane
from worker.engine.answers import CancelAnswer, ExpireAnswer, RequeueAnswer, SealAnswer, StepBeginAnswer
from worker.engine.creation import NewExecution
from worker.engine.events import Event
from worker.engine.record import Execution
from worker.engine.service import Executions
from worker.engine.transitions import ExecutionStore
from worker.engine.watch import Watcher
from worker.files.store import Files
from worker.payments.money_store import HOOKS
from worker.policy.judge import Decision, PolicyCall
from worker.queue.clock import Clock
from worker.queue.lease_keeper import LeaseKeeper
from worker.queue.presence import Presence
from worker.queue.rq import RunQueue
from worker.queue.runner import Runner
from worker.remote.answers import SEND_JOB, SendJobAnswer
from worker.remote.assignment import Assignment
from worker.remote.external_calls import StoreExternalCalls
from worker.remote.runners import Runners
from worker.remote.signals import Signals
from worker.remote.store import RemoteStore
from worker.store.data_model import Keys
from worker.store.scripts import Reply

SECOND = 1_000_000
HOUR = 3600 * SECOND
LEASE = 5 * SECOND
ERROR = b'{"error":"no","code":"NO","details":{},"retryable":false}'


class Crash(BaseException):
    """Ends an attempt as a killed process would: nothing is written any more."""


class RecordingSupervisor:
    """Hears what a work process tells its supervisor."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.killed = threading.Event()

    def running(self, execution: Execution, seconds: float) -> None:
        self.heard.append("running")

    def idle(self) -> None:
        self.heard.append("idle")

    def beat(self) -> None:
        return

    def kill_me(self) -> None:
        self.heard.append("kill")
        self.killed.set()


def contents(client: redis.Redis) -> dict[bytes, Any]:
    """All that a store holds, to compare."""
    readers: Mapping[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    return {key: readers[client.type(key)](key) for key in sorted(client.keys("*"))}


def allow(call: PolicyCall) -> Decision:
    return Decision("allow", "all", "")


class Engine:
    """What a test needs of the engine, and shortcuts through it."""

    def __init__(self, client: redis.Redis, files: Files, *, watcher: Watcher | None = None) -> None:
        self.client = client
        self.files = files
        self.keys = Keys()
        self.store = ExecutionStore(client, keys=self.keys, hooks=HOOKS, test_clock=True)
        self.registry = Registry()
        self.catalog = Catalog(StoredServing(client, self.keys, test_clock=True))
        self.watcher = watcher or Watcher(client)
        self.queue = RunQueue(client)
        self.parent = RecordingSupervisor()
        self.closing: list[Callable[[], None]] = []
        self.decide: Callable[[PolicyCall], Decision] = allow
        self.remote_store = RemoteStore(client, self.keys, hooks=HOOKS, test_clock=True)
        self.assignment = Assignment(self.remote_store)
        self.runners = Runners(self.remote_store, files, step_timeout_us=300 * SECOND)
        self.signals = Signals(
            self.remote_store,
            self.runners,
            files,
            push=self.queue.push,
            step_timeout_us=300 * SECOND,
            agent_timeout_us=30 * SECOND,
        )
        self.executions = Executions(
            self.store,
            catalog=self.catalog,
            files=files,
            watcher=self.watcher,
            push=self.queue.push,
            timeout_us=HOUR,
            remote=self.assignment,
            signals=self.signals,
        )

    # Time

    def advance(self, seconds: float) -> None:
        """Moves the store's clock, and with it every lease, timer and deadline."""
        self.client.incrby(self.keys.test_clock, int(seconds * SECOND))

    def now(self) -> int:
        seconds, micros = self.client.time()
        return seconds * SECOND + micros + int(self.client.get(self.keys.test_clock) or 0)

    # The store's side

    def new(self, **changes: Any) -> str:
        """The id of a pending execution."""
        options: dict[str, Any] = {
            "id": new_id(),
            "agent": "a",
            "door": "test",
            "lane": Lane.QUEUE,
            "input": b"{}",
            "labels": {},
            "timeout_us": HOUR,
            "run_limit_us": 600 * SECOND,
        }
        outcome, id = self.store.create(NewExecution(**{**options, **changes}))
        assert outcome
        return id

    def take(self, id: str, *, lease_us: int = LEASE) -> Execution:
        taken = self.store.take(id, lease_us=lease_us, worker="w1", session=new_id())
        assert taken is not None
        return taken[0]

    def running(self, **changes: Any) -> Execution:
        """An execution under a lease."""
        return self.take(self.new(**changes))

    def get(self, id: str) -> Execution:
        found = self.store.get(id)
        assert found is not None
        return found

    def stored(self, id: str, field: str) -> int:
        """A number that only scripts read from the record."""
        return int(self.client.hget(self.keys.record(id), field) or 0)

    def seal(self, id: str, fence: int, outcome: str = "completed", output: bytes = b"[]") -> SealAnswer:
        payload = b'{"output":%s}' % output if outcome == "completed" else ERROR
        error = b"" if outcome == "completed" else ERROR
        return self.store.seal(
            id,
            fence,
            outcome,
            output=output,
            result=b'{"type":"json","files":[]}',
            error=error,
            payload=payload,
        )

    def cancel(self, id: str) -> CancelAnswer:
        return self.store.cancel(id, b'{"reason":"cancelled by request"}', by="operator")[0]

    def expire(self, id: str) -> ExpireAnswer:
        return self.store.expire(id, age=ERROR, latency=ERROR, unpaid=ERROR, deadline=ERROR)

    def lapse(self, id: str) -> tuple[RequeueAnswer, str]:
        """What the clock does about a lapsed lease."""
        return self.store.requeue(id, None, "lease_lapsed", crashed=ERROR, overtime=ERROR)

    def begin(self, execution: Execution, key: str = "t#1", **changes: Any) -> Reply[StepBeginAnswer]:
        options: dict[str, Any] = {
            "key": key,
            "step": new_id(),
            "tool": "t",
            "digest": "d",
            "attempts": 3,
            "timeout_us": 60 * SECOND,
            "intent": b'{"intent_type":"invoke_tool"}',
            "created": b'{"tool_id":"t","deadline":',
        }
        return self.store.step_begin(execution.id, execution.fence, **{**options, **changes})

    def send_job(self, id: str, fence: int, step: str, timeout_us: int) -> SendJobAnswer:
        """Hands a step of a local function to the runners of the tool t, without offering it to any."""
        return self.remote_store.scripts.run(
            SEND_JOB,
            id=id,
            fence=fence,
            step=step,
            tool="t",
            new_job=new_id(),
            arguments="null",
            timeout=timeout_us,
        ).answer

    def kinds(self, id: str) -> list[str]:
        return [event.kind for event in self.store.events(id, limit=20_000)]

    def log(self, id: str, kind: str) -> list[Event]:
        return [event for event in self.store.events(id, limit=20_000) if event.kind == kind]

    def whole(self) -> dict[bytes, Any]:
        """All that the store holds, to compare."""
        return contents(self.client)

    # The work's side

    def runner(self, *, lease_us: int = LEASE, step_timeout_us: int = 60 * SECOND) -> Runner:
        presence = Presence(self.store, "express", "w1")
        keeper = LeaseKeeper(self.store, lease_us=lease_us, parent=self.parent, presence=presence)
        return Runner(
            self.store,
            capabilities=self.registry.capabilities,
            tools=self.registry.tools,
            files=self.files,
            decide=lambda call: self.decide(call),
            keeper=keeper,
            name="w1",
            lease_us=lease_us,
            step_timeout_us=step_timeout_us,
            external_calls=StoreExternalCalls(self.remote_store, self.runners, self.files),
        )

    def agent(self, function: Callable[[Any], Any], **options: Any) -> str:
        """Declares the function, and an execution of it."""
        self.registry.capabilities.pop("a", None)
        self.registry.agent("a", **options)(function)
        return self.new()

    def run(self, function: Callable[[Any], Any], **options: Any) -> Execution:
        """Runs a function as an agent to the end of its first attempt."""
        id = self.agent(function, **options)
        assert self.runner().run(id)
        return self.get(id)

    def crash(self, id: str) -> None:
        """Runs an attempt that is killed, and has the clock notice."""
        with pytest.raises(Crash):
            self.runner().run(id)
        self.advance(LEASE / SECOND + 1)
        assert self.lapse(id)[0] == "queued"

    def clock(self, *, retention: float = 30 * 86_400) -> Clock:
        return Clock(
            self.store, self.queue, files=self.files, tree="t1", retention_us=int(retention * SECOND)
        )


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Does something beside the test, and waits for its end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield thread
    thread.join(20)
    assert not thread.is_alive()
