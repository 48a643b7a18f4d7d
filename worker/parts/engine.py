"""The parts that do the work: store, queue, executions, tool policy, remote agents and runners."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import redis

from worker.capabilities.catalog import Catalog
from worker.capabilities.serving import StoredServing
from worker.core.settings import Settings
from worker.doors.bearers import BearerTokens
from worker.engine.load import LoadMeter
from worker.engine.memory_guard import MemoryGuard
from worker.engine.service import Executions
from worker.engine.transitions import ExecutionStore
from worker.engine.watch import Watcher
from worker.files.health import StorageHealth
from worker.files.store import Files, files_from
from worker.hiring.schema_check import output_checker
from worker.payments.money_store import HOOKS
from worker.policy.file import policy_for
from worker.policy.judge import Decision, Policy, PolicyCall, foreseen, judge
from worker.queue.checks import CheckQueue
from worker.queue.rq import RunQueue
from worker.remote.assignment import Assignment
from worker.remote.connections import Connections, Lost
from worker.remote.external_calls import ExternalCalls, StoreExternalCalls
from worker.remote.intents import Intents
from worker.remote.messages import Messages
from worker.remote.outcomes import RemoteResults
from worker.remote.runners import Runners
from worker.remote.service import RemoteWork
from worker.remote.signals import Signals
from worker.remote.store import Kind, RemoteStore
from worker.remote.streams import RemoteStreams
from worker.store.client import Role, connect, connect_blocking, connect_waiting
from worker.store.data_model import Keys
from worker.store.health import StoreHealth
from worker.store.outage import count_bugs
from worker.store.rate_limits import StoreRateLimiter
from worker.store.request_counts import RequestCounts
from worker.store.wrong_credentials import WrongCredentials

# Longer than any blocking wait on a queue or a subscription.
BLOCKING_SECONDS = 30.0


@dataclass
class EngineParts:
    """The parts every execution needs, whichever door it came through; each is created on first use."""

    settings: Settings
    role: Role

    @cached_property
    def client(self) -> redis.Redis:
        client = connect(self.settings, role=self.role)
        count_bugs(client, self.keys.stats)
        return client

    @cached_property
    def blocking(self) -> redis.Redis:
        return connect_blocking(self.settings, role=self.role, wait=BLOCKING_SECONDS)

    @cached_property
    def waiting(self) -> redis.Redis:
        return connect_waiting(self.settings, role=self.role, wait=BLOCKING_SECONDS)

    @property
    def test_clock(self) -> bool:
        """Whether the store's time may be moved: only in tests."""
        return self.settings.worker_env == "test"

    @cached_property
    def keys(self) -> Keys:
        return Keys()

    @cached_property
    def store(self) -> ExecutionStore:
        return ExecutionStore(self.client, keys=self.keys, hooks=HOOKS, test_clock=self.test_clock)

    @cached_property
    def files(self) -> Files:
        return files_from(self.settings.files_url)

    @cached_property
    def storage(self) -> StorageHealth:
        return StorageHealth(self.files)

    @cached_property
    def catalog(self) -> Catalog:
        return Catalog(StoredServing(self.client, self.keys, test_clock=self.test_clock))

    @cached_property
    def queue(self) -> RunQueue:
        return RunQueue(self.client)

    @cached_property
    def watcher(self) -> Watcher:
        return Watcher(self.blocking)

    @cached_property
    def executions(self) -> Executions:
        return Executions(
            self.store,
            catalog=self.catalog,
            files=self.files,
            watcher=self.watcher,
            push=self.queue.push,
            timeout_us=int(self.settings.execution_timeout * 1e6),
            remote=self.remote.assignment,
            signals=self.signals,
        )

    @cached_property
    def load_meter(self) -> LoadMeter:
        return LoadMeter(self.store, MemoryGuard(self.store.memory, self.settings.store_memory))

    @cached_property
    def checks(self) -> CheckQueue:
        return CheckQueue(self.client, self.keys, self.watcher, test_clock=self.test_clock)

    @cached_property
    def counts(self) -> RequestCounts:
        return RequestCounts(self.client, self.keys.stats)

    @cached_property
    def store_health(self) -> StoreHealth:
        return StoreHealth(self.client, self.keys.probe)

    # Tool policy

    @cached_property
    def policy(self) -> Policy:
        return policy_for(self.settings.policy, production=self.settings.deployed)

    @cached_property
    def rate_limiter(self) -> StoreRateLimiter:
        """Counts calls across all processes, on the store's clock."""
        return StoreRateLimiter(self.client, self.keys, test_clock=self.test_clock)

    def decide(self, call: PolicyCall) -> Decision:
        """Decides a tool call by policy; rate limits are counted across all processes."""
        return judge(self.policy, call, self.rate_limiter)

    @property
    def _step_timeout_us(self) -> int:
        return int(self.settings.step_timeout * 1e6)

    @property
    def _agent_timeout_us(self) -> int:
        return int(self.settings.agent_timeout * 1e6)

    # Remote agents and runners

    @cached_property
    def bearers(self) -> BearerTokens:
        settings = self.settings
        return BearerTokens(settings.kernel_token, settings.agent_keys, self.wrong_credentials.add)

    @cached_property
    def wrong_credentials(self) -> WrongCredentials:
        """Counter shared by all doors."""
        return WrongCredentials(self.client, self.keys)

    @cached_property
    def remote_store(self) -> RemoteStore:
        return RemoteStore(self.client, self.keys, hooks=HOOKS, test_clock=self.test_clock)

    @cached_property
    def remote(self) -> RemoteWork:
        store = self.remote_store
        assignment = Assignment(store)
        lost: dict[Kind, Lost] = {"agent": assignment.lost, "runner": self.runners.lost}
        return RemoteWork(
            store, Connections(store, lease_us=self._agent_timeout_us, lost=lost), assignment, self.runners
        )

    @cached_property
    def runners(self) -> Runners:
        return Runners(self.remote_store, self.files, step_timeout_us=self._step_timeout_us)

    @cached_property
    def streams(self) -> RemoteStreams:
        remote = self.remote
        return RemoteStreams(
            remote.store,
            remote.connections,
            remote.assignment,
            self.runners,
            Messages(self.store, remote.store, self.files),
            self.watcher,
            keys=self.keys,
            lease=self.settings.agent_timeout,
        )

    @cached_property
    def signals(self) -> Signals:
        return Signals(
            self.remote_store,
            self.runners,
            self.files,
            push=self.queue.push,
            step_timeout_us=self._step_timeout_us,
            agent_timeout_us=self._agent_timeout_us,
        )

    @cached_property
    def external_calls(self) -> ExternalCalls:
        return StoreExternalCalls(self.remote_store, self.runners, self.files)

    @cached_property
    def intents(self) -> Intents:
        return Intents(
            self.remote_store,
            self.runners,
            RemoteResults(self.store, self.catalog, self.files, check=output_checker(self.executions)),
            self.files,
            decide=self.decide,
            foresee=lambda tool, arguments: foreseen(self.policy, tool, arguments),
            step_timeout_us=self._step_timeout_us,
            timed=self.counts.policy_took,
        )
