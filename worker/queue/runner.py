"""Runs one execution from lease to seal: the only place where author code is called."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypedDict

import structlog

from worker.agents.causes import cause_of
from worker.agents.job import Job
from worker.agents.lease import LeaseLost
from worker.agents.output_check import OutputCheck
from worker.agents.steps import Decide
from worker.agents.waits import Suspended
from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Capability, Tool
from worker.core.errors import Failed, Problem, ToolDenied, ToolFailed, Transient, Unavailable, WaitExpired
from worker.core.ids import new_id
from worker.core.json import NotJson, encode, short
from worker.core.logs import bound
from worker.core.processes import only_this_process
from worker.core.states import MOST_INPUTS
from worker.engine.answers import ParkAnswer, SealAnswer
from worker.engine.output import (
    MOST_MESSAGE,
    TEXT,
    Output,
    OutputType,
    WorkResult,
    shape,
    store_value,
)
from worker.engine.record import Execution
from worker.engine.stored_files import input_of
from worker.engine.transitions import ExecutionStore
from worker.files.blobs import INLINE_BYTES, described
from worker.files.store import FileRef, Files
from worker.queue.lease_keeper import LeaseKeeper
from worker.remote.external_calls import ExternalCalls
from worker.store.scripts import ScriptCall

log = structlog.get_logger()

# Pause before work that only another tree can run is offered again.
_ELSEWHERE_US = 1_000_000
_TRANSIENT_DELAYS_US = (1_000_000, 5_000_000)


def failure(code: str, message: str, *, retryable: bool = False, **details: Any) -> bytes:
    """The payload of `execution.failed`, which is also the record's error.

    Authors write messages and details; what cannot be stored, or is too long, is cut or omitted.
    """
    body = {
        "error": short(message, MOST_MESSAGE),
        "code": short(code, 100),
        "details": {},
        "retryable": retryable,
    }
    try:
        packed = encode({**body, "details": details})
    except NotJson:
        return encode(body)
    return packed if len(packed) <= INLINE_BYTES else encode(body)


CRASHED = failure("WORKER_CRASHED", "the work was interrupted too often", retryable=True)
OVERTIME = failure("EXECUTION_TIMEOUT", "the work exceeded its time limit", retryable=True)
TOO_OLD = failure("EXECUTION_TIMEOUT", "execution exceeded maximum duration", retryable=True)
DEADLINE_MISSED = failure(
    "DEADLINE_MISSED", "the work was not finished before its deadline", refund_condition="deadline_missed"
)
TOO_SLOW = failure("SLA_TIMEOUT", "the work exceeded the promised latency", refund_condition="no_response")
UNPAID = failure("PAYMENT_MISSING", "the payment did not arrive in time")
OTHER_VERSION = failure(
    "NOT_REPLAYABLE", "the agent was replaced by an incompatible version while the execution waited"
)


class LostProcessErrors(TypedDict):
    """Errors recorded when an execution is taken from a lost process, by the limit it broke."""

    crashed: bytes
    overtime: bytes
    latency: bytes
    deadline: bytes


LOST = LostProcessErrors(crashed=CRASHED, overtime=OVERTIME, latency=TOO_SLOW, deadline=DEADLINE_MISSED)
STEP_TIMEOUT = failure("STEP_TIMEOUT", "step timed out", retryable=True)


class Runner:
    """Runs executions by id, up to their seal."""

    def __init__(
        self,
        store: ExecutionStore,
        *,
        capabilities: Mapping[str, Capability],
        tools: Mapping[str, Tool],
        files: Files,
        decide: Decide,
        keeper: LeaseKeeper,
        name: str,
        lease_us: int,
        step_timeout_us: int,
        external_calls: ExternalCalls | None = None,
        catalog: Catalog | None = None,
        send_seal: Callable[[ScriptCall], Any] | None = None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._send_seal = send_seal
        self._external_calls = external_calls
        self._capabilities = capabilities
        self._tools = tools
        self._files = files
        self._decide = decide
        self._keeper = keeper
        self._name = name
        self._lease_us = lease_us
        self._step_timeout_us = step_timeout_us
        self._output_check = OutputCheck()
        self.engaged = False

    def runs_all(self) -> bool:
        """Whether no other tree can run what this process cannot."""
        return self._catalog is None or self._catalog.runnable().keys() <= self._capabilities.keys()

    def passes_on(self, id: str) -> bool:
        """Passes work that only another tree can run to that tree; costs nothing without such a tree."""
        if self.runs_all():
            return False
        return self._runs_elsewhere(self._store.agent(id)) and self._store.pass_on(id) != ""

    def _runs_elsewhere(self, agent: str, *, fresh: bool = False) -> bool:
        if agent in self._capabilities or self._catalog is None:
            return False
        return agent in self._catalog.runnable(fresh=fresh)

    def run(self, id: str) -> bool:
        """Runs the execution if its lease can be acquired."""
        return self.run_leased(
            lambda: self._store.take(id, lease_us=self._lease_us, worker=self._name, session=new_id())
        )

    def run_leased(self, take: Callable[[], tuple[Execution, int] | None]) -> bool:
        """Runs the execution whose lease, and the store's time then, `take` returns, if any."""
        self.engaged = True
        try:
            taken = take()
            if taken is None:
                return False
            execution, at = taken
            with bound(execution_id=execution.id, attempt=execution.attempt):
                self._attempt(execution, at)
            return True
        finally:
            self.engaged = False

    def _attempt(self, execution: Execution, at: int) -> None:
        capability = self._capabilities.get(execution.agent)
        if capability is None or capability.run is None:
            if self._runs_elsewhere(execution.agent, fresh=True):  # it may have just started there
                self._store.requeue(execution.id, execution.fence, "not_begun", delay_us=_ELSEWHERE_US)
                return
            unknown = failure("CAPABILITY_UNAVAILABLE", "no agent of this name is registered here")
            self._seal(execution, _failed(unknown))
            return
        if _another_version(execution, capability):
            self._seal(execution, _failed(OTHER_VERSION))
            return
        job = Job(
            execution,
            capability,
            store=self._store,
            files=self._files,
            tools=self._tools,
            decide=self._decide,
            at=at,
            lease_us=self._lease_us,
            step_timeout_us=self._step_timeout_us,
            nudge=self._keeper.nudge,
            external_calls=self._external_calls,
        )
        try:
            with self._keeper.hold(execution, job):
                self._work(execution, capability, capability.run, job)
        finally:
            job.close()

    def _work(self, execution: Execution, capability: Capability, run: Callable[..., Any], job: Job) -> None:
        try:
            outcome = self._call(execution, capability, run, job)
            if outcome is None:
                delay = _TRANSIENT_DELAYS_US[min(execution.attempt, len(_TRANSIENT_DELAYS_US)) - 1]
                job.insist(
                    lambda: self._store.requeue(execution.id, execution.fence, "transient", delay_us=delay)
                )
                log.info("execution.retry_scheduled", delay_us=delay)
                return
            job.flush()
            parked = self._park(execution, job, outcome)
            status = "parked" if parked else job.insist(lambda: self._seal(execution, outcome)) or "sent"
            log.info("execution.sealed", outcome=outcome.outcome, status=status)
        except Suspended:
            log.info("execution.suspended")
        except LeaseLost as stopped:
            log.warning("execution.stopped", reason=str(stopped))

    def _park(self, execution: Execution, job: Job, outcome: WorkResult) -> bool:
        """Parks a paid task that failed in a way a retry can fix: it waits for the seeker's free retry."""
        # A plain purchase has no free retries: its payment is bound to one input.
        if outcome.outcome != "failed" or not execution.contract or execution.door == "buy":
            return False
        error = json.loads(outcome.error)
        if error["retryable"] and execution.retries_used < execution.retries:
            kind = "retry"
        elif error["code"] == "INVALID_INPUT" and execution.inputs_used < MOST_INPUTS:
            kind = "input"
        else:
            return False
        parked = job.insist(lambda: self._store.park(execution.id, execution.fence, outcome.error, kind))
        return parked is ParkAnswer.PARKED

    def _seal(self, execution: Execution, outcome: WorkResult) -> SealAnswer | None:
        return self._store.seal(
            execution.id,
            execution.fence,
            outcome.outcome,
            output=outcome.output,
            result=outcome.result,
            error=outcome.error,
            payload=outcome.payload,
            send=self._send_seal,
        )

    def _call(
        self, execution: Execution, capability: Capability, run: Callable[..., Any], job: Job
    ) -> WorkResult | None:
        """Calls the author's function and returns its result; None if it must be retried later."""
        try:
            job.input = json.loads(input_of(self._files, execution))
            with only_this_process():
                returned = run(job)
                streams = isinstance(returned, Iterator)
                if streams:
                    job.stream(returned)
            return self._finished(execution, capability, job, returned, streams=streams)
        except (Exception, SystemExit) as fault:
            error = _error_of(fault)
            self._explain(execution, capability, job, fault, json.loads(error)["code"])
            if isinstance(fault, (Transient, Unavailable)) and execution.attempt < execution.attempts:
                return None
            return _failed(error)

    def _explain(
        self, execution: Execution, capability: Capability, job: Job, fault: BaseException, code: str
    ) -> None:
        """Records for the author why the attempt failed, in log and record; the seeker never sees it."""
        name, attempt = capability.name, execution.attempt
        cause = cause_of(fault, agent=name, attempt=attempt, code=code, function=capability.run)
        about = {"agent": cause.agent, "code": code, "reason": cause.reason, "where": cause.where}
        if code == "INTERNAL_ERROR":
            log.error("agent.raised", **about, exc_info=fault)
        elif capability.name.startswith("_"):
            return  # a check of an input or an output: the caller's mistake
        else:
            log.warning("agent.failed", **about, error=cause.error)
        job.explain(cause)

    def _finished(
        self, execution: Execution, capability: Capability, job: Job, returned: Any, *, streams: bool
    ) -> WorkResult:
        if streams:
            text = self._files.put(job.streamed_text(), name="output.txt", mime=TEXT)
            output = Output(OutputType.STREAM, None, False, (*job.files, text))
        else:
            output = shape(returned, job.files)
        self._output_check.check(capability, job, output)
        value = encode(output.value) if output.has_value else b""
        text_only = output.type is OutputType.TEXT
        value, value_ref = store_value(self._files, output.value, value, text=text_only)
        result: dict[str, Any] = {"type": output.type, "files": [asdict(ref) for ref in output.files]}
        if value_ref is not None:
            result["value_ref"] = asdict(value_ref)
        streamed_ref: FileRef | None = None
        job.flush()
        if job.overflowed and not streams:
            streamed_ref = self._files.put(job.streamed_text(), name="said.txt", mime=TEXT)
            result["said_ref"] = asdict(streamed_ref)
        payload = _completed(value, output.files, value_ref, streamed_ref)
        return WorkResult("completed", value, encode(result), b"", payload)


def _another_version(execution: Execution, capability: Capability) -> bool:
    """After a wait the function runs again from its first line, so the version must be the same."""
    return execution.resumed and not capability.resumes and execution.version not in ("", capability.version)


def _error_of(fault: BaseException) -> bytes:
    """The seeker's error for an agent's exception: only what the agent wrote for the seeker."""
    match fault:
        case Transient() | Unavailable():
            return failure("TRANSIENT_FAILURE", fault.message, retryable=True)
        case Problem() | Failed():
            return failure(fault.code, fault.message, **fault.details)
        case ToolDenied():
            return failure("TOOL_DENIED", f"a tool call was refused: {fault.reason}", tool=fault.tool)
        case WaitExpired():
            return failure("WAIT_EXPIRED", "no answer arrived in time", signal_type=fault.signal_type)
        case ToolFailed():
            return failure("TOOL_FAILED", "a tool failed", tool=fault.tool, retryable=True)
        case NotJson():
            return failure("OUTPUT_INVALID", "the agent returned something that cannot be delivered")
        case _:
            return failure("INTERNAL_ERROR", "the work failed inside the worker")


def _failed(error: bytes) -> WorkResult:
    return WorkResult("failed", error=error, payload=error)


def _completed(
    value: bytes, files: tuple[FileRef, ...], value_ref: FileRef | None, streamed_ref: FileRef | None
) -> bytes:
    parts = [b'"output":' + (value or b"null")]
    if files:
        parts.append(b'"files":' + encode([described(ref) for ref in files]))
    if value_ref is not None:
        parts.append(b'"output_file":' + encode(described(value_ref)))
    if streamed_ref is not None:
        parts.append(b'"said_file":' + encode(described(streamed_ref)))
    return b"{" + b",".join(parts) + b"}"
