"""The engine in one process: the real store and scripts, with a clock that a test can move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis

from worker.agents.catalog import Catalog
from worker.agents.declare import Registry
from worker.delivery.files import Files
from worker.executions.assignment import Assignment
from worker.executions.events import Event
from worker.executions.keys import Keys
from worker.executions.others import StoreOthers
from worker.executions.policy import Call, Decision
from worker.executions.record import Execution
from worker.executions.remote_store import RemoteStore
from worker.executions.runners import Runners
from worker.executions.service import Executions
from worker.executions.signals import Signals
from worker.executions.states import Lane
from worker.executions.store import ExecutionStore, New
from worker.executions.watch import Watcher
from worker.ids import new_id
from worker.queue.clock import Clock
from worker.queue.keeper import Keeper
from worker.queue.presence import Presence
from worker.queue.rq import RunQueue
from worker.queue.runner import Runner

SECOND = 1_000_000
HOUR = 3600 * SECOND
LEASE = 5 * SECOND
ERROR = b'{"error":"no","code":"NO","details":{},"retryable":false}'


class Crash(BaseException):
    """Ends an attempt as a killed process would: nothing is written any more."""


class QuietParent:
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


def allow(call: Call) -> Decision:
    return Decision("allow", "all", "")


class Engine:
    """What a test needs of the engine, and shortcuts through it."""

    def __init__(self, client: redis.Redis, files: Files, *, watcher: Watcher | None = None) -> None:
        self.client = client
        self.files = files
        self.keys = Keys()
        self.store = ExecutionStore(client, keys=self.keys, test_clock=True)
        self.registry = Registry()
        self.catalog = Catalog(client, self.keys.catalog)
        self.watcher = watcher or Watcher(client)
        self.queue = RunQueue(client)
        self.parent = QuietParent()
        self.closing: list[Callable[[], None]] = []
        self.decide: Callable[[Call], Decision] = allow
        self.remote_store = RemoteStore(client, self.keys, test_clock=True)
        self.assignment = Assignment(self.remote_store)
        self.runners = Runners(self.remote_store, files, step_timeout_us=300 * SECOND)
        self.signals = Signals(
            self.remote_store, self.runners, files, push=self.queue.push, step_timeout_us=300 * SECOND
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
        given: dict[str, Any] = {
            "id": new_id(),
            "agent": "a",
            "door": "test",
            "lane": Lane.QUEUE,
            "input": b"{}",
            "labels": {},
            "timeout_us": HOUR,
            "run_limit_us": 600 * SECOND,
        }
        made, id = self.store.create(New(**{**given, **changes}))
        assert made
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

    def seal(self, id: str, fence: int, outcome: str = "completed", output: bytes = b"[]") -> str:
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

    def cancel(self, id: str) -> str:
        return self.store.cancel(id, b'{"reason":"cancelled by request"}', by="operator")[0]

    def expire(self, id: str) -> str:
        return self.store.expire(id, age=ERROR, latency=ERROR, unpaid=ERROR, deadline=ERROR)

    def lapse(self, id: str) -> tuple[str, str]:
        """What the clock does about a lapsed lease."""
        return self.store.requeue(id, None, "lease_lapsed", crashed=ERROR, overtime=ERROR)

    def begin(self, execution: Execution, key: str = "t#1", **changes: Any) -> list[bytes]:
        given: dict[str, Any] = {
            "key": key,
            "step": new_id(),
            "tool": "t",
            "digest": "d",
            "attempts": 3,
            "timeout_us": 60 * SECOND,
            "intent": b'{"intent_type":"invoke_tool"}',
            "created": b'{"tool_id":"t","deadline":',
        }
        return self.store.step_begin(execution.id, execution.fence, **{**given, **changes})

    def kinds(self, id: str) -> list[str]:
        return [event.kind for event in self.store.events(id, limit=20_000)]

    def log(self, id: str, kind: str) -> list[Event]:
        return [event for event in self.store.events(id, limit=20_000) if event.kind == kind]

    def whole(self) -> dict[bytes, Any]:
        """All that the store holds, to compare."""
        readers: Mapping[bytes, Callable[[bytes], Any]] = {
            b"string": self.client.get,
            b"hash": self.client.hgetall,
            b"list": lambda key: self.client.lrange(key, 0, -1),
            b"set": self.client.smembers,
            b"zset": lambda key: self.client.zrange(key, 0, -1, withscores=True),
        }
        return {key: readers[self.client.type(key)](key) for key in sorted(self.client.keys("*"))}

    # The work's side

    def runner(self, *, lease_us: int = LEASE, step_timeout_us: int = 60 * SECOND) -> Runner:
        presence = Presence(self.store, "express", "w1")
        keeper = Keeper(self.store, lease_us=lease_us, parent=self.parent, presence=presence)
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
            others=StoreOthers(self.remote_store, self.runners, self.files),
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
        try:
            self.runner().run(id)
        except Crash:
            pass
        else:
            raise AssertionError("the attempt did not crash")
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
