"""Calls of a local function that leave the process: runners, approvals, signals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from worker.core.ids import new_id
from worker.core.json import encode
from worker.engine.events import MOST_EVENTS, MOST_LOG_BYTES
from worker.files.blobs import discard, unpack
from worker.files.store import Files
from worker.remote.answers import ASK, SEND_JOB, WAIT_BEGIN, AskAnswer, SendJobAnswer, WaitBeginAnswer
from worker.remote.payloads import ToolCall, waits
from worker.remote.runners import Runners
from worker.remote.store import RemoteStore
from worker.store.scripts import Reply

# Time reserved for settlement after a run that follows a wait.
SETTLE_MARGIN_US = 60_000_000
FOR_EVER_US = 365 * 86_400_000_000


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A tool call that needs approval."""

    call: ToolCall
    key: str
    digest: str
    attempts: int
    timeout_us: int
    reason: str


class ExternalCalls(Protocol):
    """The port as a job sees it."""

    def wait(
        self, id: str, fence: int, key: str, kind: str, limit_us: int | None
    ) -> Reply[WaitBeginAnswer]: ...
    def payload(self, id: str, answer: Reply[WaitBeginAnswer]) -> Any: ...
    def ask(self, id: str, fence: int, request: ApprovalRequest) -> AskAnswer: ...
    def send(self, id: str, fence: int, step: str, call: ToolCall, timeout_us: int) -> SendJobAnswer: ...
    def outcome(self, id: str, step: str) -> tuple[str, bytes]: ...


class StoreExternalCalls:
    """The implementation through the store; reaches runners connected to any process."""

    def __init__(self, store: RemoteStore, runners: Runners, files: Files) -> None:
        self._store = store
        self._runners = runners
        self._files = files

    def wait(self, id: str, fence: int, key: str, kind: str, limit_us: int | None) -> Reply[WaitBeginAnswer]:
        accepted, blocked, resumed = waits(kind)
        return self._store.scripts.run(
            WAIT_BEGIN,
            id=id,
            fence=fence,
            key=key,
            kind=kind,
            limit=FOR_EVER_US if limit_us is None else limit_us,
            margin=SETTLE_MARGIN_US,
            accepted=accepted,
            blocked=blocked,
            resumed=resumed,
            expired=encode({"reason": f"wait expired: {kind}"}),
            most_events=MOST_EVENTS,
            most_bytes=MOST_LOG_BYTES,
        )

    def payload(self, id: str, answer: Reply[WaitBeginAnswer]) -> Any:
        """Returns the payload of the signal that answered a wait."""
        event, stored = answer.values
        return unpack(self._files, stored) if stored else json.loads(event)["payload"]

    def ask(self, id: str, fence: int, request: ApprovalRequest) -> AskAnswer:
        step = new_id()
        return self._store.scripts.run(
            ASK,
            id=id,
            fence=fence,
            key=request.key,
            step=step,
            tool=request.call.tool,
            digest=request.digest,
            attempts=request.attempts,
            timeout=request.timeout_us,
            created=request.call.created(request.attempts),
            required=request.call.approval_required(request.reason),
            blocked=request.call.blocked(step),
            runner="1" if request.call.remote else "",
            arguments=request.call.packed,
            most_events=MOST_EVENTS,
            most_bytes=MOST_LOG_BYTES,
        ).answer

    def send(self, id: str, fence: int, step: str, call: ToolCall, timeout_us: int) -> SendJobAnswer:
        """Dispatches a step to the runners."""
        reply = self._store.scripts.run(
            SEND_JOB,
            id=id,
            fence=fence,
            step=step,
            tool=call.tool,
            new_job=new_id(),
            arguments=call.packed,
            timeout=timeout_us,
        )
        if reply.answer is SendJobAnswer.OK:
            self._runners.offer(id, step, call.tool, announced=True)
        if reply.answer is SendJobAnswer.KNOWN:
            discard(self._files, call.packed)
        return reply.answer

    def outcome(self, id: str, step: str) -> tuple[str, bytes]:
        """Returns a step's status and its value, if any."""
        status, value = self._store.step(id, step, "status", "value")
        return (status or b"").decode(), value or b""
