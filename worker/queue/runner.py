"""Runs one execution from lease to seal: the only place where author code is called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

import structlog

from worker.agents.blobs import INLINE_BYTES, described, read
from worker.agents.declare import Capability, Tool
from worker.agents.hold import Stopped
from worker.agents.job import Job
from worker.agents.output import MOST_MESSAGE, NotJson, Output, OutputType, encode, shape, short
from worker.agents.steps import Decide
from worker.agents.waits import Suspended
from worker.contracts.schema import SchemaRefused, Validators, validate
from worker.delivery.files import FileRef, Files
from worker.errors import Failed, Problem, ToolDenied, ToolFailed, Transient, Unavailable, WaitExpired
from worker.executions.others import Others
from worker.executions.record import Execution
from worker.executions.states import MOST_INPUTS
from worker.executions.store import ExecutionStore
from worker.ids import new_id
from worker.logs import bound
from worker.queue.keeper import Keeper

log = structlog.get_logger()

TEXT = "text/plain; charset=utf-8"
_TRANSIENT_DELAYS_US = (1_000_000, 5_000_000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the work came to, ready to be sealed."""

    outcome: str
    output: bytes
    result: bytes
    error: bytes
    payload: bytes


def failure(code: str, message: str, *, retryable: bool = False, **details: Any) -> bytes:
    """The payload of `execution.failed`, which is also the record's error.

    Authors write messages and details; what cannot be stored, or is too long, is cut or left out.
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
OVERTIME = failure("EXECUTION_TIMEOUT", "the work took longer than it may", retryable=True)
TOO_OLD = failure("EXECUTION_TIMEOUT", "execution exceeded maximum duration", retryable=True)
DEADLINE_MISSED = failure(
    "DEADLINE_MISSED", "the deadline passed before the work was done", refund_condition="deadline_missed"
)
TOO_SLOW = failure("SLA_TIMEOUT", "the work took longer than was promised", refund_condition="no_response")
UNPAID = failure("PAYMENT_MISSING", "nobody paid in time")
OTHER_VERSION = failure(
    "NOT_REPLAYABLE", "while the execution waited its agent was replaced by a version that does not go on"
)


class Failures(TypedDict):
    """What is written when an execution is taken from a process that was lost, by what was broken."""

    crashed: bytes
    overtime: bytes
    latency: bytes
    deadline: bytes


LOST = Failures(crashed=CRASHED, overtime=OVERTIME, latency=TOO_SLOW, deadline=DEADLINE_MISSED)
STEP_TIMEOUT = failure("STEP_TIMEOUT", "step timed out", retryable=True)


class Runner:
    """Takes executions by id and sees them to their seal."""

    def __init__(
        self,
        store: ExecutionStore,
        *,
        capabilities: Mapping[str, Capability],
        tools: Mapping[str, Tool],
        files: Files,
        decide: Decide,
        keeper: Keeper,
        name: str,
        lease_us: int,
        step_timeout_us: int,
        others: Others | None = None,
    ) -> None:
        self._store = store
        self._others = others
        self._capabilities = capabilities
        self._tools = tools
        self._files = files
        self._decide = decide
        self._keeper = keeper
        self._name = name
        self._lease_us = lease_us
        self._step_timeout_us = step_timeout_us
        self._validators = Validators()
        self.engaged = False

    def run(self, id: str) -> bool:
        """Runs what the id names, if its lease is to be had."""
        self.engaged = True
        try:
            taken = self._store.take(id, lease_us=self._lease_us, worker=self._name, session=new_id())
            if taken is None:
                return False
            execution, at = taken
            with bound(execution_id=id, attempt=execution.attempt):
                self._attempt(execution, at)
            return True
        finally:
            self.engaged = False

    def _attempt(self, execution: Execution, at: int) -> None:
        capability = self._capabilities.get(execution.agent)
        if capability is None or capability.run is None:
            unknown = failure("CAPABILITY_UNAVAILABLE", "no agent of this name runs here")
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
            others=self._others,
        )
        try:
            with self._keeper.hold(execution, job):
                self._work(execution, capability, job)
        finally:
            job.close()

    def _work(self, execution: Execution, capability: Capability, job: Job) -> None:
        try:
            outcome = self._call(execution, capability, job)
            if outcome is None:
                delay = _TRANSIENT_DELAYS_US[min(execution.attempt, len(_TRANSIENT_DELAYS_US)) - 1]
                job.insist(
                    lambda: self._store.requeue(execution.id, execution.fence, "transient", delay_us=delay)
                )
                log.info("execution.transient", delay_us=delay)
                return
            job.flush()
            parked = self._park(execution, job, outcome)
            status = "parked" if parked else job.insist(lambda: self._seal(execution, outcome))
            log.info("execution.sealed", outcome=outcome.outcome, status=status)
        except Suspended:
            log.info("execution.suspended")
        except Stopped as stopped:
            log.warning("execution.stopped", reason=str(stopped))

    def _park(self, execution: Execution, job: Job, outcome: Outcome) -> bool:
        """A paid task that failed in passing waits for its seeker's free retry instead of ending."""
        if outcome.outcome != "failed" or "contract" not in execution.raw:
            return False
        error = json.loads(outcome.error)

        def left(name: str, most: int) -> bool:
            return int(execution.raw.get(name, b"0")) < most

        if error["retryable"] and left("retries_used", int(execution.raw.get("retries", b"0"))):
            kind = "retry"
        elif error["code"] == "INVALID_INPUT" and left("inputs_used", MOST_INPUTS):
            kind = "input"
        else:
            return False
        return (
            job.insist(lambda: self._store.park(execution.id, execution.fence, outcome.error, kind))
            == "parked"
        )

    def _seal(self, execution: Execution, outcome: Outcome) -> str:
        return self._store.seal(
            execution.id,
            execution.fence,
            outcome.outcome,
            output=outcome.output,
            result=outcome.result,
            error=outcome.error,
            payload=outcome.payload,
        )

    def _call(self, execution: Execution, capability: Capability, job: Job) -> Outcome | None:
        """What the author's function came to; None when it shall be tried again later."""
        assert capability.run is not None
        try:
            job.input = json.loads(self._input(execution))
            returned = capability.run(job)
            streams = isinstance(returned, Iterator)
            if streams:
                job.stream(returned)
            return self._finished(execution, capability, job, returned, streams=streams)
        except (Transient, Unavailable) as fault:
            if execution.attempt < execution.attempts:
                return None
            return _failed(failure("TRANSIENT_FAILURE", fault.message, retryable=True))
        except Problem as problem:
            return _failed(failure(problem.code, problem.message, **problem.details))
        except Failed as failed:
            return _failed(failure(failed.code, failed.message, **failed.details))
        except ToolDenied as denied:
            return _failed(
                failure("TOOL_DENIED", f"a tool call was refused: {denied.reason}", tool=denied.tool)
            )
        except WaitExpired as late:
            return _failed(failure("WAIT_EXPIRED", "nobody answered in time", signal_type=late.signal_type))
        except ToolFailed as broken:
            return _failed(failure("TOOL_FAILED", "a tool failed", tool=broken.tool, retryable=True))
        except NotJson:
            return _failed(failure("OUTPUT_INVALID", "the agent returned something that cannot be delivered"))
        except (Exception, SystemExit):
            log.exception("agent.raised", agent=capability.name)
            return _failed(failure("INTERNAL_ERROR", "the work failed inside the worker"))

    def _finished(
        self, execution: Execution, capability: Capability, job: Job, returned: Any, *, streams: bool
    ) -> Outcome:
        if streams:
            text = self._files.put(job.said(), name="output.txt", mime=TEXT)
            made = Output(OutputType.STREAM, None, False, (*job.files, text))
        else:
            made = shape(returned, job.files)
        self._check(execution, capability, job, made)
        value = encode(made.value) if made.has_value else b""
        value_ref: FileRef | None = None
        if len(value) > INLINE_BYTES:
            text_only = made.type is OutputType.TEXT
            name, mime = ("output.txt", TEXT) if text_only else ("output.json", "application/json")
            content = made.value.encode() if text_only else value
            value_ref, value = self._files.put(content, name=name, mime=mime), b""
        result: dict[str, Any] = {"type": made.type, "files": [asdict(ref) for ref in made.files]}
        if value_ref is not None:
            result["value_ref"] = asdict(value_ref)
        said_ref: FileRef | None = None
        job.flush()
        if job.overflowed and not streams:
            said_ref = self._files.put(job.said(), name="said.txt", mime=TEXT)
            result["said_ref"] = asdict(said_ref)
        payload = _completed(value, made.files, value_ref, said_ref)
        return Outcome("completed", value, encode(result), b"", payload)

    def _check(self, execution: Execution, capability: Capability, job: Job, made: Output) -> None:
        """JSON that was promised a shape must have it; text and files promise none."""
        for schema in (capability.output_schema, job.output_schema):
            if not isinstance(schema, Mapping) or not schema:
                continue
            # What is no object the swarm's door gives the shape of an answer first.
            kernels = job.swarm is not None and schema is job.output_schema
            if kernels and not isinstance(made.value, Mapping):
                continue
            if not made.has_value or made.type is OutputType.TEXT:
                raise Failed(
                    "OUTPUT_SCHEMA_INVALID",
                    "the output is not the JSON that was promised",
                    expected="json",
                    received=made.type,
                )
            try:
                validator = self._validators.get(schema)
            except SchemaRefused:
                if kernels:
                    continue  # a kernel reads a small part of a schema and refuses none
                raise
            problems = validate(validator, made.value)
            if problems:
                raise Failed(
                    "OUTPUT_SCHEMA_INVALID",
                    "the output does not fit the promised schema",
                    problems=problems[:5],
                )

    def _input(self, execution: Execution) -> bytes:
        ref = execution.raw.get("input_ref")
        return read(self._files, FileRef(**json.loads(ref))) if ref else execution.input


def _another_version(execution: Execution, capability: Capability) -> bool:
    """After a wait the function runs again from its first line: it must be the one that ran before."""
    version = execution.raw.get("version", b"").decode()
    resumed = execution.raw.get("resumed") == b"1"
    return resumed and not capability.resumes and version not in ("", capability.version)


def _failed(error: bytes) -> Outcome:
    return Outcome("failed", b"", b"", error, error)


def _completed(
    value: bytes, files: tuple[FileRef, ...], value_ref: FileRef | None, said_ref: FileRef | None
) -> bytes:
    parts = [b'"output":' + (value or b"null")]
    if files:
        parts.append(b'"files":' + encode([described(ref) for ref in files]))
    if value_ref is not None:
        parts.append(b'"output_file":' + encode(described(value_ref)))
    if said_ref is not None:
        parts.append(b'"said_file":' + encode(described(said_ref)))
    return b"{" + b",".join(parts) + b"}"
