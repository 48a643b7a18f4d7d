"""Tool calls of a job: each is a step, decided by policy, recorded, retried after transient faults.

A step has a key. After a crash the function calls its tools again: a finished step answers from the
record, an unfinished one runs again, and a different tool or arguments under a key cannot be replayed.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol

import structlog

from worker.agents.lease import Lease
from worker.agents.waits import Waits, not_replayable
from worker.capabilities.declare import Tool
from worker.core.errors import Failed, ToolDenied, ToolFailed, ToolMissing, Transient
from worker.core.ids import new_id
from worker.core.json import NotJson, encode, short
from worker.engine.answers import StepBeginAnswer, StepEndAnswer
from worker.engine.events import Kind
from worker.engine.output import MOST_MESSAGE
from worker.engine.step_fields import key_in
from worker.files.blobs import described, pack, reference, unpack
from worker.files.store import Files
from worker.policy.judge import Decision, PolicyCall
from worker.remote.external_calls import ApprovalRequest
from worker.remote.payloads import SHOWN_ARGUMENTS, ToolCall
from worker.store.client import as_bytes

log = structlog.get_logger()

# Most attempts of a runner's job.
MOST_ATTEMPTS = 3
_BACKOFF = (1.0, 2.0, 4.0)

Decide = Callable[[PolicyCall], Decision]


class StepContext(Protocol):
    """The part of the job that steps need."""

    step_key: str | None

    def seconds_left(self) -> float: ...


class Steps:
    """The steps of one attempt."""

    def __init__(
        self,
        lease: Lease,
        waits: Waits,
        *,
        tools: Mapping[str, Tool],
        files: Files,
        decide: Decide,
        at: int,
        timeout_us: int,
    ) -> None:
        self._lease = lease
        self._waits = waits
        self._tools = tools
        self._files = files
        self._decide = decide
        self._timeout_us = timeout_us
        self._at = at
        self._started = time.monotonic()
        self._ordinals: dict[str, int] = {}

    @cached_property
    def _begun(self) -> set[str]:
        """The keys of all steps begun by this run or an earlier one."""
        return {key for name in self._lease.remembered if (key := key_in(name)) is not None}

    def call(
        self, job: StepContext, name: str, key: str | None, arguments: dict[str, Any], *, remote: bool = False
    ) -> Any:
        """Returns the tool's result, from the tool, a runner or the record."""
        tool = Tool(name, _run_by_runner, MOST_ATTEMPTS) if remote else self._tools.get(name)
        if tool is None:
            raise ToolMissing(name, f"no such tool is registered; {_nearest(name, self._tools)}")
        if key is None:
            ordinal = self._ordinals[name] = self._ordinals.get(name, 0) + 1
            key = f"{name}#{ordinal}"
        try:
            packed = encode(arguments)
            digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
        except (NotJson, TypeError) as error:
            raise ToolFailed(name, "the arguments are not JSON") from error
        timeout_us = self._timeout_us
        if key not in self._begun:
            decision = self._decided(name, key, packed, arguments)
            timeout_us = (decision.timeout_ms or 0) * 1000 or timeout_us
            if decision.kind == "require_approval":
                call = self._external_call(name, packed, key, remote=remote)
                tries = 1 if remote else tool.attempts
                self._waits.ask(ApprovalRequest(call, key, digest, tries, timeout_us, decision.reason))
        head, step, value = self._begin(tool, key, packed, digest, timeout_us)
        if head is StepBeginAnswer.SUCCEEDED:
            return unpack(self._files, value)
        if head is StepBeginAnswer.FAILED:
            self._waits.refuse_denied(name, step, value)
            raise ToolFailed(name, json.loads(value))
        if remote:
            return self._by_runner(name, step, packed, key, timeout_us)
        return self._run(job, tool, step, key, arguments, int(value))

    def _by_runner(self, name: str, step: str, packed: bytes, key: str, timeout_us: int) -> Any:
        call = self._external_call(name, packed, key, remote=True)
        status, value = self._waits.by_runner(step, call, timeout_us)
        if status == "succeeded":
            return unpack(self._files, value)
        raise ToolFailed(name, str(unpack(self._files, value)))

    def _external_call(self, name: str, packed: bytes, key: str, *, remote: bool) -> ToolCall:
        """Builds the call for policy, runners and the log; stores the arguments if a runner needs them."""
        stored = b"null"
        if remote:
            stored = pack(self._files, packed, name="arguments.json", most=SHOWN_ARGUMENTS)
        return ToolCall(name, packed, remote, key, stored)

    def _decided(self, name: str, key: str, packed: bytes, arguments: dict[str, Any]) -> Decision:
        execution = self._lease.execution
        now_us = self._at + int((time.monotonic() - self._started) * 1e6)
        call = PolicyCall(
            agent_id=execution.agent,
            tool_id=name,
            arguments=arguments,
            labels=execution.labels,
            step_count=len(self._begun),
            age_ms=(now_us - execution.created) // 1000,
            now_us=now_us,
            id=f"{execution.id}:{key}",
        )
        decision = self._lease.insist(lambda: self._decide(call))
        if decision.kind == "deny":
            payload = ToolCall(name, packed, False, key).denied(decision.reason, decision.rule_id)
            self._lease.append([(Kind.INTENT_DENIED, payload)])
            raise ToolDenied(name, decision.refusal or decision.reason)
        return decision

    def _begin(
        self, tool: Tool, key: str, packed: bytes, digest: str, timeout_us: int
    ) -> tuple[StepBeginAnswer, str, bytes]:
        lease = self._lease
        call, step = ToolCall(tool.name, packed, False, key), new_id()
        reply = lease.insist(
            lambda: lease.store.step_begin(
                lease.execution.id,
                lease.execution.fence,
                key=key,
                step=step,
                tool=tool.name,
                digest=digest,
                attempts=tool.attempts,
                timeout_us=timeout_us,
                intent=call.accepted(),
                created=call.created(tool.attempts),
            )
        )
        match reply.answer:
            case StepBeginAnswer.LOST:
                lease.lose()
            case StepBeginAnswer.MISMATCH:
                raise not_replayable("called another tool", key)
            case StepBeginAnswer.FULL:
                raise Failed("LOG_FULL", "the execution's log has no room for more steps")
        self._begun.add(key)
        return reply.answer, reply.text(), as_bytes(reply.values[1])

    def _run(
        self, job: StepContext, tool: Tool, step: str, key: str, arguments: dict[str, Any], attempt: int
    ) -> Any:
        while True:
            broken: Exception | None = None
            before, job.step_key = job.step_key, f"{self._lease.execution.id}:{key}"
            try:
                value = tool.run(job, **arguments) if _takes_job(tool) else tool.run(**arguments)
                packed = encode(value)
            except Transient as fault:
                broken, reason = fault, short(fault.message, MOST_MESSAGE)
                pause = _BACKOFF[min(attempt, 3) - 1] if fault.retry_after is None else fault.retry_after
                pause = max(0.0, min(pause, job.seconds_left()))
                if self._again(step, attempt, pause, reason):
                    self._lease.pause(pause)
                    attempt += 1
                    continue
            except NotJson as error:
                broken, reason = error, "the tool returned something that is not JSON"
            except Exception as error:
                broken = error
                # The caller learns only the kind: the text and the traceback are for the operator.
                log.exception(
                    "tool.raised", execution_id=self._lease.execution.id, step_id=step, tool=tool.name
                )
                reason = f"the tool raised {type(error).__name__}"
            else:
                return self._succeeded(step, packed)
            finally:
                job.step_key = before
            payload = encode({"error": reason, "retryable": False})
            self._end(step, "failed", encode(reason), payload)
            raise ToolFailed(tool.name, reason) from broken

    def _succeeded(self, step: str, packed: bytes) -> Any:
        """Returns the tool's result in the form that a run after a crash will see."""
        stored = pack(self._files, packed, name="step.json")
        ref = reference(stored)
        payload = b'{"result":%s}' % packed
        if ref is not None:
            payload = encode({"result": None, "result_file": described(ref)})
        self._end(step, "succeeded", stored, payload)
        return json.loads(packed)

    def _again(self, step: str, attempt: int, pause: float, reason: str) -> bool:
        """Whether the step may be retried, after the pause."""
        payload = encode({"error": reason, "retryable": True})
        return self._end(step, "retry", b"", payload, attempt, int(pause * 1e6)) is not StepEndAnswer.SPENT

    def _end(
        self, step: str, outcome: str, value: bytes, payload: bytes, attempt: int = 1, pause_us: int = 0
    ) -> StepEndAnswer:
        lease, execution = self._lease, self._lease.execution
        reply = lease.insist(
            lambda: lease.store.step_end(
                execution.id,
                execution.fence,
                step,
                outcome,
                value,
                payload,
                attempt=attempt,
                pause_us=pause_us,
            )
        )
        if reply.answer is StepEndAnswer.LOST:
            lease.lose()
        return reply.answer


def _run_by_runner(**arguments: Any) -> None:
    raise AssertionError("a runner runs this tool")


def _nearest(name: str, tools: Iterable[str]) -> str:
    """Suggests close matches, or lists the choices."""
    known = sorted(tools)
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"registered: {', '.join(known) or 'none'}"


def _takes_job(tool: Tool) -> bool:
    return next(iter(inspect.signature(tool.run).parameters), "") == "job"
