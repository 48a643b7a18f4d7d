"""Jobs of runners in the store: offered tools, waiting and dispatched jobs, retries, published schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from worker.engine.step_fields import read_step_member, step_member
from worker.remote.answers import DISPATCH, STARTED, DispatchAnswer, StartedAnswer
from worker.remote.members import epoch_of, runner_of
from worker.remote.store import MOST_MESSAGES, Connection, RemoteStore
from worker.store.data_model import short


class JobStore:
    """Reads and changes jobs: one round trip per method."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    def offer(self, connection: Connection, leaves: Sequence[str], joins: Sequence[str], tools: str) -> bool:
        c = connection
        offered = self._store.scripts.value(
            "offer", epoch=c.epoch, left=leaves, joined=joins, member=c.offer, tools=tools
        )
        return bool(offered)

    def runner_for(self, tool: str) -> str | None:
        found = self._store.scripts.value("runner", tool=tool, turn_of=short(tool))
        return found.decode() if found else None

    def next_job(self, epoch: str, tools: Sequence[str]) -> tuple[str, str, str] | None:
        """Returns (execution, step, tool) of the job that has waited longest for one of these tools."""
        reply = self._store.scripts.value("next_job", epoch=epoch, tools=tools)
        if not reply:
            return None
        return *read_step_member(reply[0].decode()), tools[int(reply[1]) - 1]

    def dispatch(
        self, id: str, step: str, tool: str, member: str, runner: bytes, *, announced: bool
    ) -> DispatchAnswer:
        return self._store.scripts.run(
            DISPATCH,
            id=id,
            step=step,
            tool=tool,
            epoch=epoch_of(member),
            member=member,
            name=runner_of(member),
            runner=runner,
            turn_of=short(tool),
            announced="1" if announced else "",
            most=MOST_MESSAGES,
        ).answer

    def started(self, id: str, step: str, payload: bytes, caller: str) -> StartedAnswer:
        return self._store.scripts.run(STARTED, id=id, step=step, payload=payload, caller=caller).answer

    def job_of(self, epoch: str) -> tuple[str, str] | None:
        """Returns the (execution, step) that a runner's connection works on."""
        found = self._store.client.hget(self._store.keys.busy, epoch)
        if found is None:
            return None
        return _busy_with(found)

    def free(self, id: str, step: str) -> str | None:
        """Frees the connection that works on a step whose record is gone."""
        for epoch, job in self._store.client.hgetall(self._store.keys.busy).items():
            if _busy_with(job) == (id, step):
                self._store.client.hdel(self._store.keys.busy, epoch)
                return str(epoch.decode())
        return None

    def retries_due(self, at: int, most: int = 100) -> list[tuple[str, str]]:
        found = self._store.client.zrangebyscore(self._store.keys.retries, "-inf", at, 0, most)
        return [read_step_member(member.decode()) for member in found]

    def retry_done(self, id: str, step: str) -> None:
        self._store.client.zrem(self._store.keys.retries, step_member(id, step))

    def publish(self, runner: str, tools: bytes) -> None:
        self._store.client.hset(self._store.keys.schemas, runner, tools)

    def unpublish(self, runner: str) -> bool:
        return bool(self._store.client.hdel(self._store.keys.schemas, runner))

    def published(self) -> dict[str, dict[str, Any]]:
        found = self._store.client.hgetall(self._store.keys.schemas)
        return {runner.decode(): json.loads(tools) for runner, tools in found.items()}


def _busy_with(job: bytes) -> tuple[str, str]:
    """Parses (execution, step) from a busy connection's entry, which begins with the step's deadline."""
    return read_step_member(job.decode().partition(" ")[2])
