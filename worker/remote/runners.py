"""Runners: processes that run tools for agents, one job at a time per connection.

A call waits in its tool's queue for an idle runner; a runner that becomes idle takes the job that has
waited longest for one of its tools. The job of a lost runner goes to another one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from worker.core.errors import NotFound
from worker.core.ids import is_id, new_id
from worker.core.json import encode
from worker.engine.events import Kind, iso
from worker.files.blobs import discard, pack
from worker.files.store import Files
from worker.remote.answers import (
    JOB_RESULT,
    LOSE_JOB,
    DispatchAnswer,
    JobResultAnswer,
    LoseJobAnswer,
    StartedAnswer,
)
from worker.remote.jobs import JobStore
from worker.remote.mail import message_item
from worker.remote.members import epoch_of, runner_of
from worker.remote.payloads import shown_error, shown_value
from worker.remote.refusals import StepResolved, step_unknown
from worker.remote.store import MOST_MESSAGE_BYTES, MOST_MESSAGES, Connection, RemoteStore
from worker.store.each import each

log = structlog.get_logger()

FIRST_PAUSE_US, LONGEST_PAUSE_US = 1_000_000, 30_000_000
# How often a step may lose its runner before the step fails.
MOST_LOSSES = 3
# How long published tools of a runner that never connected are kept.
_UNCONNECTED_US = 600_000_000


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job, as the runner reports it."""

    job: str
    id: str
    step: str
    success: bool
    data: Any = None
    error: str = ""
    retryable: bool = False


class Runners:
    """Dispatches jobs to runners and records their results."""

    def __init__(self, store: RemoteStore, files: Files, *, step_timeout_us: int) -> None:
        self._store = store
        self._jobs = JobStore(store)
        self._files = files
        self._step_timeout_us = step_timeout_us

    # Tools of runners

    def update(self, connection: Connection, tools: Sequence[str]) -> None:
        """Sets the tools that the connection offers and dispatches a job that waits for one of them."""
        wanted = list(dict.fromkeys(tools))
        before = set(json.loads(connection.tools))
        self._jobs.offer(connection, sorted(before - set(wanted)), wanted, json.dumps(wanted))
        self.pull(connection.epoch, wanted)

    def update_all(self, runner: str, tools: Sequence[str]) -> bool:
        """Updates all connections of a runner; returns False if it has none."""
        found = [self._store.connection(epoch) for epoch in self._store.connections_of("runner", runner)]
        for connection in found:
            if connection is not None:
                self.update(connection, tools)
        return bool(found)

    def publish(self, runner: str, tools: Sequence[dict[str, Any]]) -> None:
        """Stores a runner's tool descriptions, replacing earlier ones."""
        at = self._store.now()
        listed = [{**tool, "runner_id": runner, "registered_at": iso(at)} for tool in tools]
        self._jobs.publish(runner, encode({"at": at, "tools": listed}))
        self.update_all(runner, [tool["id"] for tool in tools])

    def tools(self, prefix: str) -> list[dict[str, Any]]:
        """Returns all published tools; for duplicates, the one published last."""
        found: dict[str, dict[str, Any]] = {}
        for published in sorted(self._jobs.published().values(), key=lambda each: int(each["at"])):
            found |= {tool["id"]: tool for tool in published["tools"]}
        starts = (f"{prefix}_", f"{prefix}.")
        return [found[id] for id in sorted(found) if not prefix or id == prefix or id.startswith(starts)]

    def unregister(self, runner: str) -> None:
        """Removes all tools of the runner. Its streams stay open: closed ones would reconnect at once."""
        known = self._jobs.unpublish(runner)
        if not self.update_all(runner, []) and not known:
            raise NotFound(f"runner {runner[:64]}")

    # Jobs

    def offer(self, id: str, step: str, tool: str, *, announced: bool = False) -> None:
        """Dispatches a job to an idle runner, if there is one, after those that have waited longer."""
        while (member := self._jobs.runner_for(tool)) is not None:
            match self._dispatch(id, step, tool, member, announced=announced):
                case DispatchAnswer.BEHIND:
                    # The runner has just come, and has not asked for that job yet.
                    if not self.pull(epoch_of(member)):
                        return
                case DispatchAnswer.BUSY:
                    pass
                case _:
                    return

    def pull(self, epoch: str, tools: Sequence[str] | None = None) -> bool:
        """Dispatches the longest-waiting job to an idle runner, if there is one; False if there is none."""
        if tools is None:
            connection = self._store.connection(epoch)
            tools = json.loads(connection.tools) if connection is not None else []
        connection = None
        while tools and (job := self._jobs.next_job(epoch, tools)) is not None:
            connection = connection or self._store.connection(epoch)
            if connection is None:
                return False
            if self._dispatch(*job, connection.offer) in (DispatchAnswer.SENT, DispatchAnswer.BUSY):
                return True
        return False

    def _dispatch(
        self, id: str, step: str, tool: str, member: str, *, announced: bool = False
    ) -> DispatchAnswer:
        runner = encode(runner_of(member))
        answer = self._jobs.dispatch(id, step, tool, member, runner, announced=announced)
        if answer is DispatchAnswer.SENT:
            log.info("job.dispatched", execution_id=id, step_id=step, tool=tool)
        return answer

    def started(self, id: str, step: str, runner: str, caller: str) -> None:
        payload = encode({"runner_id": runner})
        if not is_id(id) or self._jobs.started(id, step, payload, caller) is not StartedAnswer.OK:
            raise step_unknown(step)

    def result(self, result: JobResult, caller: str) -> None:
        """Records the result of a job and frees its runner."""
        id, step = result.id, result.step
        answer, free = JobResultAnswer.MOVED, ""
        while answer is JobResultAnswer.MOVED:
            answer, free = self._result(result, caller)
        if answer is JobResultAnswer.STEP and not caller:
            free = self._jobs.free(id, step) or ""
        if free:
            self.pull(free)
        if answer in (JobResultAnswer.STEP, JobResultAnswer.FOREIGN):
            raise step_unknown(step)
        if answer is JobResultAnswer.RESOLVED:
            raise StepResolved(f"step {step}")

    def _result(self, result: JobResult, caller: str) -> tuple[JobResultAnswer, str]:
        id, step, error = result.id, result.step, result.error
        if not is_id(id):
            return JobResultAnswer.STEP, ""
        session = self._store.fields(id, "session")[0]
        tool, timeout = self._store.step(id, step, "tool", "timeout")
        if tool is None:
            return JobResultAnswer.STEP, ""
        value = pack(self._files, encode(result.data if result.success else error), name="step.json")
        payload = shown_error(error, retryable=result.retryable)
        outcome = "retry" if result.retryable else "failed"
        if result.success:
            outcome, payload = "succeeded", shown_value(value)
        last = shown_error(error)
        status = "succeeded" if result.success else "failed"
        message = result_message(id, step, status, result.data, error)
        reply = self._store.scripts.run(
            JOB_RESULT,
            id=id,
            session=session,
            tool=tool.decode(),
            step=step,
            job=result.job,
            outcome=outcome,
            value=value,
            payload=payload,
            last=last,
            message=message,
            most=MOST_MESSAGES,
            next=new_id(),
            shortest=FIRST_PAUSE_US,
            longest=LONGEST_PAUSE_US,
            timeout=int(timeout or self._step_timeout_us),
            caller=caller,
        )
        if reply.answer is not JobResultAnswer.OK:
            discard(self._files, value)
        return reply.answer, reply.text()

    # Clock chores and lost connections

    def lost(self, connection: Connection) -> None:
        """Requeues the job of a lost runner."""
        job = self._jobs.job_of(connection.epoch)
        if job is not None:
            self._lose(connection.epoch, *job)
        if not self._store.present("runner", connection.name):
            self._jobs.unpublish(connection.name)

    def _lose(self, epoch: str, id: str, step: str) -> None:
        session = self._store.fields(id, "session")[0]
        tool, timeout = self._store.step(id, step, "tool", "timeout")
        if tool is None:
            self._jobs.free(id, step)
            return
        error = "the runner was lost too often"
        payload = encode({"error": error, "retryable": False})
        message = result_message(id, step, "failed", None, error)
        reply = self._store.scripts.run(
            LOSE_JOB,
            id=id,
            session=session,
            tool=tool.decode(),
            step=step,
            epoch=epoch,
            job=new_id(),
            most_losses=MOST_LOSSES,
            timeout=int(timeout or self._step_timeout_us),
            payload=payload,
            value=encode(error),
            message=message,
            most=MOST_MESSAGES,
        )
        if reply.answer is LoseJobAnswer.WAITS:
            log.info("job.redispatched", execution_id=id, step_id=step)
            self.offer(id, step, tool.decode())

    def fire_retries(self, at: int) -> None:
        """Dispatches retries whose pause is over."""
        each(self._jobs.retries_due(at), self._retry)

    def _retry(self, due: tuple[str, str]) -> None:
        id, step = due
        tool = self._store.step(id, step, "tool")[0]
        if tool is not None:
            self.offer(id, step, tool.decode())
        self._jobs.retry_done(id, step)

    def heal(self, epochs: Sequence[Connection]) -> None:
        """For the clock: dispatches missed jobs to idle runners; unpublishes runners that never connected."""
        each(epochs, lambda connection: self.pull(connection.epoch, json.loads(connection.tools)))
        at = self._store.now()
        for runner, published in self._jobs.published().items():
            old = at - int(published["at"]) > _UNCONNECTED_US
            if old and not self._store.present("runner", runner):
                self._jobs.unpublish(runner)


def result_message(id: str, step: str, status: str, data: Any, error: str) -> bytes:
    """Encodes tool.result for the agent; a long result is read from the step when it is sent."""
    body: dict[str, Any] = {"execution_id": id, "step_id": step, "status": status}
    if status == "succeeded" or data is not None:
        body["result"] = data
    if error:
        body["error"] = error
    message = message_item(Kind.TOOL_RESULT, encode(body))
    return message if len(message) <= MOST_MESSAGE_BYTES else f"@result {id} {step}".encode()
