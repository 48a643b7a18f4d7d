"""An engine inside the test process: real scripts and runner on an in-memory Valkey."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import redis

from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Capability, Tool
from worker.core.settings import Settings
from worker.engine.record import Execution
from worker.engine.service import Executions
from worker.engine.transitions import ExecutionStore
from worker.engine.watch import Watcher
from worker.files.blobs import unpack
from worker.files.store import DiskFiles, Files
from worker.local.valkey import EmbeddedStore
from worker.payments.money_store import HOOKS
from worker.policy.judge import Decision, PolicyCall
from worker.queue.lease_keeper import LeaseKeeper
from worker.queue.presence import Presence
from worker.queue.runner import Runner
from worker.remote.answers import SendJobAnswer
from worker.remote.external_calls import StoreExternalCalls
from worker.remote.payloads import ToolCall
from worker.remote.runners import JobResult, Runners
from worker.remote.signals import Signals
from worker.remote.store import RemoteStore
from worker.store.client import connect
from worker.store.data_model import Keys
from worker.store.rate_limits import StoreRateLimiter

SECOND_US = 1_000_000
_LEASE_US = 60 * SECOND_US
_STEP_US = 300 * SECOND_US
_HOUR_US = 3600 * SECOND_US
_MEMORY = "/dev/shm"
_NAME = "test"


class InProcessEngine:
    """Runs executions in this process. The store's clock can be moved, so no test waits for a retry."""

    def __init__(self, url: str, files: Files) -> None:
        self.client: redis.Redis = connect(Settings(redis_url=url, worker_env="test"), role="web")
        self.files = files
        self.keys = Keys()
        self.store = ExecutionStore(self.client, keys=self.keys, hooks=HOOKS, test_clock=True)
        self.rate_limiter = StoreRateLimiter(self.client, self.keys, test_clock=True)
        self.remote_store = RemoteStore(self.client, self.keys, hooks=HOOKS, test_clock=True)
        self.runners = Runners(self.remote_store, files, step_timeout_us=_STEP_US)
        self._signals = Signals(
            self.remote_store,
            self.runners,
            files,
            push=_ignore,
            step_timeout_us=_STEP_US,
            agent_timeout_us=30 * SECOND_US,
        )
        self._keeper = LeaseKeeper(
            self.store,
            lease_us=_LEASE_US,
            parent=_NoSupervisor(),
            presence=Presence(self.store, "express", _NAME),
        )

    def executions(self, capability: Capability) -> Executions:
        """The service, offering only this capability."""
        return Executions(
            self.store,
            catalog=cast(Catalog, _OneCapability(capability)),
            files=self.files,
            watcher=Watcher(self.client),
            push=_ignore,
            timeout_us=24 * _HOUR_US,
            signals=self._signals,
        )

    def runner(
        self, capability: Capability, tools: Mapping[str, Tool], decide: Callable[[PolicyCall], Decision]
    ) -> Runner:
        return Runner(
            self.store,
            capabilities={capability.name: capability},
            tools=tools,
            files=self.files,
            decide=decide,
            keeper=self._keeper,
            name=_NAME,
            lease_us=_LEASE_US,
            step_timeout_us=_STEP_US,
            external_calls=_RunnerTools(self, tools),
        )

    def pass_time(self, id: str) -> bool:
        """Moves the clock to the time that this execution waits for; False if it waits for none."""
        due = self.client.hget(self.keys.record(id), "due")
        timer = self.client.zscore(self.keys.timers, id)
        wanted = max(int(cast(bytes, due) or 0), int(cast(float, timer) or 0))
        left = wanted - self.store.now()
        if left > 0:
            self.client.incrby(self.keys.test_clock, left + 1)
        if timer is not None:
            self.store.hint(id)
        return wanted > 0


class _NoSupervisor:
    """Replaces the parent of a work process; a test has none."""

    def running(self, execution: Execution, seconds: float) -> None: ...
    def idle(self) -> None: ...
    def beat(self) -> None: ...
    def kill_me(self) -> None: ...


class _OneCapability:
    """A catalog with one capability."""

    published = True

    def __init__(self, capability: Capability) -> None:
        self._capability = capability

    def get(self, name: str) -> Capability | None:
        return self._capability if name == self._capability.name else None


class _RunnerTools(StoreExternalCalls):
    """Runs calls with remote=True locally, with the function under the tool's name."""

    def __init__(self, engine: InProcessEngine, tools: Mapping[str, Tool]) -> None:
        super().__init__(engine.remote_store, engine.runners, engine.files)
        self._engine = engine
        self._tools = tools

    def send(self, id: str, fence: int, step: str, call: ToolCall, timeout_us: int) -> SendJobAnswer:
        # Read first: the arguments of a known job are discarded.
        arguments = unpack(self._engine.files, call.packed)
        answer = super().send(id, fence, step, call, timeout_us)
        if answer is not SendJobAnswer.LOST and self.outcome(id, step)[0] == "pending":
            result = self._carry_out(id, step, call.tool, arguments or {})
            self._engine.runners.result(result, "")
        return answer

    def _carry_out(self, id: str, step: str, name: str, arguments: dict[str, Any]) -> JobResult:
        tool = self._tools.get(name)
        if tool is None:
            return JobResult("", id, step, False, error=f"the test has no function for the tool {name}")
        try:
            return JobResult("", id, step, True, data=tool.run(**arguments))
        except Exception as error:
            return JobResult("", id, step, False, error=f"the tool raised {type(error).__name__}")


def _ignore(id: str) -> None:
    """Queues nothing: the test runs every execution itself."""


@cache
def shared_engine() -> InProcessEngine:
    """The engine of this process, started on first use and removed at its end."""
    memory = _MEMORY if Path(_MEMORY).is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="worker-testing-", dir=memory))
    store = EmbeddedStore(folder)

    def remove() -> None:
        store.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return InProcessEngine(store.start(), DiskFiles(folder / "files"))
