"""What a job waits for that others do: a signal, somebody's approval, a runner's result.

Waiting for people frees the process: the execution stands still, and when the answer comes the function
runs again from its first line, with everything it did before answered from the record.
"""

from __future__ import annotations

import json
from typing import Any

from worker.agents.hold import Hold
from worker.errors import Failed, ToolDenied, WaitExpired
from worker.executions.others import Asked, Others
from worker.executions.payloads import ToolCall
from worker.executions.store import LOST

_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.25
DENIED = b"denied"


class Suspended(BaseException):
    """The execution stands still and its process is free. Not for authors to catch; `finally` runs."""


class Waits:
    """The waits of one attempt."""

    def __init__(self, hold: Hold, others: Others | None) -> None:
        self._hold = hold
        self._others = others
        self._ordinals: dict[str, int] = {}

    def wait(self, kind: str, key: str | None, timeout: float | None) -> Any:
        """The payload of the signal that answers this wait."""
        if key is None:
            ordinal = self._ordinals[kind] = self._ordinals.get(kind, 0) + 1
            key = f"{kind}#{ordinal}"
        id, fence = self._hold.execution.id, self._hold.execution.fence
        limit_us = None if timeout is None else max(0, int(timeout * 1e6))
        others = self._there()
        answer = self._hold.insist(lambda: others.wait(id, fence, key, kind, limit_us))
        match answer[0]:
            case b"answered":
                return others.payload(id, answer)
            case b"blocked":
                self._suspend()
            case b"expired":
                raise WaitExpired(kind)
            case b"mismatch":
                raise not_replayable("waited for another signal", key)
            case b"full":
                raise Failed("LOG_FULL", "the execution waits more often than its log can hold")
        self._hold.lose()

    def ask(self, asked: Asked) -> None:
        """Lets somebody decide about a tool call. Returns only when that was done before."""
        id, fence = self._hold.execution.id, self._hold.execution.fence
        others = self._there()
        what = self._hold.insist(lambda: others.ask(id, fence, asked))
        if what == LOST:
            self._hold.lose()
        if what == "full":
            raise Failed("LOG_FULL", "the execution has more steps than its log can hold")
        if what == "blocked":
            self._suspend()

    def refuse_denied(self, tool: str, step: str, reason: bytes) -> None:
        """A step that failed because somebody said no."""
        if self._hold.remembered.get(f"{step} approval") == DENIED:
            raise ToolDenied(tool, json.loads(reason))

    def by_runner(self, step: str, call: ToolCall, timeout_us: int) -> tuple[str, bytes]:
        """Hands the step to a runner and waits, in this process, for what became of it."""
        id, fence = self._hold.execution.id, self._hold.execution.fence
        others = self._there()
        if self._hold.insist(lambda: others.send(id, fence, step, call, timeout_us)) == LOST:
            self._hold.lose()
        look = _FIRST_LOOK
        while True:
            status, value = self._hold.insist(lambda: others.outcome(id, step))
            if status in ("succeeded", "failed"):
                return status, value
            if status != "pending":
                self._hold.lose()
            self._hold.pause(look)
            look = min(_LONGEST_LOOK, look * 1.5)

    def _suspend(self) -> None:
        self._hold.stop("suspended")
        raise Suspended

    def _there(self) -> Others:
        if self._others is None:
            raise Failed("NOT_POSSIBLE", "nobody else can be asked here")
        return self._others


def not_replayable(what: str, key: str) -> Failed:
    return Failed("NOT_REPLAYABLE", f"a run after an interruption {what} under the same key", key=key)
