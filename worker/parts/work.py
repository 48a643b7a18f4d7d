"""`worker work`: loads the agents once, then keeps warm processes and a clock running."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import redis
import structlog
from rq.exceptions import StopRequested

from worker.agents.loading import load_agents
from worker.capabilities.declare import Capability, Registry
from worker.core.descendants import adopt_orphans
from worker.core.settings import Settings
from worker.files.sweep import FileSweep
from worker.hiring import author_check, schema_check
from worker.parts import Parts
from worker.policy.judge import Decision, Policy, PolicyCall, judge
from worker.queue import warm
from worker.queue.check_process import CheckProcess
from worker.queue.checks import LANE
from worker.queue.clock import Chore, Clock
from worker.queue.deferred_calls import DOCTOR, REFUSED, SETTLED, DeferredCallRunner, Regular
from worker.queue.express_lane import ExpressLane
from worker.queue.internal_sweep import InternalSweep
from worker.queue.lease_keeper import LeaseKeeper
from worker.queue.presence import Presence
from worker.queue.process_limits import ProcessLimits, ProcessWear
from worker.queue.rq import TakenMessage
from worker.queue.runner import Runner
from worker.queue.supervisor import Supervisor, requeue_lost
from worker.queue.supervisor_pipe import SupervisorPipe
from worker.store.data_version import use_store
from worker.store.outage import insist, is_outage

log = structlog.get_logger()

# The doctor's checks of these settings: name, level, found and expected of each.
Examine = Callable[[Settings], list[dict[str, str]]]
INTERNAL = ("worker.hiring.author_check", "worker.hiring.schema_check", "worker.swarm.full_schema")
_STORE_PAUSE = 1.0
# Seconds in which the clock's process gives back notices that it has not sent yet.
_LAST_NOTICES = 1.0
# Late enough that starting takes no longer, and a service that starts beside us is there.
_FIRST_DOCTOR_US, _DOCTOR_US = 60_000_000, 3_600_000_000


class WorkProcesses:
    """One `worker work`: state that its processes share from before the fork."""

    def __init__(self, settings: Settings, examine: Examine | None = None) -> None:
        self.settings = settings
        self._examine = examine
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        loaded = load_agents(settings, INTERNAL)
        self.registry: Registry = loaded.registry
        self.capabilities: dict[str, Capability] = loaded.capabilities
        self.policy: Policy = loaded.policy

    def run(self) -> None:
        """Runs until SIGTERM; returns after every child has ended."""
        parts = Parts(self.settings, "parent")
        self._publish(parts)
        parts.store.scripts.prepare(*warm.FIRST_SCRIPTS)
        kinds = ["clock", "check"]
        kinds += ["express"] * self.settings.express_processes
        kinds += ["queue"] * self.settings.queue_processes
        log.info("work.started", tree=self.name, capabilities=sorted(self.capabilities))
        Supervisor(
            kinds=kinds,
            child_main=self.child,
            requeue=requeue_lost(parts.store, parts.queue.push),
            grace=self.settings.handback_grace,
        ).run()

    def _publish(self, parts: Parts) -> None:
        """Waits for a store that is away at startup: hosts start everything at the same time."""

        def publish() -> None:
            use_store(parts.client, parts.keys)
            parts.catalog.publish(self.capabilities.values(), tree=self.name)

        insist(
            publish,
            "work",
            pause=_STORE_PAUSE,
            passes=lambda error: is_outage(error) and not isinstance(error, redis.AuthenticationError),
        )

    def child(self, kind: str, line: SupervisorPipe) -> None:
        """Entry point of a forked process. Its connections are its own."""
        if kind == "clock":
            self._keep_clock()
        elif kind == "check":
            self._check(line)
        else:
            with suppress(StopRequested):
                self._take_work(kind, line)

    def _keep_clock(self) -> None:
        parts = Parts(self.settings, "clock")
        chores: list[Chore] = [
            partial(self._keep_published, parts),
            lambda at: parts.witness.vouch(),
            parts.money_pool.chore,
            FileSweep(parts.files, longest=self._longest_run()).chore,
        ]
        calls = self._deferred_calls(parts)
        shared_chores: list[Chore] = [
            parts.remote.look,
            calls.chore,
            InternalSweep(parts.client, parts.keys, parts.executions).chore,
        ]
        if parts.webhook_pool is not None:
            chores.append(parts.webhook_pool.chore)
        Clock(
            parts.store,
            parts.queue,
            files=parts.files,
            tree=self.name,
            retention_us=int(self.settings.retention * 1e6),
            chores=chores,
            shared_chores=shared_chores,
            attend=parts.remote.attend,
        ).run()
        calls.close()
        parts.money_pool.close(self.settings.handback_grace)
        if parts.webhook_pool is not None:
            parts.webhook_pool.close(_LAST_NOTICES)  # an interrupted call is made again
            parts.outbound.close()

    def _take_work(self, kind: str, line: SupervisorPipe) -> None:
        parts = Parts(self.settings, "express" if kind == "express" else "queue")
        name = f"{self.name}-{kind}-{os.getpid()}"
        lease_us = int(self.settings.lease * 1e6)
        presence = Presence(parts.store, kind, name, beat=line.beat, signed_on=line.signed_on)
        scripts = parts.store.scripts
        lane = ExpressLane(
            parts.waiting,
            parts.store,
            worker=name,
            lease_us=lease_us,
            processes=self.settings.express_processes,
            asks=line.asks,
            loaded=lambda: keeper.loaded(),
        )
        keeper = LeaseKeeper(
            parts.store, lease_us=lease_us, parent=line, presence=presence, lighten=lane.lighten
        )
        taken = TakenMessage()
        runner = Runner(
            parts.store,
            capabilities=self.capabilities,
            tools=self.registry.tools,
            files=parts.files,
            decide=partial(self._decide, parts),
            keeper=keeper,
            name=name,
            lease_us=lease_us,
            step_timeout_us=int(self.settings.step_timeout * 1e6),
            external_calls=parts.external_calls,
            catalog=parts.catalog,
            send_seal=lane.seal if kind == "express" else partial(taken.seal, scripts),
        )
        adopt_orphans()
        wear, grace = ProcessWear(self._limits), self.settings.handback_grace
        leaving = warm.Shutdown(runner, keeper, grace, wear, line)
        if kind == "express":
            warm.express(lane, runner, presence, leaving)
        else:
            warm.queue(parts.blocking, name, runner, presence, leaving, taken)
        leaving.sign_off(presence)

    def _deferred_calls(self, parts: Parts) -> DeferredCallRunner:
        """What doors leave to the clock, which has the chain, and its own regular examination."""
        decide = parts.resolutions
        handlers = {
            SETTLED: lambda call: decide.settled(
                call.arguments["id"], int(call.arguments["number"]), call.arguments["transaction"]
            ),
            REFUSED: lambda call: decide.refused(call.arguments["id"], int(call.arguments["number"])),
        }
        examine = self._examine
        # Tests move the store's clock by hours, which would start an examination each time.
        if examine is None or self.settings.worker_env == "test":
            return DeferredCallRunner(parts.deferred_calls, parts.operator_journal, handlers, {})

        def record() -> None:
            parts.doctor_record.write(examine(self.settings))

        regular = {DOCTOR: Regular(record, _FIRST_DOCTOR_US, _DOCTOR_US)}
        return DeferredCallRunner(parts.deferred_calls, parts.operator_journal, handlers, regular)

    @property
    def _limits(self) -> ProcessLimits:
        settings = self.settings
        return ProcessLimits(
            settings.process_runs,
            settings.process_life,
            settings.process_memory << 20,
            settings.process_files,
        )

    def _check(self, line: SupervisorPipe) -> None:
        """The check process, which checks schemas and inputs before any payment, until SIGTERM."""
        parts = Parts(self.settings, "check")
        presence = Presence(parts.store, LANE, f"{self.name}-check-{os.getpid()}", beat=line.beat)
        checks = {author_check.NAME: author_check.check, schema_check.NAME: schema_check.check}
        CheckProcess(parts.checks, checks, now=parts.store.now, presence=presence).run()

    def _longest_run(self) -> float:
        """Most seconds a file begun now may still be written to."""
        limits = [each.time_limit for each in self.capabilities.values()]
        return max([self.settings.execution_timeout, *limits])

    def _decide(self, parts: Parts, call: PolicyCall) -> Decision:
        return judge(self.policy, call, parts.rate_limiter)

    def _keep_published(self, parts: Parts, at: int) -> None:
        parts.catalog.keep_published(self.capabilities.values(), self.name)
