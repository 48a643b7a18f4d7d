"""Runners: processes that run tools for others, one job at a time for each connection.

A call waits in its tool's line until an idle runner gets it; a runner that becomes idle gets what waits
longest for one of its tools. A lost runner's job goes to another one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from worker.agents.blobs import discard, pack
from worker.agents.output import encode
from worker.delivery.files import Files
from worker.errors import NotFound
from worker.executions.events import iso
from worker.executions.payloads import shown_error, shown_value
from worker.executions.refusals import StepResolved, step_unknown
from worker.executions.remote_store import MOST_MESSAGE_BYTES, MOST_MESSAGES, Connection, RemoteStore
from worker.executions.scripts import Arg
from worker.ids import is_id, new_id

log = structlog.get_logger()

FIRST_PAUSE_US, LONGEST_PAUSE_US = 1_000_000, 30_000_000
# How often one step may lose its runner before that is the step's failure.
MOST_LOSSES = 3
# Published tools of a runner that never connected are kept for so long.
_UNCONNECTED_US = 600_000_000


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a runner says became of a job."""

    job: str
    id: str
    step: str
    success: bool
    data: Any = None
    error: str = ""
    retryable: bool = False


class Runners:
    """The runners' side of the kernel."""

    def __init__(self, store: RemoteStore, files: Files, *, step_timeout_us: int) -> None:
        self._store = store
        self._files = files
        self._step_timeout_us = step_timeout_us

    # What runners can do

    def update(self, connection: Connection, tools: Sequence[str]) -> None:
        """From now on the connection offers these tools, and gets what waits for them."""
        wanted = list(dict.fromkeys(tools))
        before = set(json.loads(connection.tools))
        self._store.offer(connection, sorted(before - set(wanted)), wanted, json.dumps(wanted))
        self.pull(connection.epoch, wanted)

    def update_all(self, runner: str, tools: Sequence[str]) -> bool:
        """The same for all connections of a runner; False when it has none."""
        found = [self._store.connection(epoch) for epoch in self._store.connections_of("runner", runner)]
        for connection in found:
            if connection is not None:
                self.update(connection, tools)
        return bool(found)

    def publish(self, runner: str, tools: Sequence[dict[str, Any]]) -> None:
        """Keeps what a runner says of its tools, in place of what it said before."""
        at = self._store.now()
        listed = [{**tool, "runner_id": runner, "registered_at": iso(at)} for tool in tools]
        self._store.publish(runner, encode({"at": at, "tools": listed}))
        self.update_all(runner, [tool["id"] for tool in tools])

    def tools(self, prefix: str) -> list[dict[str, Any]]:
        """All published tools; of the same tool the one published last."""
        found: dict[str, dict[str, Any]] = {}
        for published in sorted(self._store.published().values(), key=lambda each: int(each["at"])):
            found |= {tool["id"]: tool for tool in published["tools"]}
        starts = (f"{prefix}_", f"{prefix}.")
        return [found[id] for id in sorted(found) if not prefix or id == prefix or id.startswith(starts)]

    def unregister(self, runner: str) -> None:
        """The runner offers nothing any more. Its streams stay open, or they would come back at once."""
        known = self._store.unpublish(runner)
        if not self.update_all(runner, []) and not known:
            raise NotFound(f"runner {runner[:64]}")

    # Jobs

    def offer(self, id: str, step: str, tool: str, *, told: bool = False) -> None:
        """Gives a waiting job to an idle runner, if there is one."""
        while (member := self._store.runner_for(tool)) is not None:
            if self._dispatch(id, step, tool, member, told=told) != "busy":
                return

    def pull(self, epoch: str, tools: Sequence[str] | None = None) -> None:
        """Gives an idle runner what waits for it, if anything does."""
        if tools is None:
            connection = self._store.connection(epoch)
            tools = json.loads(connection.tools) if connection is not None else []
        connection = None
        while tools and (job := self._store.next_job(epoch, tools)) is not None:
            connection = connection or self._store.connection(epoch)
            if connection is None or self._dispatch(*job, connection.offer) in ("sent", "busy"):
                return

    def _dispatch(self, id: str, step: str, tool: str, member: str, *, told: bool = False) -> str:
        runner = encode(member.split("\0")[0])
        what = self._store.dispatch(id, step, tool, member, runner, told=told)
        if what == "sent":
            log.info("job.dispatched", execution_id=id, step_id=step, tool=tool)
        return what

    def started(self, id: str, step: str, runner: str, caller: str) -> None:
        told = encode({"runner_id": runner})
        if not is_id(id) or self._store.started(id, step, told, caller) != "ok":
            raise step_unknown(step)

    def result(self, result: JobResult, caller: str) -> None:
        """What became of a job; whoever had it is free."""
        id, step = result.id, result.step
        what, free = "moved", ""
        while what == "moved":
            what, free = self._result(result, caller)
        if what == "step" and not caller:
            free = self._store.free(id, step) or ""
        if free:
            self.pull(free)
        if what in ("step", "foreign"):
            raise step_unknown(step)
        if what == "resolved":
            raise StepResolved(f"step {step}")

    def _result(self, result: JobResult, caller: str) -> tuple[str, str]:
        id, step, error = result.id, result.step, result.error
        if not is_id(id):
            return "step", ""
        session = self._store.fields(id, "session")[0]
        tool, timeout = self._store.step(id, step, "tool", "timeout")
        if tool is None:
            return "step", ""
        value = pack(self._files, encode(result.data if result.success else error), name="step.json")
        told = shown_error(error, retryable=result.retryable)
        outcome = "retry" if result.retryable else "failed"
        if result.success:
            outcome, told = "succeeded", shown_value(value)
        last = shown_error(error)
        status = "succeeded" if result.success else "failed"
        message = result_message(id, step, status, result.data, error)
        args: list[Arg] = [id, session, step, result.job, outcome, value, told, last, message]
        args += [MOST_MESSAGES, new_id(), FIRST_PAUSE_US, LONGEST_PAUSE_US]
        args += [int(timeout or self._step_timeout_us), caller]
        what, free = self._store.job_result(id, session, tool.decode(), args)
        if what != "ok":
            discard(self._files, value)
        return what, free

    # What the clock does, and the end of connections

    def lost(self, connection: Connection) -> None:
        """The job of a lost runner goes to another one."""
        job = self._store.job_of(connection.epoch)
        if job is not None:
            self._lose(connection.epoch, *job)
        if not self._store.present("runner", connection.name):
            self._store.unpublish(connection.name)

    def _lose(self, epoch: str, id: str, step: str) -> None:
        session = self._store.fields(id, "session")[0]
        tool, timeout = self._store.step(id, step, "tool", "timeout")
        if tool is None:
            self._store.free(id, step)
            return
        error = "the runner was lost too often"
        told = encode({"error": error, "retryable": False})
        message = result_message(id, step, "failed", None, error)
        args: list[Arg] = [id, step, epoch, new_id(), MOST_LOSSES, int(timeout or self._step_timeout_us)]
        args += [told, encode(error), message, MOST_MESSAGES]
        if self._store.lose_job(id, session, tool.decode(), args) == "waits":
            log.info("job.redispatched", execution_id=id, step_id=step)
            self.offer(id, step, tool.decode())

    def fire_retries(self, at: int) -> None:
        """Tries whose pause is over."""
        for id, step in self._store.retries_due(at):
            tool = self._store.step(id, step, "tool")[0]
            if tool is not None:
                self.offer(id, step, tool.decode())
            self._store.retry_done(id, step)

    def heal(self, epochs: Sequence[Connection]) -> None:
        """For the clock: no idle runner may miss a job, nor tools stay of a runner that never came."""
        for connection in epochs:
            self.pull(connection.epoch, json.loads(connection.tools))
        at = self._store.now()
        for runner, published in self._store.published().items():
            old = at - int(published["at"]) > _UNCONNECTED_US
            if old and not self._store.present("runner", runner):
                self._store.unpublish(runner)


def result_message(id: str, step: str, status: str, data: Any, error: str) -> bytes:
    """tool.result for the agent; a long one is read from the step when it is written out."""
    body: dict[str, Any] = {"execution_id": id, "step_id": step, "status": status}
    if status == "succeeded" or data is not None:
        body["result"] = data
    if error:
        body["error"] = error
    message = b"tool.result " + encode(body)
    return message if len(message) <= MOST_MESSAGE_BYTES else f"@result {id} {step}".encode()
