"""The parts that do the work: store, queue, executions, tool policy, remote agents and runners."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import redis

from worker.agents.catalog import Catalog
from worker.bearers import Bearers
from worker.contracts.schema_check import output_checker
from worker.delivery.files import Files, files_from
from worker.executions.assignment import Assignment
from worker.executions.connections import Connections, Lost
from worker.executions.intents import Intents
from worker.executions.keys import Keys
from worker.executions.messages import Messages
from worker.executions.others import Others, StoreOthers
from worker.executions.outcomes import Outcomes
from worker.executions.policy import Call, Decision, Policy, judge
from worker.executions.policy_file import policy_for
from worker.executions.rate_limits import StoreRateLimiter
from worker.executions.remote import Remote
from worker.executions.remote_store import Kind, RemoteStore
from worker.executions.runners import Runners
from worker.executions.service import Executions
from worker.executions.signals import Signals
from worker.executions.store import ExecutionStore
from worker.executions.streams import Streams
from worker.executions.watch import Watcher
from worker.queue.rq import RunQueue
from worker.requests_count import RequestCounts
from worker.settings import Settings
from worker.store import Role, connect, connect_blocking

# Longer than any wait on a queue or a subscription.
BLOCKING_SECONDS = 30.0


@dataclass
class EngineParts:
    """What every execution needs, whichever door it came through; each part is made when first asked for."""

    settings: Settings
    role: Role

    @cached_property
    def client(self) -> redis.Redis:
        return connect(self.settings, role=self.role)

    @cached_property
    def blocking(self) -> redis.Redis:
        return connect_blocking(self.settings, role=self.role, wait=BLOCKING_SECONDS)

    @property
    def test_clock(self) -> bool:
        """Whether the store's time may be moved: in tests alone."""
        return self.settings.worker_env == "test"

    @cached_property
    def keys(self) -> Keys:
        return Keys()

    @cached_property
    def store(self) -> ExecutionStore:
        return ExecutionStore(self.client, keys=self.keys, test_clock=self.test_clock)

    @cached_property
    def files(self) -> Files:
        return files_from(self.settings.files_url)

    @cached_property
    def catalog(self) -> Catalog:
        return Catalog(self.client, self.keys.catalog)

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
    def counts(self) -> RequestCounts:
        return RequestCounts(self.client, self.keys.stats)

    # Tool policy

    @cached_property
    def policy(self) -> Policy:
        return policy_for(self.settings.policy, production=self.settings.production)

    @cached_property
    def _rate_limiter(self) -> StoreRateLimiter:
        clock = self.keys.test_clock if self.test_clock else None
        return StoreRateLimiter(self.client, f"{self.keys.prefix}:", clock)

    def decide(self, call: Call) -> Decision:
        """What the tool policy says about a call; rate limits are counted over all processes."""
        return judge(self.policy, call, self._rate_limiter)

    @property
    def _step_timeout_us(self) -> int:
        return int(self.settings.step_timeout * 1e6)

    # Remote agents and runners

    @cached_property
    def bearers(self) -> Bearers:
        return Bearers(self.settings.kernel_token, self.settings.agent_keys, self.client, self.keys)

    @cached_property
    def remote_store(self) -> RemoteStore:
        return RemoteStore(self.client, self.keys, test_clock=self.test_clock)

    @cached_property
    def remote(self) -> Remote:
        store = self.remote_store
        assignment = Assignment(store)
        runners = Runners(store, self.files, step_timeout_us=self._step_timeout_us)
        lease_us = int(self.settings.agent_timeout * 1e6)
        lost: dict[Kind, Lost] = {"agent": assignment.lost, "runner": runners.lost}
        return Remote(store, Connections(store, lease_us=lease_us, lost=lost), assignment, runners)

    @cached_property
    def streams(self) -> Streams:
        remote = self.remote
        return Streams(
            remote.store,
            remote.connections,
            remote.assignment,
            remote.runners,
            Messages(self.store, remote.store, self.files),
            self.watcher,
            keys=self.keys,
            lease=self.settings.agent_timeout,
        )

    @cached_property
    def signals(self) -> Signals:
        store, runners = self.remote_store, self.remote.runners
        push, timeout_us = self.queue.push, self._step_timeout_us
        return Signals(store, runners, self.files, push=push, step_timeout_us=timeout_us)

    @cached_property
    def others(self) -> Others:
        return StoreOthers(self.remote_store, self.remote.runners, self.files)

    @cached_property
    def intents(self) -> Intents:
        return Intents(
            self.remote_store,
            self.remote.runners,
            Outcomes(self.store, self.catalog, self.files, check=output_checker(self.executions)),
            self.files,
            decide=self.decide,
            step_timeout_us=self._step_timeout_us,
            timed=self.counts.policy_took,
        )
