"""Waits of a job: for a signal, an approval or a runner's result.

Waiting for people frees the process: the execution is suspended, and when the answer comes the function
runs again from its first line, with everything it did before answered from the record.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from worker.agents.lease import Lease
from worker.core.errors import Failed, ToolDenied, WaitExpired
from worker.engine.step_fields import step_field
from worker.remote.answers import AskAnswer, SendJobAnswer, WaitBeginAnswer
from worker.remote.external_calls import ApprovalRequest, ExternalCalls
from worker.remote.payloads import ToolCall

_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.25
DENIED = b"denied"


class Suspended(BaseException):
    """Raised when the execution is suspended. Do not catch it in agent code; `finally` runs."""


class Waits:
    """The waits of one attempt."""

    def __init__(self, lease: Lease, external_calls: ExternalCalls | None) -> None:
        self._lease = lease
        self._external_calls = external_calls
        self._ordinals: dict[str, int] = {}

    def wait(self, kind: str, key: str | None, timeout: float | None) -> Any:
        """Returns the payload of the signal that answers this wait."""
        if key is None:
            ordinal = self._ordinals[kind] = self._ordinals.get(kind, 0) + 1
            key = f"{kind}#{ordinal}"
        id, fence = self._lease.execution.id, self._lease.execution.fence
        limit_us = None if timeout is None else max(0, int(timeout * 1e6))
        external_calls = self._require_external_calls()
        answer = self._lease.insist(lambda: external_calls.wait(id, fence, key, kind, limit_us))
        match answer.answer:
            case WaitBeginAnswer.ANSWERED:
                return external_calls.payload(id, answer)
            case WaitBeginAnswer.BLOCKED:
                self._suspend()
            case WaitBeginAnswer.EXPIRED:
                raise WaitExpired(kind)
            case WaitBeginAnswer.MISMATCH:
                raise not_replayable("waited for another signal", key)
            case WaitBeginAnswer.FULL:
                raise Failed("LOG_FULL", "the execution's log has no room for more waits")
            case WaitBeginAnswer.LOST:
                self._lease.lose()

    def ask(self, asked: ApprovalRequest) -> None:
        """Requests approval of a tool call. Returns only if it was already decided; suspends otherwise."""
        id, fence = self._lease.execution.id, self._lease.execution.fence
        external_calls = self._require_external_calls()
        answer = self._lease.insist(lambda: external_calls.ask(id, fence, asked))
        if answer is AskAnswer.LOST:
            self._lease.lose()
        if answer is AskAnswer.FULL:
            raise Failed("LOG_FULL", "the execution's log has no room for more steps")
        if answer is AskAnswer.BLOCKED:
            self._suspend()

    def refuse_denied(self, tool: str, step: str, reason: bytes) -> None:
        """Raises ToolDenied if the step failed because its approval was denied."""
        if self._lease.remembered.get(step_field(step, "approval")) == DENIED:
            raise ToolDenied(tool, json.loads(reason))

    def by_runner(self, step: str, call: ToolCall, timeout_us: int) -> tuple[str, bytes]:
        """Dispatches the step to a runner and waits for its result in this process."""
        id, fence = self._lease.execution.id, self._lease.execution.fence
        external_calls = self._require_external_calls()
        sent = self._lease.insist(lambda: external_calls.send(id, fence, step, call, timeout_us))
        if sent is SendJobAnswer.LOST:
            self._lease.lose()
        look = _FIRST_LOOK
        while True:
            status, value = self._lease.insist(lambda: external_calls.outcome(id, step))
            if status in ("succeeded", "failed"):
                return status, value
            if status != "pending":
                self._lease.lose()
            self._lease.pause(look)
            look = min(_LONGEST_LOOK, look * 1.5)

    def _suspend(self) -> NoReturn:
        self._lease.stop("suspended")
        raise Suspended

    def _require_external_calls(self) -> ExternalCalls:
        if self._external_calls is None:
            raise Failed("NOT_POSSIBLE", "signals, approvals and runners are not available here")
        return self._external_calls


def not_replayable(action: str, key: str) -> Failed:
    return Failed("NOT_REPLAYABLE", f"a run after an interruption {action} under the same key", key=key)
