"""Tool calls of a job: each is a step, decided by policy, recorded, tried again after passing faults.

A step has a key. After a crash the function calls its tools again: a step with an outcome answers from the
record, one without runs again, and another tool or other arguments under a key cannot be replayed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

from worker.agents.blobs import INLINE_BYTES, described, pack, reference, unpack
from worker.agents.declare import Tool
from worker.agents.hold import Hold
from worker.agents.output import MOST_MESSAGE, NotJson, encode, short
from worker.agents.waits import Waits, not_replayable
from worker.delivery.files import Files
from worker.errors import Failed, ToolDenied, ToolFailed, Transient
from worker.executions.events import Kind
from worker.executions.others import Asked
from worker.executions.payloads import ToolCall
from worker.executions.policy import Call, Decision
from worker.executions.store import LOST
from worker.ids import new_id

# A runner's job is tried so often.
MOST_ATTEMPTS = 3
_BACKOFF = (1.0, 2.0, 4.0)
_KEY = "key "

Decide = Callable[[Call], Decision]


class Caller(Protocol):
    """The job, as far as steps need it."""

    step_key: str | None

    def seconds_left(self) -> float: ...


class Steps:
    """The steps of one attempt."""

    def __init__(
        self,
        hold: Hold,
        waits: Waits,
        *,
        tools: Mapping[str, Tool],
        files: Files,
        decide: Decide,
        at: int,
        timeout_us: int,
    ) -> None:
        self._hold = hold
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
        """The keys of all steps that this run or an earlier one began."""
        return {name.removeprefix(_KEY) for name in self._hold.remembered if name.startswith(_KEY)}

    def call(
        self, job: Caller, name: str, key: str | None, arguments: dict[str, Any], *, remote: bool = False
    ) -> Any:
        """The tool's result, from the tool, from a runner or from the record."""
        tool = Tool(name, _elsewhere, MOST_ATTEMPTS) if remote else self._tools.get(name)
        if tool is None:
            raise ToolFailed(name, "no such tool is registered")
        if key is None:
            ordinal = self._ordinals[name] = self._ordinals.get(name, 0) + 1
            key = f"{name}#{ordinal}"
        try:
            packed = encode(arguments)
            digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
        except (NotJson, TypeError) as error:
            raise ToolFailed(name, "its arguments are not JSON") from error
        timeout_us = self._timeout_us
        if key not in self._begun:
            decision = self._decided(name, key, packed, arguments)
            timeout_us = (decision.timeout_ms or 0) * 1000 or timeout_us
            if decision.kind == "require_approval":
                call = self._outside(name, packed, key, remote=remote)
                tries = 1 if remote else tool.attempts
                self._waits.ask(Asked(call, key, digest, tries, timeout_us, decision.reason))
        head, step, value = self._begin(tool, key, packed, digest, timeout_us)
        if head == "succeeded":
            return unpack(self._files, value)
        if head == "failed":
            self._waits.refuse_denied(name, step, value)
            raise ToolFailed(name, json.loads(value))
        if remote:
            return self._by_runner(name, step, packed, key, timeout_us)
        return self._run(job, tool, step, key, arguments, int(value))

    def _by_runner(self, name: str, step: str, packed: bytes, key: str, timeout_us: int) -> Any:
        call = self._outside(name, packed, key, remote=True)
        status, value = self._waits.by_runner(step, call, timeout_us)
        if status == "succeeded":
            return unpack(self._files, value)
        raise ToolFailed(name, str(unpack(self._files, value)))

    def _outside(self, name: str, packed: bytes, key: str, *, remote: bool) -> ToolCall:
        """A call as others see it."""
        return ToolCall(name, pack(self._files, packed, name="arguments.json"), remote, key)

    def _decided(self, name: str, key: str, packed: bytes, arguments: dict[str, Any]) -> Decision:
        execution = self._hold.execution
        now_us = self._at + int((time.monotonic() - self._started) * 1e6)
        call = Call(
            agent_id=execution.agent,
            tool_id=name,
            arguments=arguments,
            labels=execution.labels,
            step_count=len(self._begun),
            age_ms=(now_us - execution.created) // 1000,
            now_us=now_us,
        )
        decision = self._hold.insist(lambda: self._decide(call))
        if decision.kind == "deny":
            payload = (
                b'{"intent_type":"invoke_tool","tool_id":%s,%s,"idempotency_key":%s,"reason":%s,"rule_id":%s}'
            )
            told = (encode(name), _arguments(packed), encode(key), encode(decision.reason))
            self._hold.append([(Kind.INTENT_DENIED, payload % (*told, encode(decision.rule_id)))])
            raise ToolDenied(name, decision.refusal or decision.reason)
        return decision

    def _begin(
        self, tool: Tool, key: str, packed: bytes, digest: str, timeout_us: int
    ) -> tuple[str, str, bytes]:
        hold = self._hold
        name, arguments = encode(tool.name), _arguments(packed)
        intent = b'{"intent_type":"invoke_tool","details":{"tool_id":%s,%s,"idempotency_key":%s}}'
        created = b'{"tool_id":%s,"tool_version":0,%s,"max_attempts":%d,"attempt":1,"deadline":'
        step = new_id()
        reply = hold.insist(
            lambda: hold.store.step_begin(
                hold.execution.id,
                hold.execution.fence,
                key=key,
                step=step,
                tool=tool.name,
                digest=digest,
                attempts=tool.attempts,
                timeout_us=timeout_us,
                intent=intent % (name, arguments, encode(key)),
                created=created % (name, arguments, tool.attempts),
            )
        )
        head = reply[0].decode()
        if head == LOST:
            hold.lose()
        if head == "mismatch":
            raise not_replayable("called another tool", key)
        if head == "full":
            raise Failed("LOG_FULL", "the execution has more steps than its log can hold")
        self._begun.add(key)
        return head, reply[1].decode(), reply[2]

    def _run(
        self, job: Caller, tool: Tool, step: str, key: str, arguments: dict[str, Any], attempt: int
    ) -> Any:
        while True:
            before, job.step_key = job.step_key, f"{self._hold.execution.id}:{key}"
            try:
                value = tool.run(job, **arguments) if _takes_job(tool) else tool.run(**arguments)
                packed = encode(value)
            except Transient as fault:
                reason = short(fault.message, MOST_MESSAGE)
                pause = _BACKOFF[min(attempt, 3) - 1] if fault.retry_after is None else fault.retry_after
                pause = max(0.0, min(pause, job.seconds_left()))
                if self._again(step, attempt, pause, reason):
                    self._hold.pause(pause)
                    attempt += 1
                    continue
            except NotJson:
                reason = "the tool returned something that is not JSON"
            except Exception as error:
                reason = f"the tool raised {type(error).__name__}"
            else:
                return self._succeeded(step, packed)
            finally:
                job.step_key = before
            told = encode({"error": reason, "retryable": False})
            self._end(step, "failed", encode(reason), told)
            raise ToolFailed(tool.name, reason)

    def _succeeded(self, step: str, packed: bytes) -> Any:
        """What the tool returned, in the form that a run after a crash will see."""
        stored = pack(self._files, packed, name="step.json")
        ref = reference(stored)
        told = b'{"result":%s}' % packed
        if ref is not None:
            told = encode({"result": None, "result_file": described(ref)})
        self._end(step, "succeeded", stored, told)
        return json.loads(packed)

    def _again(self, step: str, attempt: int, pause: float, reason: str) -> bool:
        """Whether the step has another try; it may begin after the pause."""
        told = encode({"error": reason, "retryable": True})
        return self._end(step, "retry", b"", told, attempt, int(pause * 1e6)) != "spent"

    def _end(
        self, step: str, outcome: str, value: bytes, told: bytes, attempt: int = 1, pause_us: int = 0
    ) -> str:
        hold, execution = self._hold, self._hold.execution
        reply = hold.insist(
            lambda: hold.store.step_end(
                execution.id,
                execution.fence,
                step,
                outcome,
                value,
                told,
                attempt=attempt,
                pause_us=pause_us,
            )
        )
        head = reply[0].decode()
        if head == LOST:
            hold.lose()
        return head


def _elsewhere(**arguments: Any) -> None:
    raise AssertionError("a runner runs this tool")


def _arguments(packed: bytes) -> bytes:
    """The arguments as an event shows them; long ones by size and digest."""
    if len(packed) <= INLINE_BYTES:
        return b'"arguments":' + packed
    about = {"size": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}
    return b'"arguments":null,"arguments_omitted":' + encode(about)


def _takes_job(tool: Tool) -> bool:
    return next(iter(inspect.signature(tool.run).parameters), "") == "job"
