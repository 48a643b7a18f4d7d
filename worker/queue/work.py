"""`worker work`: loads the agents once, then keeps warm processes and a clock running."""

from __future__ import annotations

import os
import socket
import time
from functools import partial

import redis
import structlog

from worker.agents import catalog as catalogs
from worker.agents.config import load_overrides
from worker.agents.declare import Capability, Registry, load
from worker.executions.policy import Call, Decision, Policy, judge
from worker.executions.policy_file import policy_for
from worker.executions.rate_limits import StoreRateLimiter
from worker.parts import Parts
from worker.queue import warm
from worker.queue.clock import Chore, Clock
from worker.queue.keeper import Keeper
from worker.queue.line import Line
from worker.queue.presence import Presence
from worker.queue.runner import Runner
from worker.queue.supervisor import Supervisor, requeue_lost
from worker.settings import Settings

log = structlog.get_logger()

SHIPPED = "worker.agents.shipped"
INTERNAL = ("worker.contracts.schema_check", "worker.swarm.full_schema")
_STORE_PAUSE = 1.0


class Tree:
    """One `worker work`: what its processes share before they are forked."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self.registry: Registry = load((*INTERNAL, *(settings.worker_agents or (SHIPPED,))))
        overrides = load_overrides(settings.worker_config)
        self.capabilities: dict[str, Capability] = catalogs.offered(self.registry, overrides)
        self.policy: Policy = policy_for(settings.policy, production=settings.production)

    def run(self) -> None:
        """Until SIGTERM; every child has ended then."""
        parts = Parts(self.settings, "cli")
        self._publish(parts)
        kinds = ["clock"]
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
        """A store that is away at the start is waited for: hosts start everything at the same time."""
        while True:
            try:
                return parts.catalog.publish(self.capabilities.values())
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if isinstance(error, redis.AuthenticationError):
                    raise
                log.warning("work.store_away")
                time.sleep(_STORE_PAUSE)

    def child(self, kind: str, line: Line) -> None:
        """What a forked process does. Its connections are its own."""
        if kind == "clock":
            parts = Parts(self.settings, "clock")
            chores: list[Chore] = [
                partial(self._publish_again, parts),
                parts.attendant.chore,
                parts.remote.look,
            ]
            if parts.postman is not None:
                chores.append(parts.postman.chore)
            Clock(
                parts.store,
                parts.queue,
                files=parts.files,
                tree=self.name,
                retention_us=int(self.settings.retention * 1e6),
                chores=chores,
                attend=parts.remote.attend,
            ).run()
            parts.attendant.close(self.settings.handback_grace)
            if parts.postman is not None:
                parts.postman.close(0)  # a call that is cut off is made again
            return
        parts = Parts(self.settings, "express" if kind == "express" else "queue")
        name = f"{self.name}-{kind}-{os.getpid()}"
        lease_us = int(self.settings.lease * 1e6)
        presence = Presence(parts.store, kind, name, beat=line.beat)
        keeper = Keeper(parts.store, lease_us=lease_us, parent=line, presence=presence)
        limits = StoreRateLimiter(parts.client, f"{parts.keys.prefix}:")
        runner = Runner(
            parts.store,
            capabilities=self.capabilities,
            tools=self.registry.tools,
            files=parts.files,
            decide=partial(self._decide, limits),
            keeper=keeper,
            name=name,
            lease_us=lease_us,
            step_timeout_us=int(self.settings.step_timeout * 1e6),
            others=parts.others,
        )
        leaving = warm.Leaving(runner, keeper, self.settings.handback_grace)
        if kind == "express":
            warm.express(parts.blocking, parts.keys.express, runner, presence, leaving)
        else:
            warm.queue(parts.blocking, name, runner, presence, leaving)

    def _decide(self, limits: StoreRateLimiter, call: Call) -> Decision:
        return judge(self.policy, call, limits)

    def _publish_again(self, parts: Parts, at: int) -> None:
        """A store that lost its memory must learn again what is on offer."""
        parts.catalog.publish(self.capabilities.values(), only_if_absent=True)
