"""What a local function asks of others: a runner to run a tool, a person to approve one, a signal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from worker.agents.blobs import unpack
from worker.agents.output import encode
from worker.delivery.files import Files
from worker.executions.payloads import ToolCall, waits
from worker.executions.remote_store import RemoteStore
from worker.executions.runners import Runners
from worker.executions.scripts import Arg
from worker.executions.store import MOST_EVENTS, MOST_LOG_BYTES
from worker.ids import new_id

# What a settlement needs after a run that follows a wait.
SETTLE_MARGIN_US = 60_000_000
FOR_EVER_US = 365 * 86_400_000_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A tool call that needs somebody's word."""

    call: ToolCall
    key: str
    digest: str
    attempts: int
    timeout_us: int
    reason: str


class Others(Protocol):
    """The port, as a job uses it."""

    def wait(self, id: str, fence: int, key: str, kind: str, limit_us: int | None) -> list[bytes]: ...
    def payload(self, id: str, answer: list[bytes]) -> Any: ...
    def ask(self, id: str, fence: int, asked: Asked) -> str: ...
    def send(self, id: str, fence: int, step: str, call: ToolCall, timeout_us: int) -> str: ...
    def outcome(self, id: str, step: str) -> tuple[str, bytes]: ...


class StoreOthers:
    """Through the store, with the runners that are connected anywhere."""

    def __init__(self, store: RemoteStore, runners: Runners, files: Files) -> None:
        self._store = store
        self._runners = runners
        self._files = files

    def wait(self, id: str, fence: int, key: str, kind: str, limit_us: int | None) -> list[bytes]:
        """See wait_begin.lua for the answers."""
        expired = encode({"reason": f"wait expired: {kind}"})
        limit = FOR_EVER_US if limit_us is None else limit_us
        args: list[Arg] = [
            id,
            fence,
            key,
            kind,
            limit,
            SETTLE_MARGIN_US,
            *waits(kind),
            expired,
            MOST_EVENTS,
            MOST_LOG_BYTES,
        ]
        reply: list[bytes] = self._store.local("wait_begin", id, [], args)
        return reply

    def payload(self, id: str, answer: list[bytes]) -> Any:
        """What the signal brought that answered a wait."""
        _, event, kept = answer
        return unpack(self._files, kept) if kept else json.loads(event)["payload"]

    def ask(self, id: str, fence: int, asked: Asked) -> str:
        step = new_id()
        args: list[Arg] = [
            id,
            fence,
            asked.key,
            step,
            asked.call.tool,
            asked.digest,
            asked.attempts,
            asked.timeout_us,
            asked.call.created(asked.attempts),
            asked.call.approval_required(asked.reason),
            asked.call.blocked(step),
            "1" if asked.call.remote else "",
            asked.call.packed or b"null",
            MOST_EVENTS,
            MOST_LOG_BYTES,
        ]
        return str(self._store.local("ask", id, [], args).decode())

    def send(self, id: str, fence: int, step: str, call: ToolCall, timeout_us: int) -> str:
        """Hands a step to the runners."""
        args: list[Arg] = [id, fence, step, new_id(), call.packed or b"null", timeout_us]
        what = self._store.local("send_job", id, [self._store.keys.jobs(call.tool)], args)
        if what == b"ok":
            self._runners.offer(id, step, call.tool, told=True)
        return str(what.decode())

    def outcome(self, id: str, step: str) -> tuple[str, bytes]:
        """The status of a step and its value, as far as there is one."""
        status, value = self._store.step(id, step, "status", "value")
        return (status or b"").decode(), value or b""
